"""The agent's memory: one small append-only file per attempt, written with plain
writes.

Nothing is synced to disk: a reboot kills the jobs anyway, and what a killed agent wrote
is in the page cache. Only the last line can be torn by a kill; it is cut off.
"""

import errno
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import structlog

from gpuyard.domain import wire
from gpuyard.storage.untrusted import remove_tree

_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
log = structlog.get_logger(__name__)


@dataclass(slots=True)
class AttemptRecord:
    """What the journal knows about an attempt. Times are UTC seconds; `monotonic` is a
    time on the clock of the boot `boot_id`.

    `keeper` is the keeper of the agent (see `own_keeper`) at `intended_at`, just before
    the agent started the attempt. `uid` is that of the account that the attempt runs
    under, if that is not the agent's. `input_holder`: pid and start ticks of the
    process that keeps the input of an interactive job open (`input_pipe.py`);
    `input_ended`: somebody has ended that input. `boot_s`: when it started, in seconds
    of the boot clock (`config/boot_clock.py`).
    """

    start: wire.StartAttempt
    boot_id: str
    keeper: int = 0
    intended_at: float = 0.0
    uid: int | None = None
    input_holder: tuple[int, int] | None = None
    input_ended: bool = False
    pid: int | None = None
    start_ticks: int = 0
    started_at: float | None = None
    monotonic: float = 0.0
    boot_s: float | None = None
    limits: Mapping[str, str] = field(default_factory=dict[str, str])
    stopping: str = ""
    ended: wire.Ended | None = None
    checkpoints: list[wire.CheckpointSaved] = field(
        default_factory=list[wire.CheckpointSaved]
    )


