#!/usr/bin/env bash
# Train on one machine with several processes: one for each GPU, or for each part of a large machine's cores.
#
#   ./one-machine.sh corpus.txt my-model            two processes on the processor
#   DEVICE=cuda PROCESSES=4 ./one-machine.sh ...    four GPUs
#
# A process that dies is started again with the others, and all go on after the last checkpoint. To go on with
# a run that was stopped altogether, give the same command again.
set -euo pipefail

corpus=$1
model=$2
shift 2

exec torchrun --standalone --nproc-per-node "${PROCESSES:-2}" --max-restarts 10 \
    -m elmo train "$corpus" --out "$model" --device "${DEVICE:-cpu}" "$@"
