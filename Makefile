# Everything is installed into VENV; nothing outside it is touched.
PYTHON ?= python3
PYTHON312 ?= python3.12
VENV ?= .venv
ARGS ?=
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help run test bench chaos crewai test-skyrl check format clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

run: $(VENV)/installed ## install, then start or resume the main job: make run ARGS="seed=1 log_path=runs/second"
	$(BIN)/python -m orchestrator run $(ARGS)

test: $(VENV)/installed-dev ## install what tests need, then run them: make test ARGS="tests/journal -k torn"
	$(BIN)/python -m pytest $(ARGS)

bench: $(VENV)/installed-dev ## what the machine costs, against others: make bench ARGS="gateway journal --json FILE"
	PYTHONPATH=tests $(BIN)/python -m benchmarks $(ARGS)

chaos: $(VENV)/installed ## kill a small run at each of its points, then 1,000 times at random: make chaos ARGS="seed=1"
	$(BIN)/python -m orchestrator chaos every_point=true kills=1000 jobs=2 max_batches=2 batch_size=2 group_size=2 concurrency=1 $(ARGS)

crewai: $(VENV)/installed-dev $(VENV)-crewai/installed ## install CrewAI into an environment of its own (1 GB), then train and kill a crew
	CREW_PYTHON=$(VENV)-crewai/bin/python $(BIN)/python -m pytest tests/crew $(ARGS)

test-skyrl: $(VENV)/installed-dev $(VENV)-skyrl/installed ## install SkyRL's server into an environment of its own (Python 3.12, 7 GB), then hold the contract and kill runs against it
	SKYRL_PYTHON=$(abspath $(VENV)-skyrl/bin/python) $(BIN)/python -m pytest tests/skyrl $(ARGS)

check: $(VENV)/installed-dev ## lint, format check and strict types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/installed-dev ## put imports and layout in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove the virtual environment and caches; runs/ stays
	rm -rf $(VENV) $(VENV)-crewai $(VENV)-skyrl .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/installed: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/installed-dev: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@ $(VENV)/installed

$(VENV)-crewai/installed: tests/crew/constraints.txt
	$(PYTHON) -m venv $(VENV)-crewai
	$(VENV)-crewai/bin/python -m pip install --quiet --disable-pip-version-check -c tests/crew/constraints.txt crewai
	touch $@

$(VENV)-skyrl/installed: tests/skyrl/constraints.txt
	$(PYTHON312) -m venv $(VENV)-skyrl
	$(VENV)-skyrl/bin/python -m pip install --quiet --disable-pip-version-check -c tests/skyrl/constraints.txt 'skyrl[tinker,jax]==0.4.0' aiohttp uv
	touch $@