class AttemptJournal:
    """The journals and logs of a node's attempts, in one folder.

    `private_root`: where the attempts' own folders are, if not there.
    """

    def __init__(self, folder: Path, private_root: Path | None = None) -> None:
        self.folder = folder
        self._private_root = private_root or folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def log_path(self, attempt_id: str) -> Path:
        """Where the attempt's output is; kept after the journal is forgotten."""
        return self.folder / f"{attempt_id}.log"

    def private(self, attempt_id: str) -> Path:
        """The attempt's own folder: for its working directory if it named none, and for
        the checkpoint that it resumes from.
        """
        return self._private_root / attempt_id

    def _path(self, attempt_id: str) -> Path:
        return self.folder / f"{attempt_id}.journal"

    def _secrets(self, attempt_id: str) -> Path:
        return self.folder / f"{attempt_id}.secrets"

    def intend(self, start: wire.StartAttempt, boot_id: str) -> AttemptRecord:
        """Note that the attempt is about to be started.

        Its secrets go into a file of their own, which is removed at its end. OSError
        when something cannot be written.
        """
        keeper = own_keeper()
        now = time.time()
        facts = {"boot_id": boot_id, "keeper": keeper, "intended_at": now}
        try:
            self._keep_secrets(start)
            public = msgspec.structs.replace(start, secrets={})
            self._append(start.attempt_id, {"start": public, **facts})
        except OSError:
            self._path(start.attempt_id).unlink(missing_ok=True)
            self.forget_secrets(start.attempt_id)
            raise
        return AttemptRecord(start, boot_id, keeper, now)

    def _keep_secrets(self, start: wire.StartAttempt) -> None:
        if not start.secrets:
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        path = self._secrets(start.attempt_id)
        with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
            file.write(msgspec.json.encode(start.secrets))

    def forget_secrets(self, attempt_id: str) -> None:
        """The attempt is over: nothing needs its secrets any more."""
        self._secrets(attempt_id).unlink(missing_ok=True)

    def note(self, attempt_id: str, **facts: Any) -> None:
        """Note facts, which are fields of `AttemptRecord`.

        On a full disk they are lost with this agent.
        """
        try:
            self._append(attempt_id, facts)
        except OSError as error:
            log.warning(
                "not noted in the journal",
                attempt=attempt_id,
                facts=list(facts),
                error=str(error),
            )

    def note_checkpoint(self, saved: wire.CheckpointSaved) -> None:
        """Note a checkpoint, so that the next agent does not take it for a new one."""
        self.note(saved.attempt_id, checkpoint=saved)

    def forget(self, attempt_id: str) -> None:
        """The attempt is settled: only its log and its own working directory stay."""
        self._path(attempt_id).unlink(missing_ok=True)
        self.forget_secrets(attempt_id)
        resume = f"{self._private_root}/{attempt_id}/resume"
        if os.path.exists(resume):  # noqa: PTH110
            remove_tree(Path(resume))
        # Its folder is as old as its end, however long it ran.
        with suppress(OSError):
            os.utime(f"{self._private_root}/{attempt_id}")

    def discard(self, attempt_ids: Iterable[str]) -> None:
        """Delete the logs and own folders of attempts that have no record."""
        for attempt_id in attempt_ids:
            if not self._path(attempt_id).exists():
                self.log_path(attempt_id).unlink(missing_ok=True)
                remove_tree(self.private(attempt_id))

    def settled_before(self, limit: float, *, folders: bool) -> list[str]:
        """The attempts without a record whose log, or own folder, was last changed
        before the time `limit`.
        """
        found: list[str] = []
        with os.scandir(self._private_root if folders else self.folder) as entries:
            for entry in entries:
                is_folder = entry.is_dir(follow_symlinks=False)
                attempt_id, _, ending = entry.name.partition(".")
                if is_folder != folders or (not folders and ending != "log"):
                    continue
                changed_at = entry.stat(follow_symlinks=False).st_mtime
                if changed_at < limit and not self._path(attempt_id).exists():
                    found.append(attempt_id)
        return found

    def holds(self, attempt_id: str) -> bool:
        """True if there is a record, or the log of an attempt whose record was
        forgotten.
        """
        return self._path(attempt_id).exists() or self.log_path(attempt_id).exists()

    def records(self) -> Iterator[AttemptRecord]:
        """Every attempt that is not settled, oldest first. Secrets of others are
        removed.
        """
        for path in sorted(self.folder.glob("*.journal")):
            record = _read(path)
            if record is None:
                continue
            if record.ended is None:
                record.start = self._with_secrets(record.start)
            yield record
        self._sweep_secrets()

    def _with_secrets(self, start: wire.StartAttempt) -> wire.StartAttempt:
        try:
            content = self._secrets(start.attempt_id).read_bytes()
            secrets = msgspec.json.decode(content, type=dict[str, str])
        except (FileNotFoundError, msgspec.MsgspecError):
            return start
        return msgspec.structs.replace(start, secrets=secrets)

    def _sweep_secrets(self) -> None:
        """An agent that was killed may have left them behind."""
        for path in self.folder.glob("*.secrets"):
            if not self._path(path.stem).exists():
                path.unlink(missing_ok=True)

    def _append(self, attempt_id: str, facts: Mapping[str, Any]) -> None:
        line = msgspec.json.encode(facts) + b"\n"
        file = os.open(f"{self.folder}/{attempt_id}.journal", _APPEND, 0o600)
        try:
            written = os.write(file, line)
            if written < len(line):
                os.ftruncate(file, os.fstat(file).st_size - written)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(file)


def own_keeper() -> int:
    """The pid of the keeper that started this agent; 0 when that keeper is gone,
    because then nobody records how orphans end.

    The parent's pid alone is not enough: two agents whose keepers are gone have the
    same parent.
    """
    parent = os.getppid()
    return parent if os.environ.get("GPUYARD_KEEPER") == str(parent) else 0


def _read(path: Path) -> AttemptRecord | None:
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole == 0:
        path.unlink()  # the first line is torn: the attempt was not started
        return None
    os.truncate(path, whole)
    try:
        return _fold([json.loads(line) for line in content[:whole].splitlines()])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        log.error(
            "a journal cannot be read and is left alone",
            path=str(path),
            error=str(error),
        )
        return None


def _fold(lines: list[dict[str, Any]]) -> AttemptRecord:
    first = lines[0]
    start = msgspec.convert(first["start"], wire.StartAttempt)
    record = AttemptRecord(
        start, first["boot_id"], first["keeper"], first["intended_at"]
    )
    for facts in lines[1:]:
        if "checkpoint" in facts:
            record.checkpoints.append(
                msgspec.convert(facts["checkpoint"], wire.CheckpointSaved)
            )
            continue
        if facts.get("ended"):
            facts["ended"] = msgspec.convert(facts["ended"], wire.Ended)
        for name, value in facts.items():
            setattr(record, name, value)
    return record
