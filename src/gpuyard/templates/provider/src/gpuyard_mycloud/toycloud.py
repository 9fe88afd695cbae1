"""REPLACE: the vendor's SDK. This toy stands for it until then: a "cloud" that is a
folder and processes of this host.

A machine is a folder under `machines/`, and a process that waits until one of its type
is free and then becomes the command it was made with. It holds a lock for as long as it
lives, so that the kernel tells who is dead.
"""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

# How many machines there are of each type, and the GPUs of one; who comes when all are
# taken waits.
STOCK: Mapping[str, tuple[int, int]] = {
    "toy.cpu": (8, 0),
    "toy.t4": (2, 1),
    "toy.a100x2": (1, 2),
}
_TURN_S = 0.05


class CloudError(Exception):
    """What the cloud refused.

    `code` is its word for it: `AlreadyExists`, `NotFound`, `Throttled`, `AuthFailure`,
    …
    """

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(message or code)
        self.code = code


class Machine(NamedTuple):
    """One machine. `state`: `waiting`, `running`, or `stopped` for good."""

    name: str
    type: str
    tags: Mapping[str, str]
    created_at: float
    state: str


class ToyCloud:
    """The calls of the SDK. They block, as most SDKs' do."""

    def __init__(self, root: Path) -> None:
        self._machines = root / "machines"
        self._slots = root / "slots"
        self._started: list[subprocess.Popen[bytes]] = []

    def create_machine(
        self, name: str, kind: str, tags: Mapping[str, str], command: Sequence[str]
    ) -> None:
        """Start or queue a machine that runs `command` once.

        `AlreadyExists` for a name that is taken.
        """
        for folder in (self._machines, self._slots):
            folder.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".", dir=self._machines))
        about = {
            "type": kind,
            "tags": dict(tags),
            "created_at": time.time(),
            "command": list(command),
        }
        (draft / "machine.json").write_text(json.dumps(about))
        with (draft / "alive").open("w") as alive:
            fcntl.flock(alive, fcntl.LOCK_EX)
            try:
                draft.rename(self._machines / name)
            except OSError:
                shutil.rmtree(draft)
                raise CloudError(
                    "AlreadyExists", f"there is a machine {name}"
                ) from None
            boot = [sys.executable, "-I", __file__, str(self._machines / name)]
            clean = {
                key: os.environ[key]
                for key in ("PATH", "HOME", "LANG")
                if key in os.environ
            }
            process = subprocess.Popen(
                boot,
                env=clean,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=[alive.fileno()],
            )
        self._started = [
            child for child in [*self._started, process] if child.poll() is None
        ]

    def list_machines(self, tag: str) -> list[Machine]:
        """Every machine that bears the tag."""
        found = [self._look(folder) for folder in self._machines.glob("[!.]*")]
        return [machine for machine in found if machine and tag in machine.tags]

    def shut_down(self, name: str) -> None:
        """Send TERM to what runs there; a machine that waits is called off, one that
        has stopped stays as it is.
        """
        folder = self._machines / name
        if not folder.exists():
            raise CloudError("NotFound", f"there is no machine {name}")
        while _alive(folder):
            with suppress(FileNotFoundError, ValueError, ProcessLookupError):
                os.kill(int((folder / "pid").read_text()), signal.SIGTERM)
                return
            time.sleep(0.01)  # it has not written down its number yet

    def delete_machine(self, name: str) -> None:
        """Remove a machine that has stopped."""
        shutil.rmtree(self._machines / name, ignore_errors=True)

    def _look(self, folder: Path) -> Machine | None:
        try:
            state = "waiting"
            if not _alive(folder):
                state = "stopped"
            elif (folder / "running").exists():
                state = "running"
            about = json.loads((folder / "machine.json").read_text())
        except FileNotFoundError:  # removed in this moment
            return None
        return Machine(
            folder.name, about["type"], about["tags"], about["created_at"], state
        )


def _alive(folder: Path) -> bool:
    with (folder / "alive").open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _boot(folder: Path) -> None:
    """The machine's own process: wait for a free slot, then become the command, which
    inherits both locks.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    (folder / "pid").write_text(str(os.getpid()))
    about = json.loads((folder / "machine.json").read_text())
    while (slot := _take_slot(folder.parent.parent / "slots", about["type"])) is None:
        if signal.sigtimedwait({signal.SIGTERM}, _TURN_S):
            return
    (folder / "running").touch()
    gpus = STOCK[about["type"]][1]
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(
        str(slot * gpus + number) for number in range(gpus)
    )
    os.execvp(about["command"][0], about["command"])


def _take_slot(slots: Path, kind: str) -> int | None:
    for number in range(STOCK[kind][0]):
        file = os.open(slots / f"{kind}-{number}", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            continue
        os.set_inheritable(file, True)
        return number
    return None


if __name__ == "__main__":
    _boot(Path(sys.argv[1]))
