# What a machine needs: git, make, and Python 3.11 or newer with venv. Everything else is fetched into .venv and the user's cache, once:
# each stamp file is written after its step is complete, so that an interrupted run goes on where it was.

#: SEAMLESSFLOW_BOOTSTRAP  host:port of a Kafka to be used instead of one that is started here
#: SEAMLESSFLOW_TEST_BOOTSTRAP  the same for the tests
#: PYTHON       the Python that makes .venv, 3.11 or newer (python3)
#: DEMO_ARGS    more for `seamlessflow demo`: --steps 30 --seed 1 --no-faults --plain --namespace second.
#: PYTEST_ARGS  more for pytest: -k ledger, -m "not kafka and not flow", -v
#: BENCH_ARGS   more for `seamlessflow bench`
#: CHAOS_ARGS   more for `python -m tests.chaos`: --rows trainer --seed 3 --tier one --list
#: SIM_ARGS     more for the simulation: --schedules 1000 --seed 7 --jobs 2, --mutation NAME, --replay SEED
PYTHON ?= python3
PYTEST_ARGS ?=
DEMO_ARGS ?=
BENCH_ARGS ?=
CHAOS_ARGS ?=
SIM_ARGS ?=

BIN := .venv/bin
STAMPS := .venv/stamps
STARTED := $(shell date +%s)

# Where bytecode is not kept, each of many processes compiles its libraries anew, seconds of each.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test bench chaos simulation lint

help:  ## List the targets
	@sed -n 's/^\([a-z]*\):.*  ## \(.*\)/make \1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 17
	@echo
	@sed -n 's/^#: \([^ ]*\)  *\(.*\)/\1\t\2/p' $(firstword $(MAKEFILE_LIST)) | expand -t 30

demo: setup  ## Train a small model through a local Kafka, with faults, and audit it (DEMO_ARGS="--steps 30 --seed 1")
	SEAMLESSFLOW_SETUP_S=$$(( $$(date +%s) - $(STARTED) )) $(BIN)/seamlessflow demo $(DEMO_ARGS)

test: lint  ## Check style, import contracts and types, then run all tests; the summary names what was skipped (PYTEST_ARGS="-k ledger")
	@$(BIN)/pytest --quiet $(PYTEST_ARGS)

bench: setup  ## Measure streams, the call path, the trajectory pipeline and a takeover (BENCH_ARGS)
	$(BIN)/seamlessflow bench $(BENCH_ARGS)

chaos: setup  ## Break real processes and brokers in every listed way, and check the log after each (CHAOS_ARGS="--rows trainer --seed 3")
	@$(BIN)/python -m tests.chaos $(CHAOS_ARGS)

simulation: setup  ## Play 10,000 schedules of the whole pipeline with faults, in virtual time, and hunt planted defects (SIM_ARGS)
	@$(BIN)/python -m tests.simulation $(SIM_ARGS)

lint: setup  ## Check style, import contracts and types alone
	@$(BIN)/ruff check --quiet .
	@contracts=$$($(BIN)/lint-imports 2>&1) || { echo "$$contracts"; exit 1; }
	@$(BIN)/mypy

setup: $(STAMPS)/kafka  ## Make .venv and fetch packages, Java and Kafka; at once when it was done before

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "$(PYTHON) is missing or older than 3.11: name another one with make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "$(PYTHON) has no venv: apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/packages: $(STAMPS)/venv pyproject.toml constraints.txt
	$(BIN)/uv pip install --python $(BIN)/python --constraint constraints.txt --editable '.[torch,dev]'
	@touch $@

$(STAMPS)/kafka: $(STAMPS)/packages infra/broker/jars.py
	$(BIN)/seamlessflow fetch
	@touch $@
