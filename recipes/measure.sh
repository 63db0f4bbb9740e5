#!/usr/bin/env bash
# Measure the vectors for comparing usages (layers="sense"): every figure about them in docs/ comes from this script.
# DATA is the folder of the corpora; EN and ZH are the models (default: the bundled ones); MINILM is optional, the folder
# of the transformers model (see benchmarks/minilm_setup.sh). Needs WordNet (Debian: wordnet-base, wordnet-sense-index).
set -euo pipefail
: "${DATA:?}"
EN=${EN:-en} ZH=${ZH:-zh} PYTHON=${PYTHON:-python}
cd "$(dirname "$0")/.."
run() { echo; echo "\$ $*"; "$@"; }
# docs/vectors.md: which vectors separate senses, on development data
run "$PYTHON" benchmarks/views.py "$EN" "$DATA" --pseudo "$DATA"/lm-en/dev-*.txt.xz
run "$PYTHON" benchmarks/views.py "$ZH" "$DATA" --pseudo "$DATA"/lm-zh/dev.txt.xz
# docs/vectors.md: time
run "$PYTHON" benchmarks/views.py "$EN" "$DATA" --pseudo "$DATA"/lm-en/dev-wiki.txt.xz --time
# docs/models.md: both lists of senses, and WiC
run "$PYTHON" benchmarks/quality.py "$EN" --senses tests/data/senses.en.tsv tests/data/senses-2.en.tsv \
    --wic "$DATA"/wic ${MINILM:+--transformer "$MINILM"}
run "$PYTHON" benchmarks/quality.py "$ZH" --senses tests/data/senses.zh.tsv tests/data/senses-2.zh.tsv
run "$PYTHON" -m elmo compare bank "I went to the bank to deposit money" "I sat by the bank of the river" \
    "She opened an account at the bank" --model "$EN"
# docs/wsd.md
run "$PYTHON" benchmarks/wsd.py "$EN" "$DATA"/wsd/semcor.jsonl.xz "$DATA"/wsd/semeval2007.data.xml.xz \
    "$DATA"/wsd/semeval2007.gold.key.txt.xz
# docs/senses-and-change.md
run "$PYTHON" benchmarks/synthetic_change.py "$EN" "$DATA"/wsd/semcor.jsonl.xz
run "$PYTHON" benchmarks/change.py "$EN" "$DATA"/change-dwug-en
