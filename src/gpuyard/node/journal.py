"""The agent's memory: one append-only file for all attempts, written with plain writes.
To make a file for each would cost more than to start a short job.

Nothing is synced to disk: a reboot kills the jobs anyway.
"""

import json
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import structlog

from gpuyard.config.boot_clock import boot_clock_s
from gpuyard.domain import wire
from gpuyard.domain.artifacts import ArtifactsSaved
from gpuyard.node.line_file import LineFile
from gpuyard.storage.log_times import times_path
from gpuyard.storage.packed_log import draft_path, packed_path
from gpuyard.storage.untrusted import remove_tree

# A longer file is cleared of attempts that are forgotten.
_LONGEST_BYTES = 4 << 20
_SECRETS = ".secrets"
# The endings of logs, as they are and compressed.
_LOGS = ("log", "log.zst")
# What each line begins with; its attempt follows.
_KEY = b'{"attempt":"'
log = structlog.get_logger(__name__)


@dataclass(slots=True)
class JournalEntry:
    """What the journal knows about an attempt. Times are UTC seconds; `monotonic` is a
    time on the clock of the boot `boot_id`.

    `keeper` is the keeper of the agent (see `own_keeper`) at `intended_at`, just before
    the agent started the attempt. `first_group`: the name of the control group of the
    agent's pool in which the attempt begins, empty if it begins in none. `uid` is that
    of the account that the attempt runs under, if that is not the agent's.
    `input_holder`: pid and start ticks of the process that keeps the input of an
    interactive job open (`input_pipe.py`); `input_ended`: somebody has ended that
    input. `boot_s`: when it started, in seconds of the boot clock
    (`config/boot_clock.py`). `facts`: with what it runs (`run_facts.py`).
    """

    start: wire.StartAttempt
    boot_id: str
    keeper: int = 0
    intended_at: float = 0.0
    first_group: str = ""
    uid: int | None = None
    input_holder: tuple[int, int] | None = None
    input_ended: bool = False
    pid: int | None = None
    start_ticks: int = 0
    started_at: float | None = None
    monotonic: float = 0.0
    boot_s: float | None = None
    limits: Mapping[str, str] = field(default_factory=dict[str, str])
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    stopping: str = ""
    ended: wire.Ended | None = None
    checkpoints: list[wire.CheckpointSaved] = field(
        default_factory=list[wire.CheckpointSaved]
    )
    artifacts: list[ArtifactsSaved] = field(default_factory=list[ArtifactsSaved])


