# make run    embed a few sentences with MODEL= and show words in context
# make test   everything that has to hold
# make check  style, types, and that imports point down
# Each sets up what it needs in .venv; nothing has to be installed by hand.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
EXTRAS := all,dev
PEERS ?= .venvs/peers
PEER_SCRIPTS ?= ../shared/peers

# One thread per test process: two processes with two threads each only wait for one another.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: help run model-is-named test check conformance bench clean

help:
	@sed -n '/^#/s/^# \{0,1\}//p; /^$$/q' Makefile


$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "elmo needs Python 3.11 or newer; name one with make PYTHON=…")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]'
	touch $@

model-is-named:
	@test -n "$(MODEL)" || { echo 'make run: no model is bundled yet; name one, in any published format: make run MODEL=path/or/hub-id' >&2; exit 1; }

run: model-is-named $(VENV)/ready
	@echo 'One word, four sentences: how alike its vectors are, layer by layer ($(MODEL))'
	@$(BIN)/elmo compare bank 'I sat by the bank of the river .' 'The boat drifted to the far bank .' \
	    'She took the money to the bank .' 'The bank raised its interest rates .' --model "$(MODEL)" --picture bank.png

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

bench: $(VENV)/ready
	for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

clean:
	rm -rf $(VENV) .venvs .pytest_cache .ruff_cache .hypothesis
