# Everything runs in .venv, which is made here; nothing but Python 3.11 or newer need be installed.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin

.PHONY: demo test lint types clean

demo: .venv/.core
	$(BIN)/findtta demo

test: lint types
	$(BIN)/python -m pytest -n 2

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.dev
	$(BIN)/mypy

.venv/.core: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

.venv/.dev: .venv/.core
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@

clean:
	rm -rf .venv
