# endsweep: `make demo` and `make test` need nothing but Python 3.11+ and make.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && { echo $$p; break; }; done)
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint unit real real-all real-llamacpp real-cyllama real-llmock real-dynamo real-vllm \
	real-transformers real-nginx fuzz bench bench-crossover clean env

env: $(READY)

$(READY): pyproject.toml
	@test -n "$(PYTHON)" || { echo "endsweep needs Python 3.11 or newer; none found. Name one: make PYTHON=/path/to/python3.12"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	@touch $@

demo: $(READY)  ## a real sweep on the embedded endpoint, speculation off and on
	$(BIN)/endsweep demo

test: lint unit real  ## lint, types, import rules, tests, real servers

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: $(READY)
	$(BIN)/python -m pytest -q --ignore=tests/real -n 2 --dist worksteal

REAL := $(BIN)/python -m pytest -q tests/real/test_

# Each of these installs its engine into an environment of its own under .cache/real, once, and fails where it cannot.
real: real-llamacpp real-llmock  ## sweep real servers, those that are quick to have
	@if $(BIN)/python tests/real/engines/pythons.py 3.12 >/dev/null; then $(MAKE) real-cyllama; \
	else echo "real-cyllama is left out: cyllama has no wheel that streams for older Pythons"; fi

real-all: real-llamacpp real-cyllama real-llmock real-dynamo real-vllm real-transformers real-nginx  ## sweep all of them

real-llamacpp: $(READY)
	$(REAL)llamacpp.py tests/real/test_transports.py

real-cyllama: $(READY)  ## needs Python 3.12 or newer
	$(REAL)cyllama.py

real-llmock: $(READY)
	$(REAL)llmock.py

real-dynamo: $(READY)  ## 0.6 GB
	$(REAL)dynamo.py

real-vllm: $(READY)  ## 3.4 GB; needs Python 3.11
	$(REAL)vllm.py

real-transformers: $(READY)  ## in the environment of real-vllm
	$(REAL)transformers.py

real-nginx: $(READY)  ## needs nginx: apt-get install nginx-light
	$(REAL)nginx.py

FUZZ_SECONDS ?= 60

fuzz: $(READY)  ## any bytes, cut anywhere, into the event-stream decoder
	$(BIN)/python -m pip install --quiet --editable '.[fuzz]'
	$(BIN)/python tests/fuzz/fuzz_decoder.py .cache/fuzz -max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=4096

bench: $(READY)  ## what the client costs and how exact it is, in about ten minutes; ROWS="chunks burst" for some of it; scale and client_bound only by name
	$(BIN)/python benchmarks/run.py $(ROWS)

bench-crossover: $(READY)  ## 200 settings of speculation, swept in virtual time against their own truth, in about ten minutes
	$(BIN)/python benchmarks/crossover.py

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist *.egg-info
