# Everything needs Python 3.11 or newer, pip and make; the environment is made in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORK ?=
SHARD ?= all

# Tests start many processes: each would compile again what it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all check bench clean

demo: $(READY)  ## an embedded PostgreSQL, a small shop, the console, and a live table in the terminal
	$(BIN)/milepost demo

test: $(READY)  ## the fast tests: everything Milepost does, in minutes
	$(BIN)/pytest

test-all: $(READY)  ## all tests; make test-all SHARD=faults runs one shard, tests/shards.py lists them
	$(BIN)/pytest --shard $(SHARD)

check: $(READY)  ## lint, types, directions of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)  ## make bench WORK=append runs one work
	$(BIN)/pip install --quiet --group bench
	$(BIN)/python -m benchmarks $(WORK)

clean:
	rm -rf $(VENV) .venv-peers .mypy_cache .ruff_cache .pytest_cache

$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	$(BIN)/python -m pip install --quiet --editable . --group dev
	touch $@
