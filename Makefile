# Every command of the project.  `make` alone prints the list; the words after
# "##" below are that list, so a target without them is private.
#
#   LISP=sbcl|ecl|abcl   the Lisp to use                  (default: sbcl)
#   PORT=4242            where `make serve` listens       (0: any free port)
#   ADDRESS=127.0.0.1    on which address it listens      (0.0.0.0: all)
#   SUITE=taskmaster     run one test suite only          (default: all)
#   PROCESSORS=64        test as if there were so many    (default: as there are)

LISP    ?= sbcl
PORT    ?= 4242
ADDRESS ?= 127.0.0.1
SUITE   ?=
PROCESSORS ?=
export LISP PORT ADDRESS SUITE PROCESSORS

SYSTEM   := hunchentoot-recycling-taskmaster
INSTALL  := scripts/install-dependencies
RUN      := scripts/lisp
DIAGRAMS := $(patsubst %.dot,%.svg,$(wildcard docs/diagrams/*.dot))

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help serve executable dependencies test test-safe test-20 lint \
        check-distribution check-packages check-deploy check-certificates diagrams clean

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-20s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# openssl: Hunchentoot loads OpenSSL's library, also where no TLS is spoken.
serve: ## Install what is missing, then serve the demo on http://127.0.0.1:4242/
	@$(INSTALL) --command openssl --system $(SYSTEM)
	@$(RUN) scripts/serve.lisp

executable: ## Build the demo as a program of its own, build/demo (SBCL)
	@$(INSTALL) --command openssl --system $(SYSTEM)
	@$(RUN) scripts/executable.lisp

dependencies: ## Install what the tests need and is missing
	@$(INSTALL) --command openssl --system $(SYSTEM)-test

test: dependencies ## Install what is missing, then run the tests
	@scripts/run-tests

test-safe: ## The tests, with all of our code compiled at safety 3
	@SAFETY=3 $(MAKE) --no-print-directory test

test-20: ## The tests twenty times in a row; stops at the first failure
	@i=1; while [ $$i -le 20 ]; do \
	   echo "Run $$i of 20"; $(MAKE) --no-print-directory test || exit 1; i=$$((i + 1)); \
	 done

lint: ## Check the shell scripts
	@$(INSTALL) --command shellcheck
	@shellcheck -x .ci/run $$(grep -l '^#!/bin/sh' scripts/* deploy/rolling-restart deploy/container/*)

check-distribution: ## Is this fit for Quicklisp, Ultralisp and ocicl?
	@$(INSTALL) --system $(SYSTEM)-test
	@scripts/check-distribution

check-packages: ## Build and try the container and the Debian package (as root)
	@scripts/check-packages

check-deploy: ## Follow the guide's page Deploy on a bare Debian (as root)
	@scripts/check-deploy

check-certificates: ## Have certbot renew as the guide's page TLS says (as root)
	@scripts/check-certificates

diagrams: ## Draw docs/diagrams/*.dot anew
	@$(INSTALL) --command dot=graphviz
	@$(MAKE) --no-print-directory --always-make $(DIAGRAMS)

docs/diagrams/%.svg: docs/diagrams/%.dot
	dot -Tsvg -o $@.new $<
	sed -e '/^<!-- .*-->$$/d' -e '/^<!-- Generated/,/-->$$/d' $@.new > $@
	rm $@.new

clean: ## Remove what the commands above compiled
	rm -rf build

-include benchmark/targets.mk
