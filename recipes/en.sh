#!/usr/bin/env bash
# Train the bundled English model. DATA is the folder that contains lm-en; OUT is a folder for the run (2 GB).
set -euo pipefail
: "${DATA:?}" "${OUT:?}"
elmo train "$DATA"/lm-en/train-*.txt.xz --format tokens --out "$OUT/en" \
    --preset mini --cells 768 --width 160 --vocabulary 40000 --hours 3.2 \
    --batch-size 64 --samples 2048 --learning-rate 0.002 --clip 1 --loss-scale 1 --dropout 0 --window-resets 0.05
elmo convert "$OUT/en" src/elmo/models/en --dtype float16
elmo calibrate src/elmo/models/en "$DATA"/lm-en/train-00.txt.xz --tokenizer whitespace
