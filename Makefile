# endsweep: `make demo` and `make test` need nothing but Python 3.11+ and make.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint unit real bench clean env

env: $(READY)

$(READY): pyproject.toml
	@test -n "$(PYTHON)" || { echo "endsweep needs Python 3.11 or newer; none found. Name one: make PYTHON=/path/to/python3.12"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

demo: $(READY)  ## a real sweep on the embedded endpoint, speculation off and on
	$(BIN)/endsweep demo

test: lint unit real  ## lint, types, import rules, tests, a real engine

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(READY)
	$(BIN)/python -m pytest -q --ignore=tests/real

real: $(READY)  ## sweep a real llama.cpp server (installed into its own environment)
	$(BIN)/python -m pytest -q tests/real

bench: $(READY)
	$(BIN)/python benchmarks/run.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist *.egg-info
