# make run          show a demonstration with the bundled models, or with MODEL=…, as tables and a picture
# make quick        run the fast tests, in about a minute
# make test         run all tests
# make check        check style, types and the direction of imports
# make conformance  compare with AllenNLP, simple_elmo, TensorFlow and ELMoForManyLangs
# make bench        run the benchmarks that need no data
# Each command installs its requirements into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEERS := .venvs/peers

# One thread per test process: two processes with two threads each would compete for two cores.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: help run quick test check conformance bench clean

help:
	@sed -n '/^#/s/^# \{0,1\}//p; /^$$/q' Makefile

INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "elmo requires Python 3.11 or newer; set the interpreter with make PYTHON=…")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/ready: pyproject.toml constraints.txt build_kernels.py src/elmo/engine/kernels.c | $(BIN)/python
	$(INSTALL) '.[all,dev]'
	touch $@

# `make run` needs fewer packages than the tests.
$(VENV)/ready-to-run: pyproject.toml constraints.txt build_kernels.py src/elmo/engine/kernels.c | $(BIN)/python
	test $(VENV)/ready -nt pyproject.toml -a $(VENV)/ready -nt src/elmo/engine/kernels.c || $(INSTALL) '.[lexicon,plots,zh]'
	touch $@

run: $(VENV)/ready-to-run
	@$(BIN)/elmo demo $(if $(MODEL),--model "$(MODEL)") --picture words.png

quick: $(VENV)/ready
	$(TEST_ENV) $(BIN)/python -m pytest -q -n 2 --dist worksteal -m 'not slow and not conformance'

test: $(VENV)/ready
	$(TEST_ENV) $(BIN)/python -m pytest -n 2 --dist worksteal -m 'not conformance'

check: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright --pythonpath $(BIN)/python

# Installs AllenNLP, simple_elmo, TensorFlow and ELMoForManyLangs into .venvs/peers, each in its own environment,
# and compares elmo with them.
conformance: $(VENV)/ready
	tests/conformance/peers/setup.sh $(PEERS)
	test -d $(PEERS)/models/original || $(PEERS)/allennlp/bin/python tests/conformance/peers/make_models.py $(PEERS)/models
	$(BIN)/python -m pytest -m conformance tests/conformance

# These benchmarks need arguments, such as data or a model, which the docstring of each script describes.
NEED_ARGUMENTS := change explain minilm serve_load speed_chart substitutes synthetic_change task_peers wsd
BENCHMARKS := $(filter-out $(NEED_ARGUMENTS:%=benchmarks/%.py),$(sort $(wildcard benchmarks/*.py)))

bench: $(VENV)/ready
	for script in $(BENCHMARKS); do echo "== $$script"; $(BIN)/python $$script || exit 1; done

clean:
	rm -rf $(VENV) .venvs .pytest_cache .ruff_cache .hypothesis
