"""The agent's memory: one small append-only file per attempt, written with plain writes.

A reboot kills the jobs anyway, so nothing is synced; a killed agent's writes are in the page cache and survive it.
A record torn by the kill is the last line, and is ignored.
"""

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from gpuyard.domain import wire


@dataclass(slots=True)
class Record:
    """All that the journal knows of an attempt; times in UTC seconds, `monotonic` on the clock of `boot_id`'s boot."""

    start: wire.Start
    boot_id: str
    pid: int | None = None
    start_ticks: int = 0
    started_at: float | None = None
    monotonic: float = 0.0
    limits: Mapping[str, str] = field(default_factory=dict[str, str])
    stopping: str = ""
    ended: wire.Ended | None = None
    checkpoints: list[wire.CheckpointSaved] = field(default_factory=list[wire.CheckpointSaved])


class Journal:
    """The journals and logs of a node's attempts, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def log_path(self, attempt_id: str) -> Path:
        """Where the attempt's output is; kept after the journal is forgotten."""
        return self.folder / f"{attempt_id}.log"

    def private(self, attempt_id: str) -> Path:
        """The attempt's own folder: its working directory when it named none, the checkpoint it resumes from."""
        return self.folder / attempt_id

    def _path(self, attempt_id: str) -> Path:
        return self.folder / f"{attempt_id}.journal"

    def intend(self, start: wire.Start, boot_id: str) -> Record:
        """Note that the attempt is about to be started, before it is."""
        self._append(start.attempt_id, {"start": msgspec.to_builtins(start), "boot_id": boot_id})
        return Record(start, boot_id)

    def note(self, attempt_id: str, **facts: Any) -> None:
        """Note facts: fields of Record."""
        self._append(attempt_id, {name: msgspec.to_builtins(value) for name, value in facts.items()})

    def note_checkpoint(self, saved: wire.CheckpointSaved) -> None:
        """Note a checkpoint, so that the next agent does not take it for a new one."""
        self._append(saved.attempt_id, {"checkpoint": msgspec.to_builtins(saved)})

    def forget(self, attempt_id: str) -> None:
        """The attempt is settled: only its log and its own working directory stay."""
        self._path(attempt_id).unlink(missing_ok=True)
        shutil.rmtree(self.private(attempt_id) / "resume", ignore_errors=True)

    def holds(self, attempt_id: str) -> bool:
        """Is there a record that was not forgotten?"""
        return self._path(attempt_id).exists()

    def records(self) -> Iterator[Record]:
        """Every attempt that is not settled, oldest first."""
        for path in sorted(self.folder.glob("*.journal")):
            record = _read(path)
            if record:
                yield record

    def _append(self, attempt_id: str, facts: Mapping[str, Any]) -> None:
        with self._path(attempt_id).open("ab", buffering=0) as file:
            file.write(json.dumps(facts).encode() + b"\n")


def _read(path: Path) -> Record | None:
    record: Record | None = None
    for line in path.read_bytes().splitlines():
        try:
            facts: dict[str, Any] = json.loads(line)
        except ValueError:
            break
        if "start" in facts:
            record = Record(msgspec.convert(facts["start"], wire.Start), facts["boot_id"])
        elif record is None:
            return None
        elif "checkpoint" in facts:
            record.checkpoints.append(msgspec.convert(facts["checkpoint"], wire.CheckpointSaved))
        else:
            if facts.get("ended"):
                facts["ended"] = msgspec.convert(facts["ended"], wire.Ended)
            for name, value in facts.items():
                setattr(record, name, value)
    return record
