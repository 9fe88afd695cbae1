"""The files that the keeper writes: its lock, its log, and the records of exits.

Only the standard library, as `keeper.py` says.
"""

import fcntl
import json
import os
import time
from contextlib import suppress
from pathlib import Path

_LOG_BYTES = 1_000_000
_KEEP_RECORDS_S = 86_400.0
_PRUNE_EVERY_S = 3_600.0
_LOCK_TRIES = 20


def take_lock(path: Path) -> int | None:
    """Lock the file and write this process's pid to it; None if another keeper holds
    the lock.
    """
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    # A process that checks whether a keeper runs holds the lock for a moment.
    for _ in range(_LOCK_TRIES):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            time.sleep(0.01)
    else:
        os.close(lock)
        return None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


class KeeperLog:
    """A log file with a time in each line; when it is full it is moved to
    `keeper.log.1`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, text: str) -> None:
        """Append a line. On a full disk the line is lost, because the keeper must go
        on.
        """
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with suppress(OSError):
            if self.path.exists() and self.path.stat().st_size > _LOG_BYTES:
                self.path.replace(self.path.with_suffix(".log.1"))
            with self.path.open("a") as file:
                file.write(f"{stamp} [{os.getpid()}] {text}\n")


class ExitRecords:
    """The folder of exit records, `PID-START.json` each."""

    def __init__(self, folder: Path, log: KeeperLog) -> None:
        self._folder = folder
        self._log = log
        self._pruned_at = 0.0
        self._unwritten: dict[str, str] = {}

    @property
    def pending(self) -> bool:
        """True while records could not be written yet."""
        return bool(self._unwritten)

    def record(
        self,
        pid: int,
        start_ticks: int,
        code: int | None,
        signum: int | None,
        attempt: str,
        uid: int,
    ) -> None:
        """Record how a process of the user `uid` ended; on a full disk, as soon as
        there is room.
        """
        content = {
            "pid": pid,
            "start_ticks": start_ticks,
            "code": code,
            "signal": signum,
            "at": time.time(),
            "boot_s": time.clock_gettime(time.CLOCK_BOOTTIME),
            "attempt": attempt,
            "uid": uid,
        }
        self._unwritten[f"{pid}-{start_ticks}.json"] = json.dumps(content)
        self.flush()

    def flush(self) -> None:
        """Write the pending records, each whole or not at all, and now and then remove
        old ones.
        """
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            for name, content in list(self._unwritten.items()):
                draft = self._folder / f"{name}.new"
                draft.write_text(content)
                draft.replace(self._folder / name)
                del self._unwritten[name]
            self._prune()
        except OSError as error:
            self._log.write(f"cannot write to {self._folder}, will try again: {error}")

    def _prune(self) -> None:
        now = time.time()
        if now - self._pruned_at < _PRUNE_EVERY_S:
            return
        self._pruned_at = now
        for file in self._folder.iterdir():
            if now - file.stat().st_mtime > _KEEP_RECORDS_S:
                file.unlink(missing_ok=True)
