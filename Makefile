# Every target does its own set-up. `make` alone lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
ARGS ?=
KUBE ?= sim
SEEDS ?= 100
PROFILE ?= dev

.PHONY: help demo test chaos bench kube lint postgres

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

postgres:
	@tests/postgres/install.sh

demo: postgres ## play the main job: a hub, three clusters, ten ways a fault may come (ARGS=--seed=7, ARGS=--keep, KUBE=real)
	@if [ "$(KUBE)" = real ]; then tests/kube/build.sh >/dev/null; fi
	@cargo build --bins
	@target/debug/gpuheal-demo --kube $(KUBE) $(ARGS)

test: postgres ## run every test, on real Postgres and a real Kubernetes control plane (KUBE=off leaves the latter out, and says so)
	@if [ "$(KUBE)" != off ]; then tests/kube/build.sh >/dev/null; fi
	@cargo build --bins
	@KUBE=$(KUBE) cargo test --workspace --no-fail-fast

chaos: postgres ## kill, stop, cut and put back whatever may fail, and check what is left (ARGS="--seed=7 --minutes=10")
	@cargo build --bins
	@target/debug/gpuheal-chaos $(ARGS)

bench: postgres ## measure against the targets of docs/numbers.md, as a table (KUBE=off leaves the real API server out)
	@if [ "$(KUBE)" != off ]; then tests/kube/build.sh >/dev/null; fi
	@cargo build --release --bins
	@KUBE=$(KUBE) target/release/gpuheal-bench $(ARGS)

kube: ## build the Kubernetes control plane that the tests run (nine minutes the first time)
	@tests/kube/build.sh

lint: ## format, clippy with warnings as errors, buf
	@cargo fmt --all --check
	@cargo clippy --workspace --all-targets -- -D warnings
	@tests/lint-proto.sh
