# Every target does its own set-up. `make` alone lists them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
ARGS ?=
KUBE ?= sim
SEEDS ?= 100
PROFILE ?= dev
SECONDS ?= 60

.PHONY: help demo test sim chaos bench kube lint postgres fuzz

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

postgres:
	@tests/postgres/install.sh

demo: postgres ## play the main job: a hub, three clusters, ten ways a fault may come (ARGS=--seed=7, ARGS=--keep, KUBE=real)
	@if [ "$(KUBE)" = real ]; then tests/kube/build.sh >/dev/null; fi
	@cargo build --bins
	@target/debug/gpuheal-demo --kube $(KUBE) $(ARGS)

test: postgres ## run every test, on real Postgres and a real Kubernetes control plane (KUBE=off leaves the latter out, and says so)
	@tests/postgres/install.sh pooler
	@if [ "$(KUBE)" != off ]; then tests/kube/build.sh >/dev/null; tests/kube/kubectl.sh >/dev/null; fi
	@cargo build --bins
	@cargo build --workspace --features gpuheal-hub/fail-points,gpuheal-spoke/fail-points --bin gpuheal-hub-dying --bin gpuheal-spoke-dying
	@KUBE=$(KUBE) cargo test --workspace --no-fail-fast

sim: ## simulate the whole system in one thread under SEEDS=100 seeds, with every invariant watched; SEED=7 replays one with its trace
	@cargo build --release --quiet -p gpuheal-sim
	@target/release/gpuheal-sim $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(ARGS)

chaos: postgres ## kill, stop, cut and put back whatever may fail, and check what is left (ARGS="--seed=7 --minutes=10")
	@cargo build --bins
	@target/debug/gpuheal-chaos $(ARGS)

bench: postgres ## measure against the targets of docs/numbers.md, as a table (KUBE=off leaves the real API server out)
	@if [ "$(KUBE)" != off ]; then tests/kube/build.sh >/dev/null; fi
	@cargo build --release -p gpuheal-hub -p gpuheal-ctl -p gpuheal-spoke -p gpuheal-tests --bin gpuheal-hub --bin gpuhealctl --bin gpuheal-spoke --bin gpuheal-bench
	@KUBE=$(KUBE) target/release/gpuheal-bench $(ARGS)

fuzz: ## try broken and hostile input for SECONDS=60 on each target, or on TARGET=name alone; INPUT=file replays one (docs/fuzzing.md)
	@SECONDS_EACH="$(SECONDS)" TARGET="$(TARGET)" INPUT="$(INPUT)" tests/fuzz/run.sh

kube: ## build the Kubernetes control plane that the tests run (nine minutes the first time)
	@tests/kube/build.sh
	@tests/kube/kubectl.sh

lint: ## format, clippy with warnings as errors, buf
	@cargo fmt --all --check
	@cargo clippy --workspace --exclude gpuheal-fuzz --all-targets -- -D warnings
	@cargo clippy -p gpuheal-fuzz --lib --tests -- -D warnings
	@tests/lint-proto.sh
