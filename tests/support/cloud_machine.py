"""What looks like a rented machine: it runs the user data as its first boot would.

It has a mount, a process and a network namespace of its own. Files that it writes end
with it. Stand-ins on its PATH take the place of what a test cannot have: each writes
down its words, and `poweroff` ends the machine with all that runs in it. systemd's
units are run by `systemctl.py`.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

from gpuyard.config.paths import Home
from tests.support.components import require
from tests.support.groups import remove_groups
from tests.support.network import Namespace, namespaces
from tests.support.programs import run_program
from tests.support.wait import wait_until

_OWN_FOLDERS = ("/etc", "/run", "/var/lib", "/var/log", "/opt", "/usr/local", "/home")
METADATA = "169.254.169.254"
"""The address of the metadata service of AWS."""
_METADATA_SERVICE = Path(__file__).with_name("metadata_service.py")
_SYSTEMCTL = Path(__file__).with_name("systemctl.py")
GPUYARD = f'exec {sys.executable} -m gpuyard.cli.entry "$@"'
"""This gpuyard, for a machine that joins in earnest."""
# Its words, each after the other, with NUL between them.
_RECORDING = """\
#!/bin/sh
calls={calls}
number=$(ls "$calls" | wc -l)
printf '%s\\0' {name} "$@" >"$calls/{name}-$$-$number"
{body}
"""
_APT_GET = """\
for word; do
    [ ! -d {folder}/packages/"$word" ] || cp {folder}/packages/"$word"/* {folder}/bin/
done
"""
# It notes how it ended before it tells process 1, which takes all with it.
_POWEROFF = "echo off >{folder}/off; echo off >{folder}/power"
_BOOT = """\
set -e
{mounts}
mount --bind {folder}/console /dev/console
mkfifo {folder}/power
sh -c 'read _ <{folder}/power' &
power=$!
sh {folder}/user-data &
wait $power
"""


class CloudMachine:
    """`folder` is for the test's files; `stand_ins` are programs by name, each with
    what its shell script does after it has written down its words.
    """

    def __init__(
        self, folder: Path, network: Namespace, stand_ins: Mapping[str, str]
    ) -> None:
        self.folder = folder
        self.network = network
        self.console = folder / "console"
        self.console.touch()
        self._calls = folder / "said"
        self._calls.mkdir()
        self._programs = folder / "bin"
        self._programs.mkdir()
        programs = {
            "apt-get": _APT_GET.format(folder=folder),
            "poweroff": _POWEROFF.format(folder=folder),
            "systemctl": f'exec {sys.executable} {_SYSTEMCTL} "$@"',
            **stand_ins,
        }
        self._write(self._programs, programs)
        self._boot: subprocess.Popen[bytes] | None = None
        self._metadata: subprocess.Popen[bytes] | None = None

    def _write(self, folder: Path, programs: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, body in programs.items():
            text = _RECORDING.format(calls=self._calls, name=name, body=body)
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)

    def add_package(self, name: str, programs: Mapping[str, str]) -> Path:
        """A package that can be installed, with these stand-ins; its folder."""
        folder = self.folder / "packages" / name
        self._write(folder, programs)
        return folder

    def add_gpuyard(self, gpuyard: str = GPUYARD, pip: str = "") -> None:
        """Its image has an environment with gpuyard; what the programs in it do."""
        programs = {"pip": pip, "gpuyard": gpuyard}
        self._write(self.file("/opt/gpuyard/bin"), programs)

    def write(self, path: str, text: str) -> None:
        """Its image has this file."""
        self.file(path).parent.mkdir(parents=True, exist_ok=True)
        self.file(path).write_text(text)

    def start(self, user_data: str) -> None:
        """Boot it for the first time."""
        (self.folder / "user-data").write_bytes(user_data.encode())
        script = _BOOT.format(folder=self.folder, mounts=self._mounts())
        namespaces_of_its_own = (
            *("unshare", "--mount", "--propagation", "private"),
            *("--pid", "--fork", "--kill-child", "--mount-proc"),
        )
        self._boot = subprocess.Popen(
            [*self.network.prefix, *namespaces_of_its_own, "sh", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=(self.folder / "output").open("wb"),
            stderr=subprocess.STDOUT,
            env={
                "PATH": f"{self._programs}:{os.defpath}:/usr/sbin:/sbin",
                "LANG": "C.UTF-8",
                "SYSTEMD_FAKE": str(self.folder),
                "TESTS_REAL_PYTHON": "1",
            },
        )

    def _mounts(self) -> str:
        layers = self.folder / "layers"
        layers.mkdir(exist_ok=True)
        lines: list[str] = []
        for path in _OWN_FOLDERS:
            upper = layers / path.strip("/").replace("/", "-")
            work = upper.with_name(f"{upper.name}.work")
            upper.mkdir(exist_ok=True)
            work.mkdir()
            lines.append(
                f"mount -t overlay overlay -o"
                f" lowerdir={path},upperdir={upper},workdir={work} {path}"
            )
        return "\n".join(lines)

    @property
    def is_on(self) -> bool:
        """Whether anything runs on it."""
        return self._boot is not None and self._boot.poll() is None

    @property
    def said(self) -> str:
        """All that can be read of it: its console, and the log of its first boot."""
        log = self.file("/var/log/gpuyard-boot.log")
        parts = [self.console, self.folder / "output", log]
        return "\n".join(f"--- {part}\n{_text(part)}" for part in parts)

    def file(self, path: str) -> Path:
        """Where a file that was written on it can be read."""
        top = next(top for top in _OWN_FOLDERS if path.startswith(f"{top}/"))
        upper = self.folder / "layers" / top.strip("/").replace("/", "-")
        return upper / path[len(top) + 1 :]

    def calls(self, program: str) -> list[list[str]]:
        """The words of each call of a stand-in, in order."""
        files = self._calls.glob(f"{program}-*-*")
        ordered = sorted(files, key=lambda file: int(file.name.rsplit("-", 1)[1]))
        return [file.read_bytes().decode().split("\0")[1:-1] for file in ordered]

    def wait_until_off(self, within_s: float = 60) -> None:
        """Wait until it has ended itself."""
        assert self._boot
        try:
            wait_until(lambda: not self.is_on, within_s, "it to end")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.said}") from None
        assert (self.folder / "off").exists(), self.said

    def run(self, *words: str) -> str:
        """What a command on it prints."""
        assert self._boot
        (init,) = psutil.Process(self._boot.pid).children()
        entered = ("nsenter", "--target", str(init.pid), "--mount", "--pid")
        return run_program([*entered, *words]).stdout

    def give_notice(self, text: str) -> None:
        """The cloud takes it back: its metadata service says so."""
        draft = self.folder / "notice.new"
        draft.write_text(text)
        draft.rename(self.folder / "notice")

    def start_metadata_service(self) -> None:
        """Start that of AWS, at its own address."""
        far = ("ip", "-n", self.network.name, "addr", "add", f"{METADATA}/32")
        run_program([*far, "dev", "lo"])
        words = [METADATA, "80", str(self.folder / "notice")]
        self._metadata = subprocess.Popen(
            [*self.network.prefix, sys.executable, "-I", _METADATA_SERVICE, *words]
        )

    def close(self) -> None:
        """End all that runs on it."""
        for process in (self._boot, self._metadata):
            if process:
                process.kill()  # unshare takes its child, process 1, with it
                process.wait()
        remove_groups(Home(self.file("/var/lib/gpuyard-node")))


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


@contextmanager
def cloud_machine(
    stand_ins: Mapping[str, str] | None = None,
) -> Iterator[CloudMachine]:
    """A machine that has not booted; its processes and files are gone afterwards."""
    require("other-users", os.getuid() == 0)
    folder = Path(tempfile.mkdtemp(prefix="gy-", dir="/tmp"))
    folder.chmod(0o755)
    (folder / "layers").mkdir()
    # An upper layer of an overlay cannot lie on an overlay.
    subprocess.run(shlex.split(f"mount -t tmpfs none {folder}/layers"), check=True)
    try:
        with namespaces(1) as (network,):
            machine = CloudMachine(folder, network, stand_ins or {})
            try:
                yield machine
            finally:
                machine.close()
    finally:
        subprocess.run(["umount", "--lazy", f"{folder}/layers"], check=False)
        shutil.rmtree(folder, ignore_errors=True)
