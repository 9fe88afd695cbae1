"""`gpuyard service` under a real systemd, which is the first process of a container of
this machine: installed, killed, restarted, stopped, rebooted and removed, while a job
runs.

    python -m tests.soak.service

Needs root, debootstrap and systemd-nspawn; it loads Debian and gpuyard's wheels. The
container shares the network of this machine and nothing else.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.support.wait import wait_until

CHECKOUT = Path(__file__).parents[2]
DEBIAN = "bookworm"
PYTHON_OF_DEBIAN = "3.11"
PACKAGES = (
    "systemd,systemd-sysv,dbus,dbus-user-session,libpam-systemd,procps,python3-venv"
)
# Each script runs as the user whose service it is; `ctl` is that user's systemctl.
BEGIN = """
set -eu
ctl() { systemctl $SCOPE "$@"; }
serves() { until gpuyard doctor | grep -q "^server *ok"; do sleep 0.2; done; }
main() { ctl show --property=MainPID --value gpuyard; }
runs() { gpuyard show long | grep -q "^state *running"; }
is_first_attempt() { gpuyard show long | grep -q "^1 *running"; }
"""
LIFE = """
gpuyard service install $SCOPE
gpuyard run -- echo it works | grep "it works"
gpuyard run -d --retries 1 --name long -- sleep 600
until runs; do sleep 0.2; done
echo "a killed server comes back"
old=$(main); kill -9 $old; serves
test "$(main)" != $old; is_first_attempt
echo "a restart ends no job"
ctl restart gpuyard; serves; is_first_attempt
echo "what is stopped stays so, until a command needs a server"
ctl stop gpuyard; sleep 3
test "$(ctl is-active gpuyard)" = inactive; pgrep -u $(id -u) -f "^sleep 600" > /dev/null
gpuyard jobs > /dev/null
echo "the service takes over from the server of a command"
ctl start gpuyard
until test "$(main)" = "$(cat ~/.gpuyard/server.lock)"; do sleep 0.2; done
serves; is_first_attempt
test "$(ctl show --property=NRestarts --value gpuyard)" = 0
"""
AFTER_REBOOT = """
serves
until gpuyard show long | grep -q "^1 .*node_rebooted"; do sleep 0.2; done
until runs; do sleep 0.2; done
gpuyard service remove $SCOPE
pgrep -u $(id -u) -f "^sleep 600" > /dev/null
gpuyard cancel long > /dev/null
gpuyard down
"""


class Container:
    """A Debian with gpuyard in a folder, and its systemd while it is booted."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def make(self) -> None:
        """Load and install all that it has."""
        call(
            "debootstrap",
            "--variant=minbase",
            f"--include={PACKAGES}",
            DEBIAN,
            self.root,
        )
        wheels = self.root / "opt" / "wheels"
        pip = (sys.executable, "-m", "pip", "-qq")
        for_debian = ("--python-version", PYTHON_OF_DEBIAN, "--only-binary=:all:")
        lock = CHECKOUT / "requirements.lock"
        call(
            *pip, "download", *for_debian, "--require-hashes", "-r", lock, "-d", wheels
        )
        call(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", wheels, CHECKOUT)
        self.install("python3", "-m", "venv", "/opt/gpuyard")
        offline = ("--no-index", "--find-links", "/opt/wheels")
        self.install("/opt/gpuyard/bin/pip", "--quiet", "install", *offline, "gpuyard")
        self.install("ln", "-s", "/opt/gpuyard/bin/gpuyard", "/usr/local/bin/")
        self.install("useradd", "--create-home", "--shell", "/bin/bash", "ann")

    def install(self, *words: str) -> None:
        """Run a command in its folder, without systemd."""
        call("chroot", self.root, *words)

    @contextmanager
    def booted(self) -> Generator[None]:
        """While systemd runs in it."""
        command = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit"]
        command += ["--boot", "--console=pipe", f"--directory={self.root}"]
        self._nspawn = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        try:
            wait_until(self._is_up, what="systemd")
            yield
            self.tries("systemctl poweroff")  # which ends this session, too
            self._nspawn.wait(60)
        finally:
            self._nspawn.terminate()
            self._nspawn.wait()

    def _is_up(self) -> bool:
        state = "systemctl is-system-running"
        return bool(self._first_processes()) and self.tries(state) == "running\n"

    def _first_processes(self) -> list[psutil.Process]:
        """Its first process, as this machine sees it, once there is one."""
        return psutil.Process(self._nspawn.pid).children()

    def tries(self, script: str) -> str:
        """What a script of root prints, however it ends."""
        done = subprocess.run(
            self._command("root", script), capture_output=True, text=True, check=False
        )
        return done.stdout

    def run(self, user: str, scope: str, script: str) -> None:
        """Run a script in a session of the user; SystemExit when it fails."""
        begun = time.monotonic()
        whole = f"SCOPE={scope}\n{BEGIN if scope else ''}{script}"
        done = subprocess.run(self._command(user, whole), timeout=300, check=False)
        if done.returncode:
            sys.exit(f"as {user}: exit code {done.returncode} of\n{whole}")
        sys.stdout.write(f"as {user}: {time.monotonic() - begun:.0f} s\n")

    def _command(self, user: str, script: str) -> Sequence[str]:
        enter = [
            "nsenter",
            f"--target={self._first_processes()[0].pid}",
            "--mount",
            "--pid",
            "--uts",
        ]
        enter += [
            "--ipc",
            "--cgroup",
            "env",
            "-i",
            "LANG=C.UTF-8",
            f"PATH={os.defpath}",
        ]
        return [*enter, "su", "--login", user, "--shell", "/bin/bash", "-c", script]


def call(*words: str | Path) -> None:
    subprocess.run(words, stdout=subprocess.DEVNULL, check=True)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="gpuyard-systemd-") as folder:
        container = Container(Path(folder) / "root")
        container.make()
        with container.booted():
            container.run("root", "", "loginctl enable-linger ann")
            container.run("ann", "--user", LIFE)
            container.run("root", "--system", LIFE)
        with container.booted():
            container.run("ann", "--user", AFTER_REBOOT)
            container.run("root", "--system", AFTER_REBOOT)
    sys.stdout.write("systemd: no promise broken\n")


if __name__ == "__main__":
    main()
