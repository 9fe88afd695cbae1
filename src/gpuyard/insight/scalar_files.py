"""Finds the files that trackers write in the folder of an attempt, and reads their
scalars as they come.

So that it never holds up a job, or other jobs: it reads a little at a time, looks at
no more than some thousands of folders, and rests much longer than it works.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import IO, Any

import structlog

from gpuyard.domain import wire
from gpuyard.insight.curves import MAX_NAMES
from gpuyard.insight.event_files import EVENT_FILE, CurveNames, Scalar, scalars_in
from gpuyard.insight.wandb_files import PREFIX as WANDB_PREFIX
from gpuyard.insight.wandb_files import RUN_FILE, wandb_scalars_in

_SKIPPED = frozenset({"venv", "node_modules", "__pycache__", "site-packages"})
_MOST_FOLDERS = 5_000
_MOST_NAMES = 100_000
_DEEPEST = 16
_MOST_FILES = 64
# At one look, and at the last one, in bytes of all files together.
_BUDGET = 2 << 20
_LAST_BUDGET = 8 << 20
# An event that is longer is passed over, so that each part has at least one whole.
_PART = 1 << 19
# The name of a file has whole seconds, and the clock of a file system may be behind.
_SLACK_S = 2.0
# A folder that takes longer to look through is not looked through when a job ends.
_QUICK_S = 0.3
# It rests so many times longer than it has worked.
_REST = 50
log = structlog.get_logger(__name__)


@dataclass(slots=True)
class LoggedScalars:
    """What a look has found: new points, and the last step and values so far."""

    points: list[wire.SeriesPoint] = field(default_factory=list[wire.SeriesPoint])
    step: int | None = None
    metrics: dict[str, float] = field(default_factory=dict[str, float])

    def beside(self, progress: dict[str, Any]) -> dict[str, Any]:
        """The progress that was printed, with what was logged; the former comes
        first.
        """
        metrics = {**progress["metrics"], **self.metrics}
        step = progress["step"]
        if step is None:
            step = self.step
        return {**progress, "metrics": metrics, "step": step}


def names_writer(name: str, host: str, pids: Collection[int] | None) -> bool:
    """Whether a program on this host has begun the event file `name`, in one of these
    processes; None: in any.
    """
    match = EVENT_FILE.match(PurePath(name).name)
    if not match:
        return False
    writer = PurePath(name).name[match.end("begun") + 1 :]
    if pids is None and writer == host:
        return True
    pid = int(match["pid"]) if match["pid"] else None
    return writer.startswith(f"{host}.{pid}.") and (pids is None or pid in pids)


class ScalarReader:
    """Reads the files below `folder` that an attempt has begun since `began_at` (UTC
    seconds): event files, and those of W&B.

    Several jobs may use one folder: `own` tells which of some new files are the
    attempt's. `open_file` opens one; the job may have put anything in its place.

    A reader that starts again finds the same points. `look` blocks on the disk: call it
    in a thread, one call at a time.
    """

    def __init__(
        self,
        folder: Path,
        began_at: float,
        own: Callable[[Collection[str]], Collection[str]],
        open_file: Callable[[Path, str], IO[bytes]],
    ) -> None:
        self._folder = folder
        self._began_at = began_at
        self._own = own
        self._open = open_file
        # How far each file is read; None for one that cannot be read.
        self._offsets: dict[str, int | None] = {}
        self._event_names = CurveNames()
        self._run_names = CurveNames(WANDB_PREFIX)
        self._counts: Counter[str] = Counter()
        # Curves, by the kind of their file, its folder and their tag.
        self._known: dict[tuple[bool, str, str], str] = {}
        self._step: int | None = None
        self._metrics: dict[str, float] = {}
        self._find_s = 0.0
        self.rest_s = 0.0

    def look(self, *, last: bool = False) -> LoggedScalars | None:
        """What is new; None if nothing is. `rest_s` is then how long to rest."""
        begun = time.monotonic()
        if not last or self._find_s < _QUICK_S:
            self._find()
            self._find_s = time.monotonic() - begun
        points: list[wire.SeriesPoint] = []
        budget = _LAST_BUDGET if last else _BUDGET
        for name in sorted(self._offsets):
            for scalars, size in self._read(name, budget):
                budget -= size
                points += self._points(name, scalars)
        self.rest_s = _REST * (time.monotonic() - begun)
        if not points:
            return None
        return LoggedScalars(points, self._step, dict(self._metrics))

    def _find(self) -> None:
        """Note the files that are new."""
        new = [name for name in self._files() if name not in self._offsets]
        for name in sorted(self._own(new)):
            if len(self._offsets) >= _MOST_FILES:
                return
            self._add(name)

    def _add(self, name: str) -> None:
        self._offsets[name] = 0
        self._names_of(name).add_folder(_folder_of(name))

    def _names_of(self, file: str) -> CurveNames:
        return self._run_names if _is_run_file(file) else self._event_names

    def _files(self) -> Iterator[str]:
        """The names of the files that were begun since, relative to the folder."""
        names = 0
        for folders, (here, inner, files, _) in enumerate(os.fwalk(str(self._folder))):
            names += len(inner) + len(files)
            for name in files:
                if self._is_begun_since(here, name):
                    yield str(PurePath(here, name).relative_to(self._folder))
            is_deep = here.count("/") - str(self._folder).count("/") >= _DEEPEST
            inner[:] = [] if is_deep else filter(_is_entered, inner)
            if folders >= _MOST_FOLDERS or names >= _MOST_NAMES:
                return

    def _is_begun_since(self, folder: str, name: str) -> bool:
        """Whether it is such a file, and not older than the attempt."""
        match = EVENT_FILE.match(name)
        if match:
            return int(match["begun"]) >= self._began_at - _SLACK_S
        if not RUN_FILE.fullmatch(name):
            return False
        with suppress(OSError):
            written = Path(folder, name).lstat().st_mtime
            return written >= self._began_at - _SLACK_S
        return False

    def _read(self, name: str, budget: int) -> Iterator[tuple[list[Scalar], int]]:
        """New scalars of a file, part by part, with the bytes that were read."""
        offset = self._offsets[name]
        while offset is not None and budget > 0:
            try:
                with self._open(self._folder, name) as file:
                    file.seek(offset)
                    data = file.read(min(_PART, budget))
                if _is_run_file(name):
                    scalars, size = wandb_scalars_in(data, offset)
                else:
                    scalars, size = scalars_in(data)
            except OSError:
                return  # it is gone, or somebody else's
            except ValueError as error:
                log.info(
                    "a file with scalars cannot be read", name=name, error=str(error)
                )
                self._offsets[name] = None
                return
            offset += size
            self._offsets[name] = offset
            budget -= len(data)
            yield scalars, len(data)
            if not size:
                return

    def _points(self, file: str, scalars: list[Scalar]) -> Iterator[wire.SeriesPoint]:
        folder = _folder_of(file)
        for scalar in scalars:
            name = self._name_of(file, folder, scalar.tag)
            if name is None:
                continue
            number = self._counts[name]
            self._counts[name] += 1
            self._metrics[name] = scalar.value
            self._step = max(self._step or 0, scalar.step)
            yield wire.SeriesPoint(name, number, scalar.step, scalar.value, scalar.at)

    def _name_of(self, file: str, folder: str, tag: str) -> str | None:
        """The name of a curve; None for one more than are kept. So the names that a
        program makes up cannot fill the memory of the agent.
        """
        key = (_is_run_file(file), folder, tag)
        if key not in self._known and len(self._known) < MAX_NAMES:
            self._known[key] = self._names_of(file).name(folder, tag)
        return self._known.get(key)


def _is_run_file(name: str) -> bool:
    return RUN_FILE.fullmatch(PurePath(name).name) is not None


def _folder_of(name: str) -> str:
    return str(PurePath(name).parent)


def _is_entered(name: str) -> bool:
    return name not in _SKIPPED and not name.startswith(".")
