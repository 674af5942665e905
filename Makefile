# make quickstart   install into .venv, then tune, check and run real kernels on this machine
# make test         install, check, run all tests
# make whole        make test with more cases of the same: all GPUs, all models
# make check        lint, format, types
# make bench        compare with other libraries; SUITE=gemm THREADS=1 narrow it
# make docs         run the snippets of README.md and docs/
# make site         build the documentation into build/site
# make release      build wheel and sdist into dist, and try the wheel in an environment of its own

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
SOURCES := $(wildcard src tests bench examples tools)
SUITE ?= all
# Processes that run tests: one more than the two cores of the machines that check this, since some wait.
WORKERS ?= 3

# The first Python of a fitting version that really starts: a version manager's shim may stand for one that it does not have.
FITS := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))
PYTHON ?= $(shell for python in python3.11 python3.12 python3 python; do \
	if $$python -c '$(FITS)' >/dev/null 2>&1; then echo $$python; break; fi; done)

PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.PHONY: quickstart test whole tests check format bench docs site release setup clean
.DEFAULT_GOAL := test

quickstart: setup
	$(BIN)/tessera quickstart

# mypy has one thread, and takes minutes of it: beside the tests, which end later.
test: setup
	@$(MAKE) --no-print-directory --jobs 2 check tests

whole: setup
	@$(MAKE) --no-print-directory --jobs 2 check tests CASES=--whole

tests: setup
	$(BIN)/python -m pytest -q $(CASES) -n $(WORKERS) --dist worksteal --timeout 900 --timeout-method thread

# mypy's common type of two functions may depend on the order of sets, and so on the seed of hashes.
check: setup
	$(BIN)/ruff check --quiet $(SOURCES)
	$(BIN)/ruff format --check --quiet $(SOURCES)
	PYTHONHASHSEED=0 $(BIN)/mypy --no-error-summary $(SOURCES)

format: setup
	$(BIN)/ruff check --quiet --fix $(SOURCES)
	$(BIN)/ruff format --quiet $(SOURCES)

bench: setup
	$(BIN)/python -m bench $(SUITE) $(if $(THREADS),--threads $(THREADS))

docs: setup
	$(BIN)/python -m pytest -q tests/docs

site: setup
	$(BIN)/python -m tools.site

release: setup
	$(BIN)/python -m tools.release

setup: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11 or 3.12 found; name one: make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) setuptools
	$(PIP) torch==2.13.0
	$(PIP) --no-build-isolation --editable '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis src/*.egg-info
