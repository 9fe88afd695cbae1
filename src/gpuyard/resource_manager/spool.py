"""The spool: tasks as files, for programs that write a JSON file into a folder and look
for its result there.

    ROOT/{llm_queue,script_queue}/priority_{1..5}/NAME.json
        new tasks, submitted in the order of their names
    ROOT/processing/NAME.json
        tasks whose jobs are in the ledger
    ROOT/complete/NAME.json, ROOT/failed/NAME.json
        tasks that have ended, with their status, times and GPU; each with
        NAME.result.json
    ROOT/failed/NAME.json and NAME.reason.txt
        files that were refused, and why

The id of a task is the idempotency key of its job: a server that is killed between the
submission and the move of the file finds the same job again. Files are moved, never
copied, so each is in only one folder.
"""

import asyncio
import json
import os
import time
from collections.abc import Generator, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import structlog

from gpuyard.controller.core import Core
from gpuyard.controller.logs import Logs
from gpuyard.controller.requests import Requests
from gpuyard.domain.errors import GpuyardError, InvalidInputError, LedgerError
from gpuyard.domain.jobspec import JobKind
from gpuyard.domain.scripts import find_result
from gpuyard.domain.states import JobState
from gpuyard.domain.tasks import TaskClass, course_of
from gpuyard.storage.untrusted import (
    UntrustedFileError,
    read_json_beneath,
    write_whole,
)

_EVERY_S = 0.5
# So many tasks share a commit. Results are written in between, so that nobody waits for
# one until thousands of others have been submitted.
_AT_ONCE = 50
# A file that is not JSON is still being written if it has changed so lately. NFS shows
# others the size of a file after up to three seconds.
_WRITTEN_AFTER_S = 5.0
_QUEUES = {"llm_queue": TaskClass.LLM, "script_queue": TaskClass.SCRIPT}
_PRIORITIES = (5, 4, 3, 2, 1)
_MAX_OUTPUT_BYTES = 10_000_000
_MAX_TASK_BYTES = 16_000_000
# Tasks that share a commit are at most so large together, or it is one.
_MAX_BYTES_AT_ONCE = _MAX_TASK_BYTES
# `.result.json` and `.reason.txt` need room.
_LONGEST_NAME = 200
# A file, its class, and the priority of its folder.
_Waiting = tuple[Path, TaskClass, int]
log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Unfinished:
    """A file that is not JSON yet: its size and time of change, and since when they
    are so (monotonic seconds).
    """

    state: tuple[int, int]
    since: float


