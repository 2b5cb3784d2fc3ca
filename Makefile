# Each target works alone from a fresh clone with Python 3.11+, make and the package registries.
PYTHON ?= python3
VENV ?= .venv
BENCH_VENV ?= .bench-venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
SUITE ?= all
JOBS ?= 2
SEEDS ?= 1000
MODEL := smollm2-135m

# Runs and models of these targets stay inside the checkout.
export XDG_DATA_HOME := $(CURDIR)/.cache/share

.PHONY: demo test check bench faults simulate soak clean

demo: $(VENV)/.local
	@$(BIN)/agentflow model install $(MODEL)
	@$(BIN)/python examples/ticket_triage/demo.py

test: $(VENV)/.dev
	@$(BIN)/agentflow model install $(MODEL)
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist worksteal
	$(BIN)/python -m tests.interpreters

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports --no-cache

# The suite `instructions` has no peers.
bench: $(VENV)/.dev $(if $(filter instructions,$(SUITE)),,$(BENCH_VENV)/.peers)
	@$(BIN)/python -m tests.benchmarks $(SUITE) --peers-python $(BENCH_VENV)/bin/python

faults: $(VENV)/.dev
	$(BIN)/python -m pytest -m "" tests/faults tests/conformance/graphs

# Whole runs from seeds, with crashes, refusals and clock steps; a seed that fails says how to repeat it.
simulate: $(VENV)/.dev
	@$(BIN)/python -m tests.faults.simulate --seeds $(SEEDS) --jobs $(JOBS)

soak: $(VENV)/.dev
	$(BIN)/python -m tests.faults.soak_actors

clean:
	rm -rf $(VENV) $(BENCH_VENV) .cache build dist *.egg-info .pytest_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.local: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) install -q -c constraints.txt -e ".[local]"
	@touch $@

$(VENV)/.dev: $(VENV)/bin/python pyproject.toml constraints.txt
	$(PIP) install -q -c constraints.txt -e ".[dev,local]"
	@touch $@ $(VENV)/.local

# Peers live in an environment of their own and never in the product's.
$(BENCH_VENV)/.peers: tests/benchmarks/peers.txt
	$(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_VENV)/bin/python -m pip --disable-pip-version-check install -q -r tests/benchmarks/peers.txt
	@touch $@
