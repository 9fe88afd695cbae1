# Jobs that run on TensorFlow. `deploy/images/build tensorflow-gpu` builds it, with the tag of the catalogue.
# MODELS: models to have inside, as their ids on the Hugging Face hub: --build-arg MODELS="org/one org/two".
ARG BASE=python:3.11.15-slim-bookworm
FROM ${BASE}

ARG VERSION=unknown
ARG MODELS=""
LABEL org.opencontainers.image.title="gpuyard ml-tensorflow-gpu" \
      org.opencontainers.image.description="TensorFlow with CUDA, Keras, datasets, wandb and a Jupyter kernel" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="docker.io/library/python:3.11.15-slim-bookworm"

# Debian keeps only the newest build of a package, so a pinned one would be gone soon.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/*

# CUDA comes as wheels, in the versions that the requirements pin.
COPY requirements-tensorflow.txt /opt/requirements.txt
RUN pip install --no-cache-dir --require-hashes --only-binary :all: --requirement /opt/requirements.txt

# A job may run as any user; where its root file system is read only, it sets HF_HUB_CACHE to download more.
ENV HF_HUB_CACHE=/opt/models \
    PYTHONUNBUFFERED=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
# The ids are words, so they are not quoted.
# hadolint ignore=SC2086
RUN useradd --create-home --uid 10001 worker \
    && install --directory --mode 1777 "$HF_HUB_CACHE" /workspace \
    && python3 -c 'import sys, huggingface_hub as hub; [hub.snapshot_download(model) for model in sys.argv[1:]]' $MODELS \
    && chmod --recursive a+rX "$HF_HUB_CACHE"

USER 10001:10001
WORKDIR /workspace
ENTRYPOINT ["tini", "--"]
CMD ["python3"]
