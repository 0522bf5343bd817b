# `make` lists the targets. Each makes the environment it needs in .venv; from the second time on that costs nothing.

PYTHON     ?= python3
VENV       ?= .venv
QUICKSTART ?= nbs/index.ipynb
BENCH      ?= $(sort $(wildcard bench/*.py))
JOBS       ?= 3# tests at a time, and notebooks: each has one thread, and often waits for a kernel or a browser

BIN   := $(VENV)/bin
USER  := $(VENV)/.user-ready
DEV   := $(VENV)/.dev-ready
OLD   := $(VENV)/other/ipykernel-6.31# the tests of widgets run in an older kernel too
FILES := --dist loadfile --no-loadscope-reorder# a file stays in one process, which makes its fixtures once; tests/conftest.py has the order
MATRIX ?= 2.4.1 2.15.0# the oldest torch that pyproject.toml asks for, and the newest there is
TORCH := $(shell grep '^torch==' constraints.txt)
PIP   := $(BIN)/python -m pip install --no-compile --quiet --quiet --disable-pip-version-check --root-user-action=ignore --constraint constraints.txt $(TORCH)

# the byte code of all packages, on all cores and without their tests: pip takes a minute longer
COMPILE := $(BIN)/python -m compileall -qq -j 0 -x '/tests?/' $(VENV)/lib || true

LAB   := $(if $(filter 0,$(shell id -u)),--allow-root)# JupyterLab refuses to run as root, in a container too, unless asked

export JUPYTER_PLATFORM_DIRS := 1

.DEFAULT_GOAL := help
.PHONY: help demo lab check style bytecode types test export outputs docs bench lint hooks reading matrix clean

help: ## list the targets
	@sed -nE 's/^([a-z]+):.*## (.*)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-14s %s\n", $$1, $$2}'

demo: $(USER) ## run the quick start; leaves one page with its figures in _demo/
	@$(BIN)/python tools/render.py $(QUICKSTART) _demo

lab: $(USER) ## open the quick start in JupyterLab
	@$(BIN)/jupyter lab $(LAB) --LabApp.news_url=None --LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate $(QUICKSTART)

check: style bytecode types ## in three minutes: style, types, is the export up to date, do the tests of the core pass
	@echo "Made from the notebooks:"
	@$(BIN)/python tools/check.py
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q --numprocesses $(JOBS) --dist worksteal tests/core

style: $(DEV)
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --check --quiet .

bytecode: $(DEV)# with PYTHONDONTWRITEBYTECODE each process of the tests would compile the package again: 0.4 s
	@$(BIN)/python -m compileall -qq cbnb

types: $(DEV)
	@$(BIN)/python -m pytest -q tests/package/test_typing.py

test: style bytecode ## is the export up to date, do all notebooks run, do all tests pass
	@echo "Made from the notebooks:"
	@$(BIN)/python tools/check.py
	@echo "Notebooks:"
	@$(BIN)/python tools/run_notebooks.py --workers $(JOBS)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q --numprocesses $(JOBS) $(FILES) tests

export: $(DEV) ## notebooks -> cbnb/ and README.md, and clean the notebooks
	@$(BIN)/python tools/export.py

outputs: $(DEV) ## run all notebooks and store their outputs in them
	@$(BIN)/python tools/run_notebooks.py --save
	@$(BIN)/python tools/readme.py

docs: $(DEV) ## build the documentation in _docs/
	@$(BIN)/python tools/docs.py

bench: $(DEV) ## run the benchmarks
	@set -e; for script in $(BENCH); do echo "$$script"; $(BIN)/python $$script; done

lint: $(DEV) ## mend what ruff can mend, and show the rest
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --fix .

hooks: $(DEV) ## git merges notebooks by cell, and checks each commit
	@git config merge.nbdev-merge.name "notebooks, cell by cell"
	@git config merge.nbdev-merge.driver "$(CURDIR)/$(BIN)/nbdev_merge %O %A %B %P"
	@$(PIP) pre-commit
	@$(BIN)/pre-commit install

reading: $(DEV) ## how the notebooks read, in figures
	@$(BIN)/python tools/reading.py

matrix: ## the tests with the oldest and the newest torch that are supported (some 10 GB on the disk)
	@set -e; for torch in $(MATRIX); do \
		env=$(VENV)/matrix/$$torch; echo "torch $$torch"; \
		test -x $$env/bin/python || $(PYTHON) -m venv $$env; \
		grep -vE '^(torch==|triton|nvidia|cuda)' constraints.txt > $$env/constraints.txt; \
		$$env/bin/python -m pip install --quiet --constraint $$env/constraints.txt torch==$$torch 'setuptools>=77' --editable '.[notebook,docs,dev]'; \
		PATH=$(CURDIR)/$$env/bin:$$PATH OMP_NUM_THREADS=1 $$env/bin/python -m pytest -q --numprocesses 2 $(FILES) --ignore tests/browser --ignore tests/package/test_typing.py tests; \
	done

clean: ## remove what the other targets made, the environment excepted
	@rm -rf _demo _docs _proc build cbnb.egg-info

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("cbnb needs Python 3.11 or newer, try: make PYTHON=python3.12 ..." if sys.version_info < (3, 11) else 0)'
	@echo "Making an environment in $(VENV): some minutes, this once"
	@$(PYTHON) -m venv $(VENV)

$(USER): setup.py pyproject.toml constraints.txt | $(BIN)/python
	@$(PIP) --editable '.[notebook]'
	@$(COMPILE)
	@touch $@

$(DEV): $(USER) | $(OLD)
	@echo "Adding the tools for contributors to $(VENV): some minutes, this once"
	@$(PIP) --editable '.[notebook,docs,dev]'
	@$(COMPILE)
	@$(BIN)/python -m pip check > /dev/null || $(BIN)/python -m pip check
	@touch $@

$(OLD): | $(BIN)/python
	@$(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --target $@ ipykernel==6.31.0
