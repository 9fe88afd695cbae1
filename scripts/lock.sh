#!/usr/bin/env bash
# Usage: lock.sh [--upgrade]   Writes the lock files: every version with its hashes, and no index address.
# Without --upgrade versions stay as they are unless pyproject.toml rules them out.
set -euo pipefail
cd "$(dirname "$0")/.."

resolve() {
    UV_CUSTOM_COMPILE_COMMAND="make lock" .venv/bin/uv pip compile --quiet --universal \
        --generate-hashes --no-emit-index-url --no-emit-find-links "$@"
}
# Its newest version has no wheel, and pip would fetch unchecked what builds one.
compile() {
    resolve pyproject.toml --only-binary alibabacloud-tea "$@"
}
compile --output-file requirements.lock "$@"
# The server's image says the same (EXTRAS).
server=(--extra kubernetes --extra docker --extra postgresql --extra s3 --extra verification)
compile --output-file requirements-server.lock "${server[@]}" --constraint requirements.lock "$@"
compile --output-file requirements-checkout.lock --extra checkout --constraint requirements.lock "$@"
compile --output-file requirements-dev.lock --extra dev --constraint requirements.lock "$@"
# What `make bench-peers` installs for the systems that gpuyard is measured beside.
peers=benchmarks/peers/requirements
resolve "$peers.in" --no-annotate --python-version 3.11 --output-file "$peers.txt" "$@"

if grep -nE '://|^--' requirements.lock requirements-server.lock requirements-checkout.lock requirements-dev.lock "$peers.txt"; then
    echo "lock: the lines above hold an address or an option; lock files must not." >&2
    exit 1
fi