class Spool:
    """Watches one root folder."""

    def __init__(self, root: Path, core: Core, requests: Requests, logs: Logs) -> None:
        self._root = root
        self._core = core
        self._requests = requests
        self._logs = logs
        # The jobs of the tasks in processing/, by the names of their files.
        self._jobs: dict[str, str] = {}
        self._unfinished: dict[Path, _Unfinished] = {}

    async def run(self) -> None:
        """Submit tasks and write results, for ever. An error is no end of it, and one
        file holds up no other.
        """
        while True:
            try:
                self._make_folders()
                await self._look()
            except (OSError, LedgerError) as error:
                log.warning("the spool cannot be worked on just now", error=str(error))
            except Exception:
                log.exception("gpuyard failed on the spool")
            await asyncio.sleep(_EVERY_S)

    @contextmanager
    def _isolated(self, path: Path) -> Generator[None]:
        """Log what goes wrong with one file; the ledger's errors concern all files."""
        try:
            yield
        except LedgerError:
            raise
        except FileNotFoundError:
            return  # removed in this moment
        except OSError as error:
            log.warning("a file in the spool is stuck", file=path, error=str(error))
        except Exception:
            log.exception("gpuyard failed on a file in the spool", file=path)
            with suppress(OSError):
                self._refuse(path, "gpuyard failed on it; the server's log says how")

    def _make_folders(self) -> None:
        for queue in _QUEUES:
            for priority in _PRIORITIES:
                (self._root / queue / f"priority_{priority}").mkdir(
                    parents=True, exist_ok=True
                )
        for name in ("processing", "complete", "failed"):
            (self._root / name).mkdir(exist_ok=True)

    async def _look(self) -> None:
        """Submit all tasks that wait and write all results, some of each in turn, so
        that none waits for thousands of others. An urgent file that comes meanwhile is
        the next; no file is looked at twice.
        """
        looked_at: set[Path] = set()
        ended: set[str] = set()
        while True:
            group = self._next_group(looked_at)
            looked_at.update(path for path, _, _ in group)
            await self._submit_together(group)
            names = await self._next_ended(ended)
            ended.update(names)
            await self._write_results(names)
            if not group and not names:
                break
        self._unfinished = {
            path: file for path, file in self._unfinished.items() if path in looked_at
        }

    # --- tasks ---

    def _next_group(self, looked_at: Set[Path]) -> list[_Waiting]:
        """The next files that can share a commit."""
        group: list[_Waiting] = []
        size = 0
        for waiting in self._waiting():
            path = waiting[0]
            if path in looked_at:
                continue
            with suppress(OSError):
                size += path.stat().st_size
            if group and size > _MAX_BYTES_AT_ONCE:
                break
            group.append(waiting)
            if len(group) == _AT_ONCE:
                break
        return group

    def _waiting(self) -> Iterator[_Waiting]:
        for priority in _PRIORITIES:
            for queue, task_class in _QUEUES.items():
                folder = self._root / queue / f"priority_{priority}"
                for name in _names_in(folder):
                    yield folder / name, task_class, priority

    async def _submit_together(self, group: Sequence[_Waiting]) -> None:
        """Submit the tasks of these files in their order, of files with one name only
        the first: a later look finds the others.
        """
        first_of_name: dict[str, _Waiting] = {}
        for waiting in group:
            first_of_name.setdefault(waiting[0].name, waiting)
        done = await asyncio.gather(
            *(self._submit(*waiting) for waiting in first_of_name.values()),
            return_exceptions=True,
        )
        for fault in done:
            if fault:
                raise fault

    async def _submit(self, path: Path, task_class: TaskClass, priority: int) -> None:
        with self._isolated(path):
            await self._submit_one(path, task_class, priority)

    async def _submit_one(
        self, path: Path, task_class: TaskClass, priority: int
    ) -> None:
        """Submit the task of a file. The priority of its folder counts if the task has
        none.
        """
        try:
            task = self._read(path, task_class, priority)
            if task is None:
                return
            (job_id,) = await self._requests.submit([task])
        except LedgerError:
            raise
        except GpuyardError as error:
            self._refuse(path, str(error))
            return
        path.rename(self._root / "processing" / path.name)
        self._jobs[path.name] = job_id

    def _read(
        self, path: Path, task_class: TaskClass, priority: int
    ) -> dict[str, Any] | None:
        """The task of a file; None if the file may still be being written.

        Raises InvalidInputError.
        """
        _refuse_long_name(path)
        try:
            task = read_json_beneath(path.parent, path.name, _MAX_TASK_BYTES)
        except (UntrustedFileError, PermissionError) as error:
            fault = f"cannot be read: {error}"
            remedy = "write one task as a JSON object into a file that gpuyard may read"
            raise InvalidInputError.of(path.name, fault, remedy) from None
        except ValueError as error:
            if self._is_being_written(path):
                return None
            raise InvalidInputError.of(
                path.name, f"is not JSON: {error}", "write one task as a JSON object"
            ) from None
        if not isinstance(task, dict) or "task_id" not in task:
            raise InvalidInputError.of(
                path.name, "is no task", "write one task (schema v2) as a JSON object"
            )
        given: dict[str, Any] = {"priority": priority, **task}
        _refuse_other_class(given, task_class)
        if (self._root / "processing" / path.name).exists():
            raise InvalidInputError.of(
                path.name,
                "is the name of a task under way",
                "give each file a name of its own",
            )
        return given

    def _is_being_written(self, path: Path) -> bool:
        """Whether a file has changed lately, as this server saw it: the clock of a file
        server may differ from ours, and a copy may have the time of its original.
        """
        status = path.stat()
        state = (status.st_size, status.st_mtime_ns)
        now = time.monotonic()
        known = self._unfinished.get(path)
        if known is None or known.state != state:
            self._unfinished[path] = _Unfinished(state, now)
            return True
        return now - known.since < _WRITTEN_AFTER_S

    def _refuse(self, path: Path, reason: str) -> None:
        """Move the file to `failed/`, and write the reason next to it."""
        target = self._root / "failed" / _shortened(path.name)
        words = reason.encode(errors="backslashreplace") + b"\n"
        write_whole(target.with_suffix(".reason.txt"), words)
        # A file replaces the last one of its name, but a folder could not.
        if path.is_dir() or target.is_dir():
            target = target.with_name(f"{target.name}-{time.time_ns()}")
        path.rename(target)

    # --- results ---

    async def _next_ended(self, known: Set[str]) -> list[str]:
        """The names of the next tasks whose jobs are not live, in the order in which
        they were submitted, without the `known` ones.
        """
        processing = self._root / "processing"
        names = _names_in(processing)
        new = [name for name in names if name not in self._jobs]
        for start in range(0, len(new), _AT_ONCE):
            some = new[start : start + _AT_ONCE]
            self._find_jobs([processing / name for name in some])
            await asyncio.sleep(0)
        present = set(names)
        self._jobs = {name: job for name, job in self._jobs.items() if name in present}
        live = self._core.view.jobs
        ended = (
            name
            for name, job_id in self._jobs.items()
            if job_id not in live and name not in known
        )
        return list(islice(ended, _AT_ONCE))

    async def _write_results(self, names: Sequence[str]) -> None:
        """Write the results of these tasks, and move their files out of
        `processing/`.
        """
        if not names:
            return
        jobs = {name: self._jobs[name] for name in names}
        rows = self._core.queries.jobs_by_id(jobs.values())
        attempts = self._core.queries.attempts_of(jobs.values())
        for name, job_id in jobs.items():
            path = self._root / "processing" / name
            row = rows.get(job_id)
            with self._isolated(path):
                if row is None:
                    self._refuse(
                        path,
                        f"there is no job of task {self._task_id(path)!r}; its ledger"
                        " was replaced: submit it anew",
                    )
                elif JobState(row["state"]).terminal:
                    await self._write_result(
                        path, dict(row), attempts.get(job_id, ())[-1:]
                    )

    def _find_jobs(self, paths: Sequence[Path]) -> None:
        """Find the jobs of tasks that an earlier server has submitted; the empty name
        stands for none.
        """
        task_ids = {path.name: self._task_id(path) for path in paths}
        keys = sorted(set(task_ids.values()))
        found = self._core.queries.jobs_by_idempotency_key(keys)
        for name, task_id in task_ids.items():
            self._jobs[name] = found.get(task_id, "")

    def _task_id(self, path: Path) -> str:
        try:
            task = read_json_beneath(path.parent, path.name, _MAX_TASK_BYTES)
            task_id = str(task["task_id"])
            task_id.encode()
        except (OSError, ValueError, KeyError, TypeError):
            return ""  # the file was changed; no job has this id, so it is refused
        return "" if "\0" in task_id else task_id

    async def _write_result(
        self, path: Path, row: dict[str, Any], last_attempt: Sequence[Mapping[str, Any]]
    ) -> None:
        course = self._course(row, last_attempt)
        status = course["status"]
        folder = "complete" if status == "complete" else "failed"
        target = self._root / folder / path.name
        result = await self._result(path, row)
        if status == "failed":
            result["reason"] = row["reason"]
        write_whole(target.with_suffix(".result.json"), json.dumps(result).encode())
        task = read_json_beneath(path.parent, path.name, _MAX_TASK_BYTES)
        write_whole(path, json.dumps({**task, **course}).encode())
        path.rename(target)

    def _course(
        self, row: dict[str, Any], last_attempt: Sequence[Mapping[str, Any]]
    ) -> dict[str, Any]:
        """The fields of the task that gpuyard sets."""
        devices = self._core.view.devices

        def index_of(uuid: str) -> int | None:
            return devices[uuid].index if uuid in devices else None

        gpus = [
            uuid
            for attempt in last_attempt
            for place in attempt["placements"] or ()
            for uuid in place["gpu_uuids"]
        ]
        times = (row["created_at"], row["started_at"], row["ended_at"])
        return course_of(JobState(row["state"]), gpus, times, index_of)

    async def _result(self, path: Path, row: dict[str, Any]) -> dict[str, Any]:
        """What a registered script returned; of other jobs, what they wrote."""
        task_id = self._task_id(path)
        output = await self._output(row["id"])
        if row["kind"] == JobKind.SCRIPT:
            result = find_result(output, task_id)
            if result is not None:
                return result
        duration = 0.0
        if row["started_at"] and row["ended_at"]:
            duration = round(row["ended_at"] - row["started_at"], 3)
        text = output.decode(errors="replace")
        return {"task_id": task_id, "output": text, "duration": duration}

    async def _output(self, job_id: str) -> bytes:
        """The output of the job; of a long one, its end."""
        output = b""
        try:
            async for part in self._logs.read(job_id):
                output = (output + part.data)[-_MAX_OUTPUT_BYTES:]
        except GpuyardError as error:
            log.info("a task has no output", job=job_id, cause=str(error))
        return output


def _names_in(folder: Path) -> list[str]:
    """The names of the files of tasks in a folder, in order: a few milliseconds for ten
    thousand of them.
    """
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if entry.name.endswith(".json"))


def _shortened(name: str) -> str:
    """The name of a file; of a very long one its beginning, so that `.reason.txt` has
    room.
    """
    encoded = os.fsencode(name)
    if len(encoded) <= _LONGEST_NAME:
        return name
    return f"{os.fsdecode(encoded[:_LONGEST_NAME])}-{time.time_ns()}.json"


def _refuse_long_name(path: Path) -> None:
    name_bytes = len(os.fsencode(path.name))
    if name_bytes > _LONGEST_NAME:
        raise InvalidInputError.of(
            f"{path.name[:20]}…",
            f"has a name of {name_bytes} bytes",
            f"give it at most {_LONGEST_NAME}, so that `.result.json` has room",
        )


def _refuse_other_class(task: Mapping[str, Any], task_class: TaskClass) -> None:
    """InvalidInputError for a task that belongs into the other folder."""
    found = task.get("task_class")
    if found != task_class:
        raise InvalidInputError.of(
            "task_class",
            f"is {found!r} in the folder of {task_class} tasks",
            "put it into the other queue",
        )
