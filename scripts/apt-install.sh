#!/usr/bin/env bash
# Usage: apt-install.sh PACKAGE...   Installs Debian packages when run as root; else says what to install and fails.
set -euo pipefail

if ! command -v apt-get >/dev/null; then
    echo "Please install what Debian calls: $*" >&2
    exit 1
fi
if [[ $EUID -ne 0 ]]; then
    echo "Please run: sudo apt-get install -y --no-install-recommends $*" >&2
    exit 1
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt() {
    DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=120 "$@" >>"$log" 2>&1
}
install() {
    apt install -y --no-install-recommends "$@"
}

echo "Installing Debian packages: $*"
# A fresh container has no package lists and an old one has stale ones; either shows as a failed first try.
install "$@" || { apt update && install "$@"; } || {
    cat "$log" >&2
    exit 1
}
