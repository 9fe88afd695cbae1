#!/usr/bin/env bash
# Usage: setup.sh [dev]   Makes .venv from a lock file (hashes checked) and installs this checkout in it, editable:
# requirements-checkout.lock to use gpuyard, or with `dev` requirements-dev.lock, which has all of that and the tools.
# Does nothing when the stamp says that this very lock file is already installed at this very path.
set -euo pipefail
cd "$(dirname "$0")/.."

stamp=.venv/setup.stamp
stamp_of() {
    echo "$PWD $1 $(cat "$1" pyproject.toml | sha256sum | cut -c1-64)"
}
lock=requirements-${1:-checkout}.lock
found=$(cat "$stamp" 2>/dev/null || true)
if [[ -x .venv/bin/python && ("$found" == "$(stamp_of "$lock")" || "$found" == "$(stamp_of requirements-dev.lock)") ]]; then
    exit 0
fi

fail() {
    echo "setup: $*" >&2
    exit 1
}

find_python() {
    local candidate
    for candidate in python3.13 python3.12 python3.11 python3; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    fail "gpuyard needs Python 3.11 or newer, and none of python3.13, python3.12, python3.11 and python3 is." \
        "Install one and put it on PATH."
}

make_venv() {
    local python version
    python=$(find_python)
    # Debian ships the interpreter without ensurepip; python3-venv of the same version brings it.
    if ! "$python" -c 'import ensurepip' 2>/dev/null; then
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        scripts/apt-install.sh "python$version-venv" || fail "$python cannot make a virtual environment (no ensurepip)."
    fi
    "$python" -m venv --clear .venv
}

echo "setup: installing into .venv"
# Scripts in a virtual environment carry its path, so one that was moved is made anew, as is a broken one.
if [[ -n "$found" && "$found" != "$PWD "* ]] || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    make_venv
fi
rm -f "$stamp"
install() {
    .venv/bin/python -m pip install -qq --disable-pip-version-check "$@"
}
install --require-hashes -r "$lock"
install --no-deps --no-build-isolation --editable .
stamp_of "$lock" >"$stamp"