class AttemptJournal:
    """The journal, the logs and the own folders of a node's attempts, in one folder.
    Threads may share it.

    `private_root`: where the attempts' own folders are, if not there.
    """

    def __init__(self, folder: Path, private_root: Path | None = None) -> None:
        self.folder = folder
        self._private_root = private_root or folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # A thread that has it may need it again.
        self._lock = threading.RLock()
        self._file = LineFile(folder / "journal")
        self._longest_bytes = _LONGEST_BYTES
        # The attempts with a record.
        self._held = set(self._lines_by_attempt())
        # Those with a file for their secrets.
        self._have_secrets = _stems(folder, _SECRETS)

    def log_path(self, attempt_id: str) -> Path:
        """Where the attempt's output is; kept after the journal is forgotten."""
        return self.folder / f"{attempt_id}.log"

    def delete_log(self, attempt_id: str) -> None:
        """Delete the attempt's output, with what was noted of it. OSError."""
        log = self.log_path(attempt_id)
        for path in (log, packed_path(log), draft_path(log), times_path(log)):
            path.unlink(missing_ok=True)

    def private(self, attempt_id: str) -> Path:
        """The attempt's own folder: for its working directory if it named none, and for
        the checkpoint that it resumes from.
        """
        return self._private_root / attempt_id

    def _secrets(self, attempt_id: str) -> Path:
        return self.folder / f"{attempt_id}{_SECRETS}"

    def intend(
        self, start: wire.StartAttempt, boot_id: str, first_group: str = ""
    ) -> JournalEntry:
        """Note that the attempt is about to be started, in a group of the pool if one
        is named.

        Its secrets go into a file of their own, which is removed at its end. OSError
        when something cannot be written.
        """
        keeper = own_keeper()
        now = time.time()
        facts = {
            "boot_id": boot_id,
            "keeper": keeper,
            "intended_at": now,
            "first_group": first_group,
        }
        try:
            public = start
            if start.secrets:
                self._keep_secrets(start)
                public = msgspec.structs.replace(start, secrets={})
            self._append(_line(start.attempt_id, {"start": public, **facts}))
        except OSError:
            self.forget_secrets(start.attempt_id)
            raise
        self._held.add(start.attempt_id)
        return JournalEntry(start, boot_id, keeper, now, first_group)

    def _keep_secrets(self, start: wire.StartAttempt) -> None:
        self._have_secrets.add(start.attempt_id)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        path = self._secrets(start.attempt_id)
        with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
            file.write(msgspec.json.encode(start.secrets))

    def forget_secrets(self, attempt_id: str) -> None:
        """The attempt is over: nothing needs its secrets any more."""
        if attempt_id in self._have_secrets:
            self._secrets(attempt_id).unlink(missing_ok=True)
            self._have_secrets.discard(attempt_id)

    def note(self, attempt_id: str, **facts: Any) -> None:
        """Note facts, which are fields of `JournalEntry`.

        On a full disk they are lost with this agent. Nothing is noted of an attempt
        that is forgotten, such as the end of its input that somebody typed too late:
        without its beginning no agent could read it.
        """
        with self._lock:
            if attempt_id in self._held:
                self._note([attempt_id], facts)

    def _note(self, attempt_ids: Sequence[str], facts: Mapping[str, Any]) -> None:
        try:
            self._append(*(_line(attempt_id, facts) for attempt_id in attempt_ids))
        except OSError as error:
            log.warning(
                "not noted in the journal",
                attempts=attempt_ids,
                facts=list(facts),
                error=str(error),
            )

    def note_started(self, record: JournalEntry) -> None:
        """Note the process of a record, which has just been started."""
        record.started_at = time.time()
        record.monotonic = time.monotonic()
        record.boot_s = boot_clock_s()
        facts = {"facts": record.facts} if record.facts else {}
        self.note(
            record.start.attempt_id,
            **facts,
            pid=record.pid,
            start_ticks=record.start_ticks,
            started_at=record.started_at,
            monotonic=record.monotonic,
            boot_s=record.boot_s,
            limits=record.limits,
        )

    def note_checkpoint(self, saved: wire.CheckpointSaved) -> None:
        """Note a checkpoint, so that the next agent does not take it for a new one."""
        self.note(saved.attempt_id, checkpoint=saved)

    def note_artifacts(self, saved: ArtifactsSaved) -> None:
        """Note artifacts, so that the next agent reports them again."""
        self.note(saved.attempt_id, artifacts=saved)

    def forget(self, *attempt_ids: str) -> None:
        """The attempts are settled: only their logs and own working directories
        stay.
        """
        with self._lock:
            held = [it for it in attempt_ids if it in self._held]
            if held:
                self._note(held, {"forgotten": True})
                self._held.difference_update(held)
        for attempt_id in attempt_ids:
            self.forget_secrets(attempt_id)
            self._forget_folder(f"{self._private_root}/{attempt_id}")

    def _forget_folder(self, folder: str) -> None:
        """Date the attempt's own folder by its end, and remove what it resumed from."""
        with suppress(OSError):
            os.utime(folder)
            remove_tree(Path(folder, "resume"))
            os.utime(folder)

    def discard(self, attempt_ids: Iterable[str]) -> None:
        """Delete the logs and own folders of attempts that have no record."""
        for attempt_id in attempt_ids:
            if attempt_id not in self._held:
                self.delete_log(attempt_id)
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
                if is_folder != folders or (not folders and ending not in _LOGS):
                    continue
                changed_at = entry.stat(follow_symlinks=False).st_mtime
                if changed_at < limit and attempt_id not in self._held:
                    found.append(attempt_id)
        return found

    def holds(self, attempt_id: str) -> bool:
        """True if there is a record, or the log of an attempt whose record was
        forgotten.
        """
        return attempt_id in self._held or self.has_log(attempt_id)

    def has_log(self, attempt_id: str) -> bool:
        """Whether it was begun at some time, and its log is still there."""
        log = f"{self.folder}/{attempt_id}.log"
        return os.path.exists(log) or os.path.exists(f"{log}.zst")  # noqa: PTH110  (once for each attempt)

    def is_settled(self, attempt_id: str) -> bool:
        """Whether it was an attempt of this node, and its record was forgotten."""
        return attempt_id not in self._held and self.has_log(attempt_id)

    def records(self) -> list[JournalEntry]:
        """Every attempt that is not settled, oldest first. Secrets of others are
        removed.
        """
        found: list[JournalEntry] = []
        for attempt_id, lines in self._lines_by_attempt().items():
            record = _read(attempt_id, lines)
            if record is None:
                continue
            if record.ended is None:
                record.start = self._with_secrets(record.start)
            found.append(record)
        self._sweep_secrets()
        _take_first_groups_from_older(found)
        return found

    def _with_secrets(self, start: wire.StartAttempt) -> wire.StartAttempt:
        try:
            content = self._secrets(start.attempt_id).read_bytes()
            secrets = msgspec.json.decode(content, type=dict[str, str])
        except (FileNotFoundError, msgspec.MsgspecError):
            return start
        return msgspec.structs.replace(start, secrets=secrets)

    def _sweep_secrets(self) -> None:
        """An agent that was killed may have left them behind."""
        for attempt_id in self._have_secrets - self._held:
            self.forget_secrets(attempt_id)

    # --- the file ---

    def _append(self, *lines: bytes) -> None:
        with self._lock:
            self._file.append(*lines)
            if self._file.size > self._longest_bytes:
                self._drop_forgotten()

    def _drop_forgotten(self) -> None:
        """Keep only the lines of attempts that are not forgotten."""
        try:
            held = self._lines_by_attempt().values()
            self._file.replace(line for lines in held for line in lines)
        except OSError as error:
            log.warning("the journal could not be shortened", error=str(error))
        # It grows to twice this size, or what was written is written again and again.
        self._longest_bytes = max(_LONGEST_BYTES, 2 * self._file.size)

    def _lines_by_attempt(self) -> dict[str, list[bytes]]:
        """The lines of each attempt that is not forgotten, oldest first."""
        found: dict[str, list[bytes]] = {}
        for line in self._file.lines():
            attempt_id, rest = _split(line)
            if rest == b',"forgotten":true}':
                found.pop(attempt_id, None)
            elif attempt_id:
                found.setdefault(attempt_id, []).append(line)
            else:
                log.error("a line of the journal cannot be read", line=repr(line[:200]))
        return found


