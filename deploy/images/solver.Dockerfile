# The solver of `gpuyard verify`, for executors that this host's files do not reach. `deploy/images/build solver` builds it;
# `solver-transformers` and `solver-vllm` have that engine inside.
# ENGINE: none, for the engines openai and mock, which need only Python; or transformers, or vllm.
# MODELS: models to have inside, as their ids on the Hugging Face hub: --build-arg MODELS="org/one org/two".
ARG BASE=python:3.11.15-slim-bookworm
FROM ${BASE}

ARG VERSION=unknown
ARG ENGINE=none
ARG MODELS=""
LABEL org.opencontainers.image.title="gpuyard solver" \
      org.opencontainers.image.description="Solves the series of gpuyard verify on an executor" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="docker.io/library/python:3.11.15-slim-bookworm"

# Triton compiles its kernels on the GPU's host. Debian keeps only the newest build of a package, so a pinned one would be
# gone soon.
# hadolint ignore=DL3008,SC2046
RUN apt-get update \
    && apt-get install --yes --no-install-recommends tini $([ "$ENGINE" = none ] || echo g++) \
    && rm -rf /var/lib/apt/lists/*

# CUDA comes as wheels with torch, in the versions that the requirements pin.
COPY deploy/images/requirements-solver-*.txt /opt/gpuyard/
RUN [ "$ENGINE" = none ] \
    || pip install --no-cache-dir --require-hashes --only-binary :all: --requirement "/opt/gpuyard/requirements-solver-$ENGINE.txt"

# A job may run as any user; where its root file system is read only, it sets HF_HUB_CACHE to download more.
ENV HF_HUB_CACHE=/opt/models \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
# The ids are words, so they are not quoted.
# hadolint ignore=SC2086
RUN useradd --create-home --uid 10001 worker \
    && install --directory --mode 1777 "$HF_HUB_CACHE" \
    && { [ -z "$MODELS" ] || python3 -c \
        'import sys, huggingface_hub as hub; [hub.snapshot_download(model) for model in sys.argv[1:]]' $MODELS; } \
    && chmod --recursive a+rX "$HF_HUB_CACHE"

COPY src/gpuyard/verification/solver /opt/gpuyard/solver

USER 10001:10001
WORKDIR /home/worker
ENTRYPOINT ["tini", "--"]
CMD ["python3", "/opt/gpuyard/solver/solve.py"]
