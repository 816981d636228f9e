# Every target makes the virtual environment it needs; `make demo` and `make test` work in a fresh clone.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
DEMO ?= demo

.PHONY: demo test slow hostile audit lint tables docs bench dist dist-check browser browser-check clean

# The main job: a tiny pool trained on embedded domains, tested on seen and unseen ones.
demo: $(VENV)/.core
	$(BIN)/polyshot demo --out $(DEMO)
	$(BIN)/polyshot data list $(DEMO)/packs
	@for pack in $(DEMO)/packs/*/; do name=$$(basename $$pack); \
	  $(BIN)/polyshot data sheet $$pack $(DEMO)/sheets/$$name.png && \
	  $(BIN)/polyshot data episodes $$pack --picture $(DEMO)/sheets/$$name-episode.png || exit; done
	@echo "Look at $(DEMO)/index.html, and at the contact sheets in $(DEMO)/sheets."
	@echo "Teach your own classes on a page in the browser: start $(BIN)/polyshot serve, and open http://127.0.0.1:8000/"

# Most tests use one core, so several files run at once, each with one thread, in the order of
# tests/conftest.py: the longest first.
test: lint docs
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile \
	  --no-loadscope-reorder

# What takes long, and is not in CI.
slow: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow

# Kills, damaged inputs, full disks, little memory: a quarter of an hour on two cores, docs/reliability.md.
# make hostile HOSTILE='--only pools,kill-train --trials 20' runs a part of it.
HOSTILE ?=
hostile: $(VENV)/.dev
	$(BIN)/python -m tests.hostile $(HOSTILE)

# Known vulnerabilities of what is installed, by a service that has to be reached.
audit: $(VENV)/.dev
	$(PYTHON) -m venv $(VENV)/audit
	$(VENV)/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit
	$(VENV)/audit/bin/pip-audit --strict --skip-editable --path $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

# Scripts are typed loosely, but what they ask for must be there (before_after.py asks for what was there, too).
SCRIPTS := $(filter-out benchmarks/before_after.py,$(wildcard tools/*.py benchmarks/*.py examples/*.py))
LOOSE := arg-type assignment call-overload index misc operator union-attr

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	MYPYPATH=src:tools:benchmarks $(BIN)/mypy --config-file= --cache-dir .mypy_cache/scripts --follow-imports silent \
	  --ignore-missing-imports --explicit-package-bases $(LOOSE:%=--disable-error-code %) $(SCRIPTS)
	$(BIN)/lint-imports --no-logo
	$(BIN)/python tools/tables.py --check

# The tables of README and docs, from the rows in results/.
tables: $(VENV)/.core
	$(BIN)/python tools/tables.py

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

# The sdist and the wheel, as an index wants them.
dist: $(VENV)/.dev
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m twine check --strict dist/*

# The wheel in fresh environments outside of the checkout, without and with extras.
dist-check: dist
	$(BIN)/python tools/dist_check.py dist

# Chromium for the tests of pages, where Debian's packages are at hand; they are skipped without it.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || \
	  { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null; } || \
	  echo "There is no Chromium: the tests of pages will be skipped."

# The page of examples/browser in Chromium, which has to be there, and that of serve with axe-core.
browser-check: $(VENV)/.dev
	npm install --prefix examples/browser --no-audit --no-fund --no-package-lock
	npm install --prefix tests/serving --no-audit --no-fund --no-package-lock --no-save axe-core@4.14.0
	$(BIN)/python -m pytest tests/test_browser.py tests/serving/test_access.py

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/episodes.py
	$(BIN)/python benchmarks/evaluate.py

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Polyshot needs Python 3.11 or newer; try make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) --editable '.[parquet,imagenet,serve]'
	touch $@

$(VENV)/.dev: $(VENV)/.core
	$(PIP) --editable '.[dev]'
	touch $@

# The peer we compare with asks for torchvision, whose only build for this torch wants CUDA: it is
# installed without its dependencies, and benchmarks/peers.py makes it importable.
$(VENV)/.bench: $(VENV)/.core
	$(PIP) pandas tqdm
	$(PIP) --no-deps easyfsl==1.5.0 torchvision==0.28.0
	touch $@

clean:
	rm -rf $(VENV) $(DEMO) site build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
