#!/usr/bin/env bash
# Usage: lock.sh [--upgrade]   Writes requirements-*.txt from requirements-*.in: exact versions with hashes, and no index
# address.
# Without --upgrade versions stay as they are unless the .in file rules them out. What an image has is told by its tag:
# raise the revision at the end of the tag in src/gpuyard/domain/images.py with it.
set -euo pipefail
cd "$(dirname "$0")"
uv=../../.venv/bin/uv

compile() {
    local name=$1 python=$2
    shift 2
    UV_CUSTOM_COMPILE_COMMAND="deploy/images/lock.sh" "$uv" pip compile "requirements-$name.in" --quiet \
        --python-version "$python" --python-platform x86_64-manylinux_2_28 --generate-hashes --no-emit-index-url \
        --no-emit-find-links --no-annotate --output-file "requirements-$name.txt" "$@"
}
# The base image has torch with the CUDA libraries it was built for, and Debian's setuptools, which pip cannot replace.
leave=(triton cuda-bindings cuda-pathfinder cuda-toolkit setuptools)
leave+=(nvidia-{cublas,cuda-cupti,cuda-nvrtc,cuda-runtime,cudnn-cu13,cufft,cufile,curand,cusolver,cusparse})
leave+=(nvidia-{cusparselt-cu13,nccl-cu13,nvjitlink,nvshmem-cu13,nvtx})
compile pytorch 3.12 "${leave[@]/#/--no-emit-package=}" "$@"
compile tensorflow 3.11 "$@"
compile solver-transformers 3.11 "$@"
compile solver-vllm 3.11 "$@"

if grep -nE '://|^--' requirements-*.txt; then
    echo "lock: the lines above hold an address or an option; requirements must not." >&2
    exit 1
fi
