# Jobs that run on PyTorch. `deploy/images/build pytorch-gpu` builds it, with the tag of the catalogue.
# MODELS: models to have inside, as their ids on the Hugging Face hub: --build-arg MODELS="org/one org/two".
ARG BASE=pytorch/pytorch:2.11.0-cuda12.8-cudnn9-runtime
FROM ${BASE}

ARG VERSION=unknown
ARG MODELS=""
LABEL org.opencontainers.image.title="gpuyard ml-pytorch-gpu" \
      org.opencontainers.image.description="PyTorch with CUDA, transformers, datasets, wandb and a Jupyter kernel" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="docker.io/pytorch/pytorch:2.11.0-cuda12.8-cudnn9-runtime"

# torch.compile needs a C++ compiler. Ubuntu keeps only the newest build of a package, so a pinned one would be gone soon.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ tini \
    && rm -rf /var/lib/apt/lists/*

# The base's Python is Ubuntu's, which pip leaves alone unless told; here nothing else uses it. What the base has already
# (torch and its libraries) needs no hash; if anything else were missing from the file, pip would refuse.
ENV PIP_BREAK_SYSTEM_PACKAGES=1
COPY requirements-pytorch.txt /opt/requirements.txt
RUN pip install --no-cache-dir --require-hashes --only-binary :all: --requirement /opt/requirements.txt \
    && python3 -c 'import torch; assert torch.version.cuda == "12.8", torch.version.cuda'

# A job may run as any user; where its root file system is read only, it sets HF_HUB_CACHE to download more.
ENV HF_HUB_CACHE=/opt/models \
    PYTHONUNBUFFERED=1
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
