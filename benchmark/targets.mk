# The ruler's make targets; benchmark/README.md explains them and their variables.
# Works included by the Makefile, and alone: make -f benchmark/targets.mk bench

SBCL ?= sbcl
BENCH_ROOT := $(abspath $(dir $(lastword $(MAKEFILE_LIST)))..)
BENCH_SYSTEM := hunchentoot-recycling-taskmaster-benchmark
# Programs, each with the Debian package that has it.
BENCH_PROGRAMS := wrk gnuplot=gnuplot-nox nginx=nginx-light go=golang-go node=nodejs \
  cc=build-essential openssl
# What our programs are compiled with, each with the Debian package that has it.
BENCH_HEADERS := /usr/include/openssl/ssl.h=libssl-dev
# $(call bench-lisp,FUNCTION) calls FUNCTION of the benchmark's package.  The
# variables travel under names of our own: SECONDS, for one, means something to shells.
bench-start = cd "$(BENCH_ROOT)" && $(1) \
  $(SBCL) --noinform --non-interactive --eval '(require :asdf)' \
    --eval '(setf *compile-verbose* nil)' --eval '(push (uiop:getcwd) asdf:*central-registry*)'
bench-variables = BENCH_QUICK="$(QUICK)" BENCH_FULL="$(FULL)" BENCH_SERVERS="$(SERVERS)" BENCH_WORKLOADS="$(WORKLOADS)" \
  BENCH_ROUNDS="$(ROUNDS)" BENCH_SECONDS="$(SECONDS)" BENCH_IDLE="$(IDLE)" \
  BENCH_RESULT="$(RESULT)" BENCH_A="$(A)" BENCH_B="$(B)" \
  BENCH_SERVER="$(SERVER)" BENCH_WORKLOAD="$(WORKLOAD)" BENCH_MODE="$(MODE)"
bench-lisp = $(call bench-start,$(bench-variables)) \
    --eval '(asdf:load-system "$(BENCH_SYSTEM)")' \
    --eval '(in-package :$(BENCH_SYSTEM))' --eval '(call-door (function $(1)))'

.PHONY: bench bench-report bench-compare bench-readme bench-check bench-deps profile

bench: bench-deps ## Measure the standard set: QUICK=1 FULL=1 SERVERS= WORKLOADS= ROUNDS= SECONDS= IDLE=
	@$(call bench-lisp,bench)

bench-report: ## Make the report of RESULT=dir again
	@$(call bench-lisp,report-from-environment)

bench-compare: ## Ratios of the results A=dir and B=dir
	@$(call bench-lisp,compare-from-environment)

bench-readme: ## Rewrite the figures of README and guide from RESULT=dir
	@$(call bench-lisp,readme-from-environment)

profile: bench-deps ## Profile a server of ours: MODE=cpu|alloc WORKLOAD=keep-0ms-100 SECONDS=
	@$(call bench-lisp,profile-from-environment)

bench-check: ## Test the ruler itself
	@$(call bench-start) --eval '(asdf:test-system "$(BENCH_SYSTEM)/test")'

# Whatever can't be had is named, here and in the report, and costs only what needs it.
bench-deps: ## Install what the benchmark needs and is missing
	@cd "$(BENCH_ROOT)"; for each in $(BENCH_PROGRAMS); do \
	   PATH="$$PATH:/usr/sbin" scripts/install-dependencies --command $$each || true; done
	@cd "$(BENCH_ROOT)"; for each in $(BENCH_HEADERS); do \
	   scripts/install-dependencies --file $$each || true; done
	@cd "$(BENCH_ROOT)" && LISP="$(SBCL)" scripts/install-dependencies \
	   --system hunchentoot-recycling-taskmaster --system $(BENCH_SYSTEM)
