"""The spool: tasks as files. An edge for programs that drop a JSON file into a folder and look for its result there.

    ROOT/{llm_queue,script_queue}/priority_{1..5}/NAME.json   taken up, in the order of their names
    ROOT/processing/NAME.json                                  its job is in the ledger
    ROOT/complete/NAME.json, failed/NAME.json                  the task as it ended, and NAME.result.json beside it
    ROOT/failed/NAME.json and NAME.reason.txt                  what is no task, and why

A task's id is its job's idempotency key: a server that is killed between taking a task up and moving its file finds the
same job again. Files are moved, never copied, so each is in one place at any time.
"""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import structlog

from gpuyard.controller.core import Core
from gpuyard.controller.logs import Logs
from gpuyard.controller.requests import Requests
from gpuyard.domain.errors import GpuyardError, InvalidInputError, LedgerError
from gpuyard.domain.states import JobState
from gpuyard.domain.tasks import STATUS, TaskClass

_EVERY_S = 0.5
# A file that is no JSON yet may still be being written.
_SETTLED_S = 2.0
_QUEUES = {"llm_queue": TaskClass.LLM, "script_queue": TaskClass.SCRIPT}
_PRIORITIES = (5, 4, 3, 2, 1)
_MOST_OUTPUT = 10_000_000
log = structlog.get_logger(__name__)


class Spool:
    """Watches one root folder."""

    def __init__(self, root: Path, core: Core, requests: Requests, logs: Logs) -> None:
        self._root = root
        self._core = core
        self._requests = requests
        self._logs = logs

    async def run(self) -> None:
        """Take up and bring back for ever. A disk that fails is tried again."""
        while True:
            try:
                self._make_folders()
                for path, wanted, priority in self._waiting():
                    await self._take_up(path, wanted, priority)
                await self._bring_back()
            except (OSError, LedgerError) as error:
                log.warning("the spool cannot be worked on just now", error=str(error))
            await asyncio.sleep(_EVERY_S)

    def _make_folders(self) -> None:
        for queue in _QUEUES:
            for priority in _PRIORITIES:
                (self._root / queue / f"priority_{priority}").mkdir(parents=True, exist_ok=True)
        for name in ("processing", "complete", "failed"):
            (self._root / name).mkdir(exist_ok=True)

    def _waiting(self) -> Iterator[tuple[Path, TaskClass, int]]:
        for priority in _PRIORITIES:
            for queue, wanted in _QUEUES.items():
                for path in sorted((self._root / queue / f"priority_{priority}").glob("*.json")):
                    yield path, wanted, priority

    # --- in ---

    async def _take_up(self, path: Path, wanted: TaskClass, priority: int) -> None:
        """Submit the task of a file. The folder says how urgent it is where the task does not."""
        try:
            task = self._read(path, wanted, priority)
            if task is None:
                return
            await self._requests.submit([task])
        except LedgerError:
            raise
        except GpuyardError as error:
            self._refuse(path, str(error))
            return
        path.rename(self._root / "processing" / path.name)

    def _read(self, path: Path, wanted: TaskClass, priority: int) -> dict[str, Any] | None:
        """The task, or None for a file that may still be being written; InvalidInputError."""
        try:
            task = json.loads(path.read_bytes())
        except ValueError as error:
            if time.time() - path.stat().st_mtime < _SETTLED_S:
                return None
            raise InvalidInputError.of(path.name, f"is not JSON: {error}", "write one task as a JSON object") from None
        if not isinstance(task, dict) or "task_id" not in task:
            raise InvalidInputError.of(path.name, "is no task", "write one task (schema v2) as a JSON object")
        given: dict[str, Any] = {"priority": priority, **task}
        if given.get("task_class") != wanted:
            fault = f"is {given.get('task_class')!r} in the folder of {wanted} tasks"
            raise InvalidInputError.of("task_class", fault, "put it into the other queue")
        if (self._root / "processing" / path.name).exists():
            raise InvalidInputError.of(path.name, "is the name of a task under way", "give each file a name of its own")
        return given

    def _refuse(self, path: Path, reason: str) -> None:
        """To `failed/`, with the reason beside it."""
        target = self._root / "failed" / path.name
        target.with_suffix(".reason.txt").write_text(reason + "\n")
        path.rename(target)

    # --- out ---

    async def _bring_back(self) -> None:
        """What has ended leaves `processing/` with its result."""
        there = {path: self._task_id(path) for path in sorted((self._root / "processing").glob("*.json"))}
        if not there:
            return
        jobs = self._core.queries.jobs_by_idempotency_key(sorted(set(there.values())))
        rows = self._core.queries.jobs_by_id(jobs.values())
        for path, task_id in there.items():
            row = rows.get(jobs.get(task_id, ""))
            if row is None:
                self._refuse(path, f"there is no job of task {task_id!r}; its ledger was replaced: submit it anew")
            elif JobState(row["state"]).terminal:
                await self._settle(path, dict(row))

    def _task_id(self, path: Path) -> str:
        try:
            return str(json.loads(path.read_bytes())["task_id"])
        except (ValueError, KeyError, TypeError):
            return ""  # somebody has changed it: it is refused

    async def _settle(self, path: Path, row: dict[str, Any]) -> None:
        status = STATUS[JobState(row["state"])]
        target = self._root / ("complete" if status == "complete" else "failed") / path.name
        began, ended = row["started_at"], row["ended_at"]
        result: dict[str, Any] = {"task_id": self._task_id(path), "output": await self._output(row["id"]),
                  "duration": round(ended - began, 3) if began and ended else 0.0}  # fmt: skip
        if status == "failed":
            result["reason"] = row["reason"]
        target.with_suffix(".result.json").write_text(json.dumps(result))
        path.write_text(json.dumps({**json.loads(path.read_bytes()), "status": status}))
        path.rename(target)

    async def _output(self, job_id: str) -> str:
        """What it printed, or the last of it."""
        output = b""
        try:
            async for part in self._logs.read(job_id, lines=None, follow=False, number=None):
                output = (output + part)[-_MOST_OUTPUT:]
        except GpuyardError as error:
            log.info("a task has no output", job=job_id, cause=str(error))
        return output.decode(errors="replace")
