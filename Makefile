# make run    words in context by the bundled models (or MODEL=), as tables and a picture
# make test   everything that has to hold
# make check  style, types, and that imports point down
# Each sets up what it needs in .venv; nothing has to be installed by hand.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEERS ?= .venvs/peers
PEER_SCRIPTS ?= ../shared/peers

# One thread per test process: two processes with two threads each only wait for one another.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: help run test check conformance bench clean

help:
	@sed -n '/^#/s/^# \{0,1\}//p; /^$$/q' Makefile

INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "elmo needs Python 3.11 or newer; name one with make PYTHON=…")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/ready: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) '.[all,dev]'
	touch $@

# Showing words needs less than testing does; what the tests installed will do, too.
$(VENV)/ready-to-run: pyproject.toml constraints.txt | $(BIN)/python
	test $(VENV)/ready -nt pyproject.toml || $(INSTALL) '.[plots,zh]'
	touch $@

run: $(VENV)/ready-to-run
	@$(BIN)/elmo demo $(if $(MODEL),--model "$(MODEL)") --picture words.png

test: $(VENV)/ready
	$(TEST_ENV) $(BIN)/python -m pytest -n 2 --dist worksteal -m 'not conformance'

check: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright --pythonpath $(BIN)/python

# Against AllenNLP, simple_elmo, TensorFlow and ELMoForManyLangs, each in a venv of its own.
conformance: $(VENV)/ready
	test -d $(PEER_SCRIPTS) || { echo 'make conformance: no peer scripts at $(PEER_SCRIPTS); give PEER_SCRIPTS=' >&2; exit 1; }
	test -x $(PEERS)/tensorflow/bin/python || $(PEER_SCRIPTS)/setup $(PEERS)
	test -d $(PEERS)/models/original || $(PEERS)/allennlp/bin/python $(PEER_SCRIPTS)/make_models.py $(PEERS)/models
	test -x $(PEERS)/many_langs/bin/python || tests/conformance/setup_many_langs.sh $(PEERS)
	ELMO_PEERS=$(abspath $(PEERS)) ELMO_PEER_SCRIPTS=$(abspath $(PEER_SCRIPTS)) $(BIN)/python -m pytest -m conformance tests/conformance

# Those that cannot do without arguments (data, a model) are run by hand; each says what it needs in its first lines.
NEED_ARGUMENTS := change substitutes synthetic_change task_peers wsd
BENCHMARKS := $(filter-out $(NEED_ARGUMENTS:%=benchmarks/%.py),$(sort $(wildcard benchmarks/*.py)))

bench: $(VENV)/ready
	for script in $(BENCHMARKS); do echo "== $$script"; $(BIN)/python $$script || exit 1; done

clean:
	rm -rf $(VENV) .venvs .pytest_cache .ruff_cache .hypothesis
