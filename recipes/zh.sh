#!/usr/bin/env bash
# Train the bundled Chinese model. DATA is the folder that contains lm-zh; OUT is a folder for the run (2 GB).
set -euo pipefail
: "${DATA:?}" "${OUT:?}"
elmo train "$DATA"/lm-zh/train.txt.xz --tokenizer zh --simplified --out "$OUT/zh" \
    --preset mini --cells 768 --width 160 --vocabulary 40000 --hours 1.3 \
    --batch-size 64 --samples 2048 --learning-rate 0.002 --clip 1 --loss-scale 1 --dropout 0 --window-resets 0.05
elmo convert "$OUT/zh" src/elmo/models/zh --dtype float16
elmo calibrate src/elmo/models/zh "$DATA"/lm-zh/train.txt.xz --split
