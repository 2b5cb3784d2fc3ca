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

# Compiled modules are kept: else each of the hundreds of processes of the tests would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

NODE_MODULES := .cache/node/node_modules

.PHONY: demo test browser check bench faults simulate soak clean

demo: $(VENV)/.local
	@$(BIN)/agentflow model install $(MODEL)
	@$(BIN)/python examples/ticket_triage/demo.py

test: $(VENV)/.dev
	@$(BIN)/agentflow model install $(MODEL)
	$(BIN)/python -m pytest --numprocesses $(JOBS) --dist worksteal
	$(BIN)/python -m tests.interpreters

# All tests of the dashboard, those of large stores included. Debian's Chromium is installed where it is missing.
browser: $(VENV)/.dev .cache/node/.installed
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || \
		$$([ "$$(id -u)" = 0 ] || echo sudo) apt-get install -y chromium
	$(BIN)/python -m pytest -m browser tests/browser tests/integration/test_server_browser.py

check: $(VENV)/.dev .cache/node/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports --no-cache
	@if [ -x $(NODE_MODULES)/.bin/tsc ]; then echo $(NODE_MODULES)/.bin/tsc; $(NODE_MODULES)/.bin/tsc -p agentflow/ui/jsconfig.json; \
		else echo "the types of the dashboard are not checked: there is no npm here"; fi

# The suite `instructions` has no peers.
bench: $(VENV)/.dev $(if $(filter instructions,$(SUITE)),,$(BENCH_VENV)/.peers)
	@$(BIN)/python -m tests.benchmarks $(SUITE) --peers-python $(BENCH_VENV)/bin/python

faults: $(VENV)/.dev
	@$(BIN)/agentflow model install $(MODEL)
	$(BIN)/python -m pytest -m "" tests/faults
	$(BIN)/python -m pytest -m slow tests/unit tests/integration tests/conformance

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

# What checks the page and the OpenAPI document; nothing of it is shipped. Where there is no npm, nothing is.
.cache/node/.installed: tests/browser/package.json
	@mkdir -p $(@D)
	@if command -v npm >/dev/null; then cp $< $(@D)/ && npm install --prefix $(@D) --silent --no-audit --no-fund; fi
	@touch $@

# Peers live in an environment of their own and never in the product's.
$(BENCH_VENV)/.peers: tests/benchmarks/peers.txt
	$(PYTHON) -m venv $(BENCH_VENV)
	$(BENCH_VENV)/bin/python -m pip --disable-pip-version-check install -q -r tests/benchmarks/peers.txt
	@touch $@
