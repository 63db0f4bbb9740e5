# make run          show a demonstration with the bundled models, or with MODEL=…, as tables and a picture
# make quick        run the fast tests, in about a minute
# make test         run all tests
# make check        check style, types and the direction of imports
# make conformance  compare with AllenNLP, simple_elmo, TensorFlow and ELMoForManyLangs
# make faults       disturb every command that writes: kills, full disks, links, two writers, …
# make fuzz         fuzz every reader with coverage feedback; INPUTS=1000000 sets the number of inputs
# make integrations test the libraries that need an environment of their own: Flair
# make engines      test jobs on real clusters of Ray and Spark (needs Java 17)
# make lock         write requirements.lock and requirements-dev.lock: exact versions with hashes
# make docs         build the documentation site in build/site, in English and Chinese, and check its links
# make guide        run the guide and write what it prints and draws into its pages
# make gallery      draw the pictures of the gallery
# make bench        run the benchmarks that need no data
# Each command installs its requirements into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEERS := .venvs/peers
FLAIR := .venvs/flair
ENGINES := .venvs/engines

# One thread per test process: two processes with two threads each would compete for two cores.
TEST_ENV := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

.PHONY: help run quick test check conformance integrations engines faults fuzz lock docs guide gallery bench clean

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
	$(TEST_ENV) $(BIN)/python -m pytest -q -n 2 --dist worksteal -m 'not slow and not conformance and not integrations'

test: $(VENV)/ready
	$(TEST_ENV) $(BIN)/python -m pytest -n 2 --dist worksteal -m 'not conformance and not integrations'

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

# The system calls of a command are disturbed with strace; without it, these faults are skipped.
faults: $(VENV)/ready
	$(TEST_ENV) $(BIN)/python -m tests.faults $(if $(FAULTS),--faults $(FAULTS)) $(if $(COMMANDS),--commands $(COMMANDS))

fuzz: $(VENV)/ready
	$(INSTALL) '.[fuzz]'
	$(TEST_ENV) $(BIN)/python -m fuzz --guided --inputs $(or $(INPUTS),100000) $(if $(TARGETS),--targets $(TARGETS))

# Flair needs transformers 4, so it cannot share an environment with the other libraries.
integrations:
	test -x $(FLAIR)/bin/python || $(PYTHON) -m venv $(FLAIR)
	$(FLAIR)/bin/python -m pip install --quiet --disable-pip-version-check -c tests/integrations/flair.txt -e '.[flair]' pytest
	$(FLAIR)/bin/python -m pytest -m integrations tests/integrations/test_flair.py

# Ray, Spark and the S3-compatible server are large, so they have an environment of their own.
engines:
	test -x $(ENGINES)/bin/python || $(PYTHON) -m venv $(ENGINES)
	$(ENGINES)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[parquet,ray,s3,spark]' pytest 'moto[server]>=5'
	$(TEST_ENV) $(ENGINES)/bin/python -m pytest -p no:cacheprovider tests/jobs/test_engines.py tests/jobs/test_remote.py tests/integrations/test_ray.py tests/integrations/test_spark.py

# These benchmarks need arguments, such as data or a model, which the docstring of each script describes.
NEED_ARGUMENTS := change explain minilm serve_load sklearn_sentiment spacy_ner speed_chart substitutes synthetic_change task_peers vector_store wsd
BENCHMARKS := $(filter-out $(NEED_ARGUMENTS:%=benchmarks/%.py),$(sort $(wildcard benchmarks/*.py)))

lock: $(VENV)/ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	UV=$(BIN)/uv recipes/lock.sh

docs: $(VENV)/ready
	$(BIN)/python docs/site/build.py build/site
	@echo 'open build/site/index.html'

guide: $(VENV)/ready
	$(TEST_ENV) $(BIN)/python docs/site/refresh.py docs/guide/*.md docs/zh/guide/*.md

gallery: $(VENV)/ready
	$(TEST_ENV) $(BIN)/python docs/site/gallery.py

bench: $(VENV)/ready
	for script in $(BENCHMARKS); do echo "== $$script"; $(BIN)/python $$script || exit 1; done

clean:
	rm -rf $(VENV) .venvs build/site .pytest_cache .ruff_cache .hypothesis
