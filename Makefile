# Two commands: `make run` (set up, then the main job) and `make test` (set up, then the whole test suite).
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed
ARGS ?= +defense=gnq_censor

.PHONY: run test lint setup slow-test clean

run: $(STAMP)
	$(VENV)/bin/python -m experiments.run $(ARGS)

test: $(STAMP)
	$(VENV)/bin/python -m pytest -n 2 --dist worksteal

slow-test: $(STAMP)
	$(VENV)/bin/python -m pytest -m slow

lint: $(STAMP)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

setup: $(STAMP)

# Made only once all of it is installed, so an interrupted set-up is done again and a complete one never is.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is " + sys.version) if sys.version_info < (3, 11) else None'
	@echo "Installing into $(VENV), once: about 6 GB, a few minutes"
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --upgrade "pip>=24"
	$(VENV)/bin/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $(STAMP)

clean:
	rm -rf $(VENV) outputs multirun
