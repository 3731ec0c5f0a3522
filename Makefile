# make compare and make test need Python 3.11 or newer and nothing else; they create .venv themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LEVANTER := .venv-levanter
DOCS := .venv-docs
LEVANTER_TEST := $(LEVANTER)/bin/pytest -n 0 -m levanter -o filterwarnings= tests/levanter

.PHONY: help install compare bench example documents figures docs notebooks quick test test-documents records test-peers levanter-quick levanter-test fuzz release-check lint clean
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(VENV)/installed ## Create .venv with the pinned dependencies

$(VENV)/installed: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit("qkvflow needs Python 3.11 or newer, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	@$(PYTHON) -c 'import ensurepip' || { echo "Python's venv is missing: apt install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

compare: install ## Train every named model briefly and show what differs
	$(BIN)/qkvflow compare

bench: install ## Measure speed: every promise, and how time grows (takes long)
	$(BIN)/python -m benchmarks.speed

example: install ## Run the documented API from end to end
	$(BIN)/python example_usage.py

documents: install ## Render README.md and docs/ from docs/source and results/
	$(BIN)/python -m docs.render

figures: install ## Draw docs/figures from results/
	$(BIN)/python -m docs.figures

docs: $(DOCS)/installed ## Build the documents as a site, build/site/index.html; creates .venv-docs
	$(DOCS)/bin/python -m docs.site

$(DOCS)/installed: requirements-docs.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/pip install --quiet --disable-pip-version-check -r requirements-docs.txt
	touch $@

notebooks: install ## Run the notebooks of docs/notebooks and keep what they show
	$(BIN)/python -m docs.notebooks

quick: lint ## What to run while working: lint, types, and the tests that do not take long
	$(BIN)/pytest -m "not long and not slow and not peers and not records and not documents"

test: lint ## Lint, check types, run the tests
	$(BIN)/pytest

test-documents: install ## Run the commands and programs that documents and notebooks show
	$(BIN)/pytest -m documents tests/test_documents.py tests/test_notebooks.py tests/plugins tests/exchange

records: install ## Check what committed records say by themselves
	$(BIN)/pytest -m records -n 0 tests/test_records.py

fuzz: install ## Ten thousand odd inputs in all, at every boundary, for half an hour at most
	HYPOTHESIS_PROFILE=fuzz timeout 30m $(BIN)/pytest tests/test_boundaries.py

test-peers: $(VENV)/peers ## Compare with torch, transformers, lm-eval, which it installs
	$(BIN)/pytest -m peers -n 0 tests/models tests/benchmarks tests/exchange tests/harness

$(VENV)/peers: $(VENV)/installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c requirements.txt --editable ".[peers]"
	touch $@

release-check: install ## Build wheel and source archive, install each into an empty environment, try it
	$(BIN)/pytest -m slow -n 0 tests/test_release.py

levanter-quick: $(LEVANTER)/installed ## Run the tests with Levanter that do not take long; creates .venv-levanter
	$(LEVANTER_TEST) --ignore=tests/levanter/test_devices.py --ignore=tests/levanter/test_benchmarks.py

levanter-test: $(LEVANTER)/installed ## Run all tests with Levanter: several devices and processes, too
	$(LEVANTER_TEST)

$(LEVANTER)/installed: requirements-levanter.txt pyproject.toml
	$(PYTHON) -m venv $(LEVANTER)
	$(LEVANTER)/bin/pip install --quiet --disable-pip-version-check -r requirements-levanter.txt
	$(LEVANTER)/bin/pip install --quiet --disable-pip-version-check --no-deps --editable .
	touch $@

lint: install ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean: ## Remove .venv and caches
	rm -rf $(VENV) $(LEVANTER) $(DOCS) .pytest_cache .mypy_cache .ruff_cache build *.egg-info
