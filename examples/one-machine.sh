#!/usr/bin/env bash
# Train on one machine with several processes: one per GPU, or one per group of CPU cores.
#
#   ./one-machine.sh corpus.txt my-model            two processes on the CPU
#   DEVICE=cuda PROCESSES=4 ./one-machine.sh ...    four GPUs
#
# If a process dies, all are restarted and resume after the last checkpoint. To resume a run that was stopped, run
# the same command again.
set -euo pipefail

corpus=$1
model=$2
shift 2

exec torchrun --standalone --nproc-per-node "${PROCESSES:-2}" --max-restarts 10 \
    -m elmo train "$corpus" --out "$model" --device "${DEVICE:-cpu}" "$@"
