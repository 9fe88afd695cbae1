"""Folders of this host in which jobs of external queues work, or have worked."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class WantedFiles:
    """Which files of an ended job are wanted: those that match one of the `patterns`
    in its folder, of at most `most_bytes` together. `workdir`: the folder that its spec
    named.
    """

    patterns: Sequence[str]
    most_bytes: int
    workdir: str | None = None


@dataclass(frozen=True, slots=True)
class LeftFolder:
    """A folder of this host with what a job has left. `own`: it is one that gpuyard
    made for the job. What was changed before `since` (UTC seconds, by the clock of its
    files) is not the job's; None: what was there before its start. `problems` say, for
    people, which files are not there.
    """

    path: Path
    own: bool = False
    since: float | None = None
    problems: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class LoggingFolder:
    """The folder of this host in which a job's program logs while it runs. Others may
    log there, too: an event file is the job's if its name has `host` and, unless that
    is of this job alone, one of `pids`. An empty `host`: nobody else works there.
    """

    path: Path
    host: str = ""
    pids: Collection[int] | None = None
