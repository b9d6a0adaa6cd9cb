# `make` alone lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Versions are those of the lock; `make LOCK= test` installs the newest that fit.
LOCK ?= requirements-dev.lock
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	$(if $(LOCK),-c $(LOCK))
SET_UP := pyproject.toml studies/pyproject.toml constraints.txt $(LOCK)
# One more than the two cores that CI has: many tests wait for a process, a disk or a clock.
PYTEST := pytest -n 3 --dist worksteal --durations=40 --show-capture=no

# A folder of data sets that are not bundled (see docs/how-to/partition-data.md); `none` leaves out
# the tests that need one.
DATA ?= $(or $(SOLERA_DATA),$(wildcard ../shared/data))
ifeq ($(DATA),none)
WITHOUT_DATA := and not data
unexport SOLERA_DATA
else ifneq ($(DATA),)
export SOLERA_DATA := $(abspath $(DATA))
endif

.PHONY: help demo test test-data test-all coverage lint lock docs bench bench-peers clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.installed  ## install and run the demonstration (writes runs/demo/report.html)
	$(BIN)/solera demo

# Programs that tests start would otherwise each compile the package anew.
test test-data test-all: export PYTHONDONTWRITEBYTECODE =
test: lint  ## install, check style, types and imports, run the tests (DATA=none: without real data)
	$(BIN)/$(PYTEST) -m 'not slow $(WITHOUT_DATA)'

test-data: $(VENV)/.installed-dev  ## run the tests that need real data, from the folder DATA
	$(BIN)/$(PYTEST) -m 'data and not slow'

test-all: lint  ## the same as `test`, with what takes minutes
	$(BIN)/$(PYTEST) -m '(slow or not slow) $(WITHOUT_DATA)'

# Slower than `make test` by half, so that it is a target of its own.
coverage: $(VENV)/.installed-dev  ## run all tests and print the branches they reach (90 % at least)
	$(BIN)/coverage erase
	$(BIN)/coverage run -m $(PYTEST)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

lint: $(VENV)/.installed-dev  ## check style, types and imports
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports

lock: $(VENV)/.made  ## renew requirements-dev.lock: the newest versions that fit together
	$(BIN)/python tools/lock.py requirements-dev.lock

# Pictures are of programs that run: screenshots need chromium.
docs: $(VENV)/.installed-docs  ## make pictures and build the documentation into site/
	$(BIN)/python tools/pictures.py docs/made
	$(BIN)/mkdocs build --strict

bench: $(VENV)/.installed-dev  ## run every benchmark
	@for file in $(filter-out benchmarks/before_after.py,$(wildcard benchmarks/*.py)); do \
		echo "== $$file"; $(BIN)/python "$$file" || exit 1; \
	done

bench-peers: $(VENV)/.installed-dev  ## set up the peers that benchmarks/simulation.py compares with
	sh benchmarks/peers/set_up.sh $(BIN)/python .peers
	$(BIN)/python benchmarks/simulation.py

clean:  ## remove the virtual environment, caches and the built site (runs/ is kept)
	rm -rf $(VENV) site docs/made build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache \
		.hypothesis .coverage .coverage.*
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is newer than what it was installed from, so that nothing is installed twice.
$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "Solera needs Python 3.11 or later, but '$(PYTHON)' is: $$($(PYTHON) --version 2>&1)"; \
		echo "Name another one: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(SET_UP) | $(VENV)/.made
	$(PIP) -e .
	@touch $@

$(VENV)/.installed-dev: $(SET_UP) | $(VENV)/.made
	$(PIP) -e '.[dev]' -e ./studies
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: $(SET_UP) | $(VENV)/.made
	$(PIP) -e '.[dev,docs]' -e ./studies
	@touch $@ $(VENV)/.installed $(VENV)/.installed-dev
