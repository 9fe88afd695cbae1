# From here on the script is the same for each machine.
umask 022
export PATH="${PATH:+$PATH:}/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
export HOME=/root DEBIAN_FRONTEND=noninteractive
log=/var/log/gpuyard-boot.log
home=/var/lib/gpuyard-node
venv=/opt/gpuyard
heartbeat=/run/gpuyard-heartbeat
account=gpuyard-job
units=/etc/systemd/system
is_ready=
exec >>"$log" 2>&1

console() {
    { printf '%s\n' "$*" >>/dev/console; } 2>/dev/null
}

say() {
    printf '%s\n' "gpuyard: $node_name: $*"
    console "gpuyard: $node_name: $*"
}

fail() {
    is_ready=no
    last_lines=$(tail -n 20 "$log")
    say "failed: $*; this machine ends itself. The last lines of its log:"
    console "$last_lines"
    sync
    poweroff || poweroff -f
    exit 1
}

# A step shows that the machine is alive: until the agent runs, nobody else does.
step() {
    say "$*"
    read -r uptime _ </proc/uptime
    echo "$uptime" >"$heartbeat"
}

needs_apt() {
    os=$(. /etc/os-release && echo "$ID $ID_LIKE")
    case " $os " in
    *" debian "* | *" ubuntu "*) ;;
    *) fail "this image ($os) lacks $1, which gpuyard installs only on Ubuntu and Debian: choose an image that has it" ;;
    esac
}

packages() {
    needs_apt "$1"
    step "installing $*"
    if [ -z "$has_package_lists" ]; then
        apt-get -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 update || fail "apt-get update"
        has_package_lists=yes
    fi
    apt-get -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 install -y --no-install-recommends "$@"
}
has_package_lists=

# --- what ends this machine when nobody speaks to it any more ---

trap 'exit 1' HUP INT TERM
trap '[ -n "$is_ready" ] || fail "the script of the first boot was ended"' EXIT
step "starting what ends this machine after $silence_s s of silence"
command -v systemctl >/dev/null || fail "this image has no systemd: choose another"
mkdir -p /usr/local/sbin "$units"
write_end_when_silent >/usr/local/sbin/gpuyard-end-when-silent
chmod 755 /usr/local/sbin/gpuyard-end-when-silent
cat >"$units/gpuyard-silence.service" <<END
[Unit]
Description=Ends this rented machine when gpuyard's server is silent for too long
DefaultDependencies=no

[Service]
Type=oneshot
ExecStart=/usr/local/sbin/gpuyard-end-when-silent $silence_s $heartbeat
END
cat >"$units/gpuyard-silence.timer" <<END
[Unit]
Description=Asks again and again for how long gpuyard's server has been silent

[Timer]
OnBootSec=$look_s
OnUnitActiveSec=$look_s
AccuracySec=1

[Install]
WantedBy=timers.target
END
systemctl daemon-reload
systemctl enable --now gpuyard-silence.timer || fail "systemd does not start the timer"

# --- Python and gpuyard ---

find_python() {
    for python in python3.14 python3.13 python3.12 python3.11 python3; do
        "$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' && return
    done
    return 1
}

if [ ! -x "$venv/bin/pip" ]; then
    step "looking for Python 3.11 or newer"
    find_python || { packages python3 python3-venv && find_python; } ||
        { packages python3.11 python3.11-venv && find_python; } ||
        fail "there is no Python 3.11 or newer: choose an image that has it"
    step "making an environment for gpuyard with $python"
    "$python" -m venv "$venv" || fail "$python -m venv $venv"
fi
step "installing gpuyard: $install"
"$venv/bin/pip" install --disable-pip-version-check --no-input -- "$install" ||
    fail "pip does not install $install"

# --- GPUs and Docker ---

nvidia_repository() {
    needs_apt "what GPUs need"
    [ -z "$has_nvidia_repository" ] || return 0
    command -v curl >/dev/null || packages curl ca-certificates || return 1
    distribution=$(. /etc/os-release && echo "$ID$VERSION_ID" | tr -d .)
    case $(uname -m) in
    aarch64) machine=sbsa ;;
    *) machine=$(uname -m) ;;
    esac
    path=compute/cuda/repos/$distribution/$machine/cuda-keyring_1.1-1_all.deb
    for site in developer.download.nvidia.com developer.download.nvidia.cn; do
        step "adding the packages of $site"
        curl -fsSL --retry 3 --max-time 60 -o /var/tmp/cuda-keyring.deb "https://$site/$path" || continue
        has_package_lists=
        packages /var/tmp/cuda-keyring.deb || continue
        has_package_lists=
        has_nvidia_repository=yes
        return 0
    done
    return 1
}

has_nvidia_repository=

gpus() {
    nvidia-smi -L | grep -c '^GPU '
}

if [ "$needs_gpus" -gt 0 ]; then
    step "looking for $needs_gpus GPUs"
    if ! nvidia-smi -L; then
        nvidia_repository || fail "NVIDIA's packages cannot be reached"
        packages "linux-headers-$(uname -r)" || say "no headers for this kernel"
        packages cuda-drivers || fail "the NVIDIA driver cannot be installed"
        modprobe -r nouveau || say "the driver of the image stays loaded"
        modprobe nvidia || say "the NVIDIA driver is not loaded"
    fi
    found=$(gpus)
    [ "${found:-0}" -ge "$needs_gpus" ] || fail "this machine has ${found:-0} GPUs that work, and $needs_gpus are needed"
fi

docker_runs() {
    docker info >/dev/null
}

if [ "$needs_docker" = yes ]; then
    step "looking for Docker"
    if ! docker_runs && ! { systemctl enable --now docker && docker_runs; }; then
        packages docker.io || fail "Docker cannot be installed"
    fi
    if [ "$needs_gpus" -gt 0 ] && ! command -v nvidia-ctk >/dev/null; then
        nvidia_repository || fail "NVIDIA's packages cannot be reached"
        packages nvidia-container-toolkit || fail "NVIDIA's container toolkit cannot be installed"
        nvidia-ctk runtime configure --runtime=docker || fail "nvidia-ctk runtime configure"
        systemctl restart docker || fail "Docker does not start"
    fi
    docker_runs || { systemctl enable --now docker && docker_runs; } || fail "Docker does not start"
fi

# --- the node ---

step "making the account of jobs"
id "$account" || useradd --create-home --shell /bin/bash "$account" || fail "useradd $account"
[ "$needs_docker" != yes ] || usermod -a -G docker "$account" || fail "usermod $account"
mkdir -p "$home"
chmod 700 "$home"
{
    echo '# Written by the first boot of this rented machine.'
    echo '[node]'
    echo "run_as = \"$account\""
    echo '[node.rented]'
    echo "heartbeat_file = \"$heartbeat\""
    [ -z "$spot_notices" ] || echo "spot_notices = \"$spot_notices\""
} >"$home/gpuyard.toml"

step "joining $join_url"
export GPUYARD_HOME="$home"
# Not as an argument: other users of this machine see those.
until printf '%s\n' "$join_code" | "$venv/bin/gpuyard" join --system --code-file - -- "$join_url"; do
    # 5: the server cannot be reached. If it stays so, the silence ends the machine.
    [ $? -eq 5 ] || fail "the server did not take this machine"
    sleep 2
done
is_ready=yes
step "this machine has joined; its agent runs"
