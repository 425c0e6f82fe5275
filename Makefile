# One command runs the main job (make demo), one runs the tests (make test); both start from nothing
# but Python 3.10 to 3.12 and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SPECTOOL := $(BIN)/spectool
PYTEST := $(BIN)/python -m pytest
OUT ?= build/demo
DEMO ?= smollm2/135m_ngram
DEMO_DRAFT ?= smollm2/135m_draft_target
DEMO_HEAD ?= smollm2/135m_eagle3
DEMO_PORTS ?= --http-port 18000 --grpc-port 18001 --metrics-port 18002
# So many processes test, each file in one of them; WORKERS=0 for none beside pytest (a debugger).
WORKERS ?= 2
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint fmt type bench clean

help: ## List what can be made.
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# What running spectool on this machine needs.
$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet -e '.[cpu,triton,report,monitor]'
	@touch $@

# That, and what tests, linting and types need.
$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet -e '.[cpu,triton,report,monitor,dev]'
	@touch $@ $(VENV)/.installed

setup: $(VENV)/.installed-dev ## Create .venv with everything that demo and tests need.

demo: $(VENV)/.installed ## SmolLM2-135M: check, build, tune, verify, serve; under five minutes on two cores.
	rm -rf $(OUT)/deployment
	$(SPECTOOL) check $(DEMO)
	$(SPECTOOL) build $(DEMO)
	$(SPECTOOL) build $(DEMO_DRAFT)
	$(SPECTOOL) generate $(DEMO) --max-tokens 40 --prompt "What is a hash table?"
	$(SPECTOOL) generate $(DEMO_HEAD) --max-tokens 40 --prompt "What is a hash table?"
	$(SPECTOOL) verify $(DEMO) --prompts 2 --checks greedy
	$(SPECTOOL) tune $(DEMO) --k 2,4,8 --batch 1,2,4 --prompts-per-domain 12 --max-tokens 48 --out $(OUT)/tune
	$(SPECTOOL) repo $(DEMO) -o $(OUT)/inprocess
	$(SPECTOOL) lint $(OUT)/inprocess
	$(SPECTOOL) serve $(OUT)/inprocess $(DEMO_PORTS) --check
	$(SPECTOOL) repo $(DEMO_DRAFT) -o $(OUT)/bls
	$(SPECTOOL) serve $(OUT)/bls $(DEMO_PORTS) --check
	$(SPECTOOL) deploy $(OUT)/bls -o $(OUT)/deployment
	$(BIN)/python bench/dashboard.py $(OUT)/bls
	@echo "The table is above; the report with its plots: $(OUT)/tune/report.html"

test: $(VENV)/.installed-dev ## The whole test suite, a real tritonserver included.
	$(PYTEST) -n $(WORKERS) --dist loadgroup --no-loadscope-reorder $(ARGS)

lint: $(VENV)/.installed-dev ## ruff check and format check.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

fmt: $(VENV)/.installed-dev ## Format, and fix what ruff can fix.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

type: $(VENV)/.installed-dev ## mypy --strict toolkit.
	$(BIN)/mypy --strict toolkit

bench: $(VENV)/.installed-dev ## The side-by-side comparisons in bench/, ratios printed.
	for script in bench/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

clean: ## Remove build/ and the virtual environment; the engine store stays (spectool store prune).
	rm -rf build dist $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
