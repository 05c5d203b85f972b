# Entry points for people and CI. Everything runs in .venv, which `make bootstrap` sets up.
.DEFAULT_GOAL := help
.PHONY: help bootstrap demo test test-rust test-python bench-scheduler bench-cpu bench-steps bench-overhead \
	bench-memory check-census check-operators check-models lint fmt

PY := .venv/bin/python

# `make demo INDUCTOR=1` puts TorchInductor beside; `make demo SHORT=1` is CI's form.
DEMO_FLAGS := $(if $(INDUCTOR),--inductor) $(if $(SHORT),--short)

# cargo-nextest when it is there, else cargo's own runner. The extension module has no Rust tests: it links
# against the Python that loads it. `make test-python` tests it.
RUST_TEST := $(if $(shell cargo nextest --version 2>/dev/null),cargo nextest run,cargo test)

help: ## Print what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 17

bootstrap: ## Install what is missing and build loafc into .venv
	@scripts/bootstrap.sh

demo: bootstrap ## Compile two small language models, compare with eager (INDUCTOR=1, SHORT=1)
	@$(PY) -m loafc.demo $(DEMO_FLAGS)

test: bootstrap test-rust test-python ## Run all tests, installing what is missing

test-rust: ## Run the Rust tests
	$(RUST_TEST) --workspace --exclude loafc-python

test-python: ## Run the Python tests against the loafc in .venv
	$(PY) -m pytest

bench-scheduler: ## Schedule real models with loafc and TorchInductor, compare kernels and seconds (minutes)
	$(PY) -m loafc.bench scheduler $(if $(JSON),--json $(JSON))

bench-cpu: ## Run kernels of loafc and TorchInductor on memory-bound programs (minutes; JSON=file, PLOT=file)
	$(PY) -m loafc.bench cpu $(if $(JSON),--json $(JSON)) $(if $(PLOT),--plot $(PLOT))

bench-steps: ## Run steps of real models compiled by loafc and TorchInductor (tens of minutes; JSON=file)
	$(PY) -m loafc.bench steps $(if $(JSON),--json $(JSON))

bench-overhead: ## Measure what a call of a compiled program costs beside TorchInductor's
	$(PY) -m loafc.bench overhead $(if $(JSON),--json $(JSON))

bench-memory: ## Measure peak memory of steps of real models beside TorchInductor's (minutes; CACHED=1, JSON=file)
	$(PY) -m loafc.bench memory $(if $(CACHED),--cached) $(if $(JSON),--json $(JSON))

check-census: ## Count the operator calls of real models that become loops
	$(PY) -m loafc.check census

check-operators: ## Run PyTorch's database of operators, all samples (an hour), against eager mode (GRADIENTS=1)
	$(PY) -m loafc.check operators $(if $(GRADIENTS),--gradients) $(if $(JSON),--json $(JSON))

check-models: ## Compare all models of a zoo with eager mode (hours; ZOO=file, needs the models' packages)
	$(PY) -m loafc.check models $(if $(ZOO),--zoo $(ZOO)) $(if $(JSON),--json $(JSON))

lint: ## Check format and lints
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

fmt: ## Format everything
	cargo fmt --all
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .
