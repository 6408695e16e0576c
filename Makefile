# Everything runs in .venv, which is made here; nothing but Python 3.11 or newer need be installed.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
# A file of tests stays in one process, so that what its tests share is made once; tests/conftest.py orders the files.
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: demo test test-all test-nightly lint types docs notebooks package coverage clean

demo: .venv/.demo
	$(BIN)/findtta demo

test: lint types
	$(PYTEST) -m "not slow and not nightly"

# One run of all: to collect the tests takes a while.
test-all: lint types
	$(PYTEST) -m "not nightly"

# The rest of full grids, of which the other targets run a part.
test-nightly: .venv/.dev
	$(PYTEST) -m nightly

# The site, in site/; notebooks are executed, and a warning is an error.
docs: .venv/.dev
	$(BIN)/mkdocs build --strict

# What the notebooks show where the repository is browsed.
notebooks: .venv/.dev
	$(BIN)/jupyter execute --inplace docs/notebooks/*.ipynb
	$(BIN)/ruff format docs/notebooks

# Source archive and wheel, in dist/, installed and tried in new environments.
package: .venv/.dev
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/twine check --strict dist/*
	$(BIN)/python tests/smoke.py dist

coverage: .venv/.dev
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n 2 --dist loadfile -m "not nightly"
	$(BIN)/coverage combine
	$(BIN)/coverage report

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.dev
	$(BIN)/mypy

.venv/.demo: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --no-compile --editable ".[report]"
	touch $@

.venv/.dev: .venv/.demo
	$(BIN)/python -m pip install --quiet --no-compile --editable ".[dev]"
	touch $@

clean:
	rm -rf .venv dist site
