"""A real Docker daemon for tests, in a folder of its own, with one small image that has
a shell and Python.
"""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.components import require
from tests.support.programs import run_program
from tests.support.wait import wait_until

IMAGE = "gpuyard-tests:1"
# What asks for GPUs is satisfied by a hook of this name; there are none here.
_HOOK = "#!/bin/sh\nexit 0\n"


class Dockerd:
    """The daemon; `start` and `stop` may be called again and again."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="gpuyard-docker-"))
        self._process: subprocess.Popen[bytes] | None = None
        hook = self.folder / "bin" / "nvidia-container-runtime-hook"
        hook.parent.mkdir()
        hook.write_text(_HOOK)
        hook.chmod(0o755)

    @property
    def host(self) -> str:
        """Its address."""
        return f"unix://{self.folder}/d.sock"

    def start(self) -> None:
        """Start it and wait until it answers."""
        path = f"{self.folder}/bin:{os.environ['PATH']}:/usr/sbin:/sbin"
        words = [
            "dockerd",
            "--data-root",
            f"{self.folder}/data",
            "--exec-root",
            f"{self.folder}/exec",
            "-H",
            self.host,
            "-p",
            f"{self.folder}/d.pid",
            "--live-restore",
        ]
        with _one_at_a_time(), (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "TERM", *words],
                stdout=log,
                stderr=log,
                env={**os.environ, "PATH": path},
            )
            wait_until(self._answers, what="dockerd")

    def _answers(self) -> bool:
        """AssertionError with its last words when it has ended."""
        process = self._process
        if process is None or process.poll() is not None:
            last = (self.folder / "log").read_text().splitlines()[-20:]
            raise AssertionError("\n".join(["dockerd ended:", *last]))
        return self.call("version", check=False).returncode == 0

    def stop(self, *, kill: bool = False) -> None:
        """End it; what runs in containers runs on."""
        if self._process:
            self._process.kill() if kill else self._process.terminate()
            self._process.wait(30)
            self._process = None
            (self.folder / "d.pid").unlink(missing_ok=True)
            # Its containerd goes with it; one that is not gone yet would be taken for
            # running by the next daemon.
            pid = self.folder / "exec" / "containerd" / "containerd.pid"
            wait_until(
                lambda: not (pid.exists() and Path("/proc", pid.read_text()).exists()),
                what="containerd's end",
            )

    def call(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """The `docker` command."""
        command = ["docker", "-H", self.host, *words]
        if check:
            return run_program(command)
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def remove(self) -> None:
        """End everything, the containers first."""
        ids = self.call("ps", "-aq", check=False).stdout.split()
        if ids:
            self.call("rm", "-f", *ids, check=False)
        self.stop()
        for mount in sorted(_mounts(self.folder), reverse=True):
            subprocess.run(["umount", "-l", mount], check=False, capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def _one_at_a_time() -> Generator[None]:
    """Daemons that start make the same chains of iptables, and fail if another one makes
    them just then.
    """
    place = Path(tempfile.gettempdir(), "gpuyard-dockerd.lock")
    with place.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _mounts(below: Path) -> list[str]:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [
        words[1] for line in lines if (words := line.split())[1].startswith(str(below))
    ]


def make_image() -> Path:
    """A Debian with Python as a tar, made once (under a minute) and kept in the
    cache.
    """
    cache = (
        Path(os.environ.get("GPUYARD_CACHE") or "~/.cache/gpuyard").expanduser()
        / "tests"
    )
    cache.mkdir(parents=True, exist_ok=True)
    image = cache / "bookworm-python3.tar"
    with (cache / "image.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not image.exists():
            with tempfile.TemporaryDirectory(dir=cache) as folder:
                words = [
                    "debootstrap",
                    "--variant=minbase",
                    "--include=python3",
                    "bookworm",
                    f"{folder}/root",
                ]
                run_program(words)
                subprocess.run(
                    ["tar", "-C", f"{folder}/root", "-cf", f"{folder}/tar", "."],
                    check=True,
                )
                Path(f"{folder}/tar").rename(image)
    return image


def _load_image(daemon: Dockerd) -> None:
    """Give a new daemon the image: seconds once, and files that others have, too, from
    then on.

    The layers of images are only ever read: a container writes into a copy.
    """
    image = make_image()
    asked = daemon.call("info", "-f", "{{.ServerVersion}} {{.Driver}}")
    version, driver = asked.stdout.split()
    if driver != "overlay2":
        _import_image(daemon, image)
        return
    kept = image.parent / f"docker-{version}-{image.stat().st_mtime_ns}"
    data = daemon.folder / "data"
    with (image.parent / "docker.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if kept.exists():
            daemon.stop()
            _copy_layers(kept, data)
        else:
            _import_image(daemon, image)
            daemon.stop()
            half = kept.with_name(f"{kept.name}.half")
            _copy_layers(data, half)
            half.rename(kept)
    daemon.start()
    daemon.call("image", "inspect", IMAGE)


def _import_image(daemon: Dockerd, image: Path) -> None:
    with image.open("rb") as file:
        run_program(["docker", "-H", daemon.host, "import", "-", IMAGE], stdin=file)


def _copy_layers(data: Path, to: Path) -> None:
    """The images of one daemon for another; files of layers are shared where one file
    system has both.
    """
    to.mkdir(exist_ok=True)
    for name in ("image", "overlay2"):
        shutil.rmtree(to / name, ignore_errors=True)
    run_program(["cp", "-a", f"{data}/image", f"{to}/image"])
    shares = data.stat().st_dev == to.stat().st_dev
    run_program(["cp", "-al" if shares else "-a", f"{data}/overlay2", f"{to}/overlay2"])


def can_run_docker() -> bool:
    """Whether this machine has the programs, and this user the right."""
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    programs = ("dockerd", "debootstrap", "runc")
    installed = all(shutil.which(name, path=path) for name in programs)
    return installed and os.geteuid() == 0


@pytest.fixture(scope="session")
def dockerd() -> Iterator[Dockerd]:
    """A daemon with IMAGE in it."""
    require("docker", can_run_docker())
    daemon = Dockerd()
    try:
        daemon.start()
        _load_image(daemon)
        yield daemon
    finally:
        daemon.remove()