def _line(attempt_id: str, facts: Mapping[str, Any]) -> bytes:
    return msgspec.json.encode({"attempt": attempt_id, **facts})


def _stems(folder: Path, ending: str) -> set[str]:
    """The names of the files with this ending, without it."""
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries]
    return {name.removesuffix(ending) for name in names if name.endswith(ending)}


def _split(line: bytes) -> tuple[str, bytes]:
    """The attempt of a line, and what follows it; an empty name for what is no line of
    a journal.
    """
    name, quote, rest = line.removeprefix(_KEY).partition(b'"')
    if not line.startswith(_KEY) or not quote:
        return "", b""
    return name.decode(errors="replace"), rest


def _take_first_groups_from_older(records: Sequence[JournalEntry]) -> None:
    """Leave each group of the pool to the last attempt that began there: those before
    have left it.
    """
    holders = {record.first_group: record for record in records}
    for record in records:
        if holders[record.first_group] is not record:
            record.first_group = ""


def own_keeper() -> int:
    """The pid of the keeper that started this agent; 0 when that keeper is gone,
    because then nobody records how orphans end.

    The parent's pid alone is not enough: two agents whose keepers are gone have the
    same parent.
    """
    parent = os.getppid()
    return parent if os.environ.get("GPUYARD_KEEPER") == str(parent) else 0


def _read(attempt_id: str, lines: Iterable[bytes]) -> JournalEntry | None:
    try:
        return _fold([json.loads(line) for line in lines])
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        log.error(
            "what the journal says of an attempt cannot be read and is left alone",
            attempt=attempt_id,
            error=str(error),
        )
        return None


def _fold(lines: list[dict[str, Any]]) -> JournalEntry:
    first = lines[0]
    start = msgspec.convert(first["start"], wire.StartAttempt)
    record = JournalEntry(
        start,
        first["boot_id"],
        first["keeper"],
        first["intended_at"],
        # An agent of an earlier version had no pool.
        first.get("first_group", ""),
    )
    for facts in lines[1:]:
        if "checkpoint" in facts:
            record.checkpoints.append(
                msgspec.convert(facts["checkpoint"], wire.CheckpointSaved)
            )
            continue
        if "artifacts" in facts:
            record.artifacts.append(msgspec.convert(facts["artifacts"], ArtifactsSaved))
            continue
        if facts.get("ended"):
            facts["ended"] = msgspec.convert(facts["ended"], wire.Ended)
        for name, value in facts.items():
            if name != "attempt":
                setattr(record, name, value)
    return record
