# The gpuyard server. `deploy/images/build gpuyard` builds it from the wheel of this checkout.
# LOCK: the lock file to install, with hashes; EXTRAS: the extras of gpuyard that it covers, such as "[docker]".
ARG BASE=python:3.11.15-slim-bookworm
FROM ${BASE}

ARG VERSION
ARG LOCK=requirements-server.lock
ARG EXTRAS="[kubernetes,docker,postgresql,s3,verification]"
LABEL org.opencontainers.image.title="gpuyard" \
      org.opencontainers.image.description="One queue for all GPU work, on every GPU you can reach" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="docker.io/library/python:3.11.15-slim-bookworm"

# Debian keeps only the newest build of a package, so a pinned one would be gone soon.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/*

COPY ${LOCK} dist/gpuyard-${VERSION}-py3-none-any.whl /tmp/
# What the wheel needs has come with its hashes; the second command must find nothing missing.
RUN pip install --no-cache-dir --require-hashes --only-binary :all: --requirement "/tmp/$(basename "${LOCK}")" \
    && pip install --no-cache-dir --no-index "/tmp/gpuyard-${VERSION}-py3-none-any.whl${EXTRAS}" \
    && rm -rf /tmp/* \
    && useradd --create-home --uid 10001 gpuyard \
    && install --directory --mode 0700 --owner 10001 --group 10001 /var/lib/gpuyard

ENV GPUYARD_HOME=/var/lib/gpuyard \
    PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /var/lib/gpuyard
ENTRYPOINT ["tini", "--"]
CMD ["gpuyard", "up", "--foreground"]
