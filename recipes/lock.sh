#!/bin/sh
# Write requirements.lock (elmo with all extras) and requirements-dev.lock (and what the tests need): the exact version
# and the SHA-256 of every package, for Python 3.11 and newer on Linux, macOS and Windows. Run it as `make lock`.
#
# torch is not in these files, nor are the CUDA libraries that only torch needs: which build of torch is right (CPU,
# CUDA, ROCm) depends on the machine, and builds have different files. constraints.txt pins its version.
set -eu
uv=${UV:-uv}
excluded=$(printf -- ' --no-emit-package %s' torch triton cuda-bindings cuda-pathfinder cuda-toolkit \
  nvidia-cublas nvidia-cuda-cupti nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cudnn-cu13 nvidia-cufft nvidia-cufile \
  nvidia-curand nvidia-cusolver nvidia-cusparse nvidia-cusparselt-cu13 nvidia-nccl-cu13 nvidia-nvjitlink \
  nvidia-nvshmem-cu13 nvidia-nvtx)
lock() {
  out=$1
  shift
  # shellcheck disable=SC2086 -- the excluded packages are separate arguments
  "$uv" pip compile pyproject.toml "$@" --universal --python-version 3.11 --generate-hashes --no-annotate --quiet \
    -c constraints.txt $excluded --no-header --output-file "$out"
}
lock requirements.lock --extra all
lock requirements-dev.lock --extra all --extra dev
