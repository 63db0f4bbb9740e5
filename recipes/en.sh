#!/usr/bin/env bash
# The bundled English model. DATA is the folder that holds lm-en; OUT a folder for the run (2 GB).
set -euo pipefail
: "${DATA:?}" "${OUT:?}"
elmo train "$DATA"/lm-en/train-*.txt.xz --format tokens --out "$OUT/en" \
    --preset mini --cells 768 --width 160 --vocabulary 40000 --hours 3.2 \
    --rows 64 --samples 2048 --learning-rate 0.002 --clip 1 --loss-scale 1 --dropout 0 --restarts 0.05
elmo convert "$OUT/en" src/elmo/models/en --dtype float16
