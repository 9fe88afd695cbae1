#!/usr/bin/env bash
# Brings the system packages that the tests use. What cannot be installed here is named; its tests then fail, unless
# GPUYARD_TEST_WITHOUT names it (tests/support/components.py).
set -euo pipefail
cd "$(dirname "$0")"
missing=()

# The fake NVML library and the fault-injecting shims are small C programs.
if ! echo '#include <stdio.h>' | gcc -fsyntax-only -x c - 2>/dev/null; then
    ./apt-install.sh gcc libc6-dev || true
fi

if ! compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null && ! command -v postgres >/dev/null; then
    ./apt-install.sh postgresql || true
fi

for package in slurm-wlm:slurmctld munge:munged slurmdbd:slurmdbd slurmrestd:slurmrestd mariadb-server:mariadbd docker.io:dockerd runc:runc iptables:iptables debootstrap:debootstrap openssh-server:sshd rsync:rsync nginx-light:nginx chromium:chromium systemd:systemd-analyze; do
    PATH=$PATH:/usr/sbin command -v "${package#*:}" >/dev/null || missing+=("${package%%:*}")
done
# A plugin, so no program tells whether it is there; with it slurmrestd takes tokens.
if ! compgen -G '/usr/lib/*/slurm-wlm/auth_jwt.so' >/dev/null; then
    missing+=(slurm-wlm-jwt-plugin)
fi
if ((${#missing[@]})); then
    ./apt-install.sh "${missing[@]}" || true
fi
