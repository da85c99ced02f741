# make bench: the first run.  make test: all tests.  make check: what CI runs.
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup bench test test-cluster test-faults check lint types format clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

bench: setup
	LOGLEVEL=ERROR $(BIN)/torchrun --nproc_per_node=3 -m distbench

test: setup
	$(BIN)/python -m pytest

test-cluster: setup
	$(BIN)/python -m pytest -m cluster

# Every fault at every stage, 50 kills, 1,000 overrides; writes docs/reliability.md. Half an hour.
test-faults: setup
	DISTBENCH_FAULTS=all $(BIN)/python -m pytest tests/faults

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup
	$(BIN)/mypy

check: lint types test

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist *.egg-info
