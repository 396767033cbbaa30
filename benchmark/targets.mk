# The benchmark's targets; benchmark/README.md explains them and their variables.

SBCL ?= sbcl
BENCH_SYSTEM := hunchentoot-recycling-taskmaster-benchmark
# Programs, each with the Debian package that has it.
BENCH_PROGRAMS := wrk cc=build-essential openssl gnuplot=gnuplot-nox nginx=nginx-light \
  go=golang-go node=nodejs psql=postgresql
BENCH_FILES := /usr/share/gocode/src/github.com/jackc/pgx=golang-github-jackc-pgx-v4-dev \
  /usr/share/gocode/src/github.com/gorilla/websocket=golang-github-gorilla-websocket-dev \
  /usr/share/nodejs/ws=node-ws
bench-lisp = BENCH_SERVERS="$(SERVERS)" BENCH_WORKLOADS="$(WORKLOADS)" BENCH_ROUNDS="$(ROUNDS)" \
  BENCH_SECONDS="$(SECONDS)" BENCH_CONNECTIONS="$(CONNECTIONS)" BENCH_BEFORE="$(BEFORE)" \
  BENCH_RESULT="$(RESULT)" \
  BENCH_SERVER="$(SERVER)" BENCH_WORKLOAD="$(WORKLOAD)" BENCH_MODE="$(MODE)" \
  $(SBCL) --noinform --non-interactive --eval '(require :asdf)' \
    --eval '(setf *compile-verbose* nil)' --eval '(push (uiop:getcwd) asdf:*central-registry*)' \
    --eval '(asdf:load-system "$(BENCH_SYSTEM)")' --eval '(in-package \#:recycling-benchmark)' \
    --eval '(call-from-make (function $(1)))'

.PHONY: bench bench-report bench-check bench-deps httparena profile

bench: bench-deps ## Measure: SERVERS= WORKLOADS= ROUNDS=3 SECONDS=2 CONNECTIONS= BEFORE=folder
	@$(call bench-lisp,bench-from-make)

bench-report: ## Make the report of RESULT=folder again
	@$(call bench-lisp,report-from-make)

profile: bench-deps ## Profile a Lisp server: SERVER=ours WORKLOAD=hello SECONDS=5 MODE=cpu|alloc
	@$(call bench-lisp,profile-from-make)

bench-check: bench-deps ## Test the benchmark itself
	@$(SBCL) --noinform --non-interactive --eval '(require :asdf)' \
	  --eval '(push (uiop:getcwd) asdf:*central-registry*)' \
	  --eval '(asdf:test-system "$(BENCH_SYSTEM)")'

httparena: ## Put the entry in HttpArena, with the library of the last commit, in build/httparena/
	@rm -rf build/httparena && mkdir -p build/httparena/library
	@cp benchmark/httparena/Dockerfile benchmark/httparena/*.json benchmark/httparena/build.lisp \
	   benchmark/httparena/server.lisp build/httparena/
	@git archive HEAD | tar -x -C build/httparena/library

# What cannot be had is named, here and in the report, and costs only what needs it.
bench-deps: ## Install what the benchmark needs and is missing
	@for each in $(BENCH_PROGRAMS); do \
	   PATH="$$PATH:/usr/sbin" scripts/install-dependencies --command $$each || true; done
	@for each in $(BENCH_FILES); do scripts/install-dependencies --file $$each || true; done
	@LISP="$(SBCL)" scripts/install-dependencies \
	   --system hunchentoot-recycling-taskmaster --system $(BENCH_SYSTEM) \
	   --system $(BENCH_SYSTEM)/work
