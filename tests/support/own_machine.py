"""What looks like a machine of a test's own: a mount namespace in which `/etc`, `/run`
and `/var/lib` are copies that end with it, and all users may run this Python.

Users and groups that are made in it are in its own `/etc` only. Its systemctl is
`systemctl.py`.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.components import require

_ROOT = Path(__file__).parents[2]
_COPIED = ("/etc", "/run", "/var/lib")
_FIRST_UID = 50_000


class OwnMachine:
    """`folder` is for the test's files; everybody may enter it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.programs = folder / "bin"
        self.programs.mkdir()
        (self.programs / "systemctl").symlink_to(
            Path(__file__).with_name("systemctl.py")
        )
        (self.programs / "gpuyard").write_text(
            f'#!/bin/sh\nexec {sys.executable} -m gpuyard.cli.entry "$@"\n'
        )
        (self.programs / "gpuyard").chmod(0o755)
        script = f"{_setup(folder)}\necho ready\nexec sleep infinity"
        self._holder = subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", script],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout
        assert self._holder.stdout.readline() == "ready\n"

    @property
    def environment(self) -> dict[str, str]:
        """That of a login; nothing of the tests' own gets in."""
        return {
            "PATH": f"{self.programs}:{os.defpath}:/usr/sbin:/sbin",
            "HOME": "/root",
            "LANG": "C.UTF-8",
            "NO_COLOR": "1",
            "PYTHONPATH": str(_ROOT / "src"),
            "SYSTEMD_FAKE": str(self.folder),
        }

    def words(self, *command: str, user: str | None = None) -> list[str]:
        """The words that run a command in it, as root or as `user`."""
        entered = ["nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt"]
        variables = self.environment
        home = "/root"
        if user:
            home = str(self.home_of(user))
            entered += ["setpriv", f"--reuid={user}", f"--regid={user}"]
            entered.append("--init-groups")
            variables |= {"HOME": home, "USER": user, "LOGNAME": user}
        given = [f"{name}={value}" for name, value in variables.items()]
        return [*entered, "env", "-i", f"--chdir={home}", *given, *command]

    def run(
        self, *command: str, user: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in it; output as text."""
        return subprocess.run(
            self.words(*command, user=user),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def ok(self, *command: str, user: str | None = None) -> str:
        """Standard output of a command that must succeed."""
        done = self.run(*command, user=user)
        assert done.returncode == 0, f"{shlex.join(command)}: {done.stderr}"
        return done.stdout

    def home_of(self, user: str) -> Path:
        """The home of a user that `add_user` has made."""
        return self.folder / "home" / user

    def add_user(self, name: str, *groups: str) -> None:
        """Make a user with a home that only the user may enter."""
        number = _FIRST_UID + uuid.uuid4().int % 10_000
        home = self.home_of(name)
        words = ["--uid", str(number), "--home-dir", str(home), "--create-home"]
        self.ok("useradd", *words, "--user-group", *_grouped(groups), name)
        home.chmod(0o700)

    def close(self) -> None:
        """End all that runs in it."""
        own = os.stat(f"/proc/{self._holder.pid}/ns/mnt").st_ino  # noqa: PTH116  (a link of the kernel)
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if os.stat(process / "ns/mnt").st_ino == own:  # noqa: PTH116
                    os.kill(int(process.name), signal.SIGKILL)
        self._holder.wait()


def _grouped(groups: tuple[str, ...]) -> list[str]:
    return ["--groups", ",".join(groups)] if groups else []


def _setup(folder: Path) -> str:
    """The commands that make the copies, in a new mount namespace."""
    layers = folder / "layers"
    lines = ["set -e", f"mkdir {layers}", f"mount -t tmpfs none {layers}"]
    # Other tests add accounts to this machine, and lock its files for a moment. What
    # they remove while it is copied may be missing.
    etc = layers / "etc.copy"
    lines += [f"cp -a /etc {etc} || true", f"rm -f {etc}/*.lock"]
    for path in [*_COPIED, *_closed_folders()]:
        lower = etc if path == "/etc" else path
        upper = layers / path.strip("/").replace("/", "-")
        lines += [
            f"mkdir -m 755 {upper} {upper}.work",
            f"mount -t overlay overlay -o"
            f" lowerdir={lower},upperdir={upper},workdir={upper}.work {path}",
        ]
    # Whatever this machine has of it, the test's machine has not.
    lines.append("rm -rf /etc/gpuyard /run/gpuyard /var/lib/gpuyard")
    return "\n".join(lines)


def _closed_folders() -> list[str]:
    """The folders on the way to this Python and to gpuyard that others may not
    enter.
    """
    needed = (Path(sys.prefix), Path(sys.base_prefix), _ROOT)
    ways = {folder for path in needed for folder in (path, *path.parents)}
    return sorted(str(way) for way in ways if not way.stat().st_mode & 0o001)


@contextmanager
def own_machine() -> Iterator[OwnMachine]:
    """A machine, whose processes and files are gone afterwards."""
    require("other-users", os.getuid() == 0)
    folder = Path(tempfile.mkdtemp(prefix="gy-", dir="/tmp"))
    folder.chmod(0o755)
    (folder / "home").mkdir()
    machine = OwnMachine(folder)
    try:
        yield machine
    finally:
        machine.close()
        shutil.rmtree(folder, ignore_errors=True)
