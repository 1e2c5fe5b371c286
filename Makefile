# Everything needs Python 3.11 or newer, pip and make; the environment is made in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
WORK ?=

.PHONY: demo test check soak bench clean

demo: $(READY)  ## an embedded PostgreSQL, a small shop, the console, and a live table in the terminal
	$(BIN)/milepost demo

test: $(READY)  ## all tests
	$(BIN)/pytest

check: $(READY)  ## lint, types, directions of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

soak: $(READY)  ## what takes longer than the tests may
	$(BIN)/pytest -m soak --timeout 3600

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
