#!/usr/bin/env bash
# Usage: lock.sh [--upgrade]   Writes the lock files: every version with its hashes, and no index address.
# Without --upgrade versions stay as they are unless pyproject.toml rules them out.
set -euo pipefail
cd "$(dirname "$0")/.."

compile() {
    UV_CUSTOM_COMPILE_COMMAND="make lock" .venv/bin/uv pip compile pyproject.toml --quiet --universal \
        --generate-hashes --no-emit-index-url --no-emit-find-links "$@"
}
compile --output-file requirements.lock "$@"
# The server's image says the same (EXTRAS).
server=(--extra kubernetes --extra docker --extra postgresql --extra s3 --extra verification)
compile --output-file requirements-server.lock "${server[@]}" --constraint requirements.lock "$@"
compile --output-file requirements-dev.lock --extra dev --constraint requirements.lock "$@"

if grep -nE '://|^--' requirements.lock requirements-server.lock requirements-dev.lock; then
    echo "lock: the lines above hold an address or an option; lock files must not." >&2
    exit 1
fi
