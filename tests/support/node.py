"""A node of a test's own: real keeper and agent processes under a home of their own,
and the server's end of the link.

The provider runs in a thread, so that tests are plain functions: they act, wait for a
condition and look.
"""

import asyncio
import fcntl
import json
import os
import shutil
import signal
import sys
import tempfile
import textwrap
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import psutil
import pytest

from gpuyard.config.paths import Home
from gpuyard.domain import wire
from gpuyard.domain.errors import LedgerError
from gpuyard.domain.jobconfig import GpuSpec, JobConfig
from gpuyard.node.launcher import find_attempt
from gpuyard.providers.local import LocalProvider
from tests.support.forkserver import REAL_AGENT, fast_python
from tests.support.groups import remove_groups
from tests.support.wait import wait_until

T = TypeVar("T")
# Faster than people need it, so that tests need not wait.
FAST = {"progress_s": 0.05, "checkpoint_scan_s": 0.05, "discovery_s": 0.1}


class Recorder:
    """A `Sink` that writes everything down.

    While `full`, it fails as a ledger does on a full disk.
    """

    def __init__(self) -> None:
        self.epoch = 1
        self.full = False
        self.hellos: list[wire.Hello] = []
        self.reports: list[Any] = []
        self.refused: list[Any] = []
        self.left: list[str] = []
        self.claims: list[tuple[str, str]] = []
        self.certified: set[str] = set()

    def has_certificate(self, node_id: str) -> bool:
        return node_id in self.certified

    async def node_joined(self, provider: str, hello: wire.Hello) -> wire.Welcome:
        self.hellos.append(hello)
        return wire.Welcome(self.epoch)

    async def node_left(self, node_id: str) -> None:
        self.left.append(node_id)

    async def node_claimed(self, node_id: str, address: str) -> None:
        self.claims.append((node_id, address))

    async def reported(
        self, node_id: str, bodies: Sequence[wire.NumberedReport]
    ) -> None:
        if self.full:
            self.refused += [report.body for report in bodies]
            raise LedgerError("the disk is full")
        self.reports += [report.body for report in bodies]

    def of(self, kind: type[T], attempt_id: str | None = None) -> list[T]:
        """The reports of one kind, and of one attempt."""
        return [
            r
            for r in self.reports
            if isinstance(r, kind)
            and attempt_id in (None, getattr(r, "attempt_id", None))
        ]


class Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout: float = 60) -> T:
        """The result of `work`."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout)

    def close(self) -> None:
        self.run(_cancel_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class Node:
    """One node.

    `start` submits a Python snippet; `ended`, `started` and `checkpoints` wait for what
    is reported.
    """

    def __init__(self, root: Path) -> None:
        self.home = Home(root / "home")
        self.work = root / "work"
        self.work.mkdir()
        self.sink = Recorder()
        self.config_more: dict[str, Any] = {}
        self.loop = Loop()
        self.provider = self._make_provider()
        self.attempts: list[str] = []
        self._pids: set[int] = set()

    # --- the server's end ---

    def _make_provider(self) -> LocalProvider:
        config = {
            "home": str(self.home.root),
            "epoch": self.sink.epoch,
            "price_per_hour": "3600",
            "currency": "EUR",
        }
        return LocalProvider(config | self.config_more)

    def open(self) -> None:
        """Let the server's end be there; a keeper is started when none runs."""
        self.provider = self._make_provider()
        self.loop.run(self.provider.start(self.sink))

    def close(self) -> None:
        """Take the server's end away, as when the server is killed: agent and jobs live
        on.
        """
        self.loop.run(self.provider.close())

    def linked(self, hellos: int = 1) -> wire.Hello:
        """The `hellos`-th Hello."""
        wait_for(lambda: len(self.sink.hellos) >= hellos, f"Hello number {hellos}")
        return self.sink.hellos[hellos - 1]

    # --- jobs ---

    def config(self, code: str, /, *arguments: str, **fields: Any) -> JobConfig:
        """A job that runs a Python snippet in the node's work folder; fields are
        JobConfig's, or its options'.
        """
        options = {"workdir": str(self.work)}
        options |= {
            name: fields.pop(name)
            for name in list(fields)
            if name not in JobConfig.model_fields
        }
        attempt_id = fields.pop("attempt_id", f"attempt_{uuid.uuid4().hex}")
        command = (sys.executable, "-I", "-S", "-c", textwrap.dedent(code), *arguments)
        values = {
            "name": "test",
            "command": command,
            "gpu_spec": GpuSpec(gpu_count=0),
            **fields,
        }
        return JobConfig(**values, attempt_id=attempt_id, provider_options=options)

    def start(self, code: str, /, *arguments: str, **fields: Any) -> str:
        """Submit it; the attempt's id."""
        return self.submit(self.config(code, *arguments, **fields))

    def submit(self, config: JobConfig) -> str:
        assert config.attempt_id
        self.attempts.append(config.attempt_id)
        return self.loop.run(self.provider.submit_job(config))

    def stop(
        self, attempt_id: str, reason: str = "cancelled", *, checkpoint: bool = False
    ) -> None:
        node_id = self.sink.hellos[-1].node_id
        self.loop.run(
            self.provider.stop_attempt(
                node_id, attempt_id, reason, checkpoint=checkpoint
            )
        )

    def output(self, attempt_id: str) -> str:
        """What it has written so far."""
        path = self.home.node / "attempts" / f"{attempt_id}.log"
        return path.read_text() if path.exists() else ""

    def says(self, attempt_id: str, text: str) -> None:
        """Wait until the attempt's output holds `text`."""
        wait_for(
            lambda: text in self.output(attempt_id), f"the output to hold {text!r}"
        )

    def started(self, attempt_id: str) -> wire.Started:
        return self._report(wire.Started, attempt_id)

    def ended(self, attempt_id: str) -> wire.Ended:
        return self._report(wire.Ended, attempt_id)

    def _report(self, kind: type[T], attempt_id: str) -> T:
        return wait_for(
            lambda: self.sink.of(kind, attempt_id), f"{kind.__name__} of {attempt_id}"
        )[0]

    def checkpoints(self, attempt_id: str) -> list[wire.CheckpointSaved]:
        """Those reported so far."""
        return self.sink.of(wire.CheckpointSaved, attempt_id)

    def checkpoint(self, attempt_id: str, path: str) -> wire.CheckpointSaved:
        """Wait for the checkpoint `path`."""
        found = lambda: [c for c in self.checkpoints(attempt_id) if c.path == path]  # noqa: E731
        return wait_for(found, f"checkpoint {path}")[-1]

    # --- processes and files ---

    def pid(self, which: str) -> int:
        """The pid of the living `keeper` or `agent`."""
        lock = self.home.node / f"{which}.lock"

        def alive() -> int | None:
            text = lock.read_text().strip() if lock.exists() else ""
            return (
                int(text)
                if text and psutil.pid_exists(int(text)) and not _dead(int(text))
                else None
            )

        pid = wait_for(alive, f"the {which}")
        self._pids.add(pid)
        return pid

    def kill(self, *which: str) -> None:
        """`kill -9`, all at once; they are gone when this returns."""
        pids = [self.pid(name) for name in which]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            gone(pid)

    def next_agent(self, before: int) -> int:
        """The pid of the agent that comes after the one with pid `before`."""
        return wait_for(
            lambda: (pid := self.pid("agent")) != before and pid, "the next agent"
        )

    @contextmanager
    def without_agent(self) -> Iterator[None]:
        """The agent is killed at the start, and the next one waits for its lock until
        the end.

        The keeper has seen it die: a job that ends sooner than the keeper learns whose
        it is has lost its exit code.
        """
        agent = self.pid("agent")
        log = self.home.node / "keeper.log"
        with (self.home.node / "agent.lock").open() as lock:
            restarts = log.read_text().count("agent starts again")
            os.kill(agent, signal.SIGKILL)
            fcntl.flock(lock, fcntl.LOCK_EX)
            wait_for(
                lambda: log.read_text().count("agent starts again") > restarts,
                "the keeper to see it",
            )
            yield

    def journal(self, attempt_id: str) -> list[dict[str, Any]]:
        """What the agent has noted about an attempt."""
        return [line for line in self._journal() if line["attempt"] == attempt_id]

    def holds(self, attempt_id: str) -> bool:
        """Whether the agent's journal still has the attempt."""
        lines = self.journal(attempt_id)
        return bool(lines) and "forgotten" not in lines[-1]

    def _journal(self) -> list[dict[str, Any]]:
        lines = self.journal_path.read_text().splitlines()
        return [json.loads(line) for line in lines]

    def rewrite_journal(
        self, attempt_id: str, lines: Sequence[Mapping[str, Any]]
    ) -> None:
        """Replace what the journal says of an attempt, while no agent runs."""
        others = [line for line in self._journal() if line["attempt"] != attempt_id]
        # The agent finds the attempt by how a line begins.
        mine = [{"attempt": "", **line} | {"attempt": attempt_id} for line in lines]
        encoded = [
            json.dumps(line, separators=(",", ":")) + "\n" for line in others + mine
        ]
        self.journal_path.write_text("".join(encoded))

    @property
    def journal_path(self) -> Path:
        return self.home.node / "attempts" / "journal"

    def end(self) -> None:
        """Leave nothing behind, whatever the test did."""
        with suppress(Exception):
            self.close()
        self.loop.close()
        for which in ("keeper", "agent"):
            with suppress(OSError, ValueError):
                self._pids.add(int((self.home.node / f"{which}.lock").read_text()))
        for pid in self._pids:
            with suppress(OSError, psutil.Error):
                if str(self.home.root) in psutil.Process(pid).cmdline():
                    os.kill(pid, signal.SIGKILL)
        # An agent that the keeper has only just started is in no lock file yet.
        for process in psutil.process_iter(["cmdline"]):
            if str(self.home.root) in (process.info["cmdline"] or ()):
                with suppress(psutil.Error):
                    process.kill()
        for pid in {
            pid for attempt_id in self.attempts for pid in find_attempt(attempt_id)
        }:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        remove_groups(self.home)


def _dead(pid: int) -> bool:
    """Gone, or a zombie nobody has reaped."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def gone(pid: int) -> None:
    """Wait until the process has ended."""
    wait_for(lambda: _dead(pid), f"the end of process {pid}")


@contextmanager
def make_node(
    environment: Mapping[str, str] | None = None,
    *,
    real_agent: bool = False,
    **settings: Any,
) -> Iterator[Node]:
    """A node that has linked up.

    `settings` are those of `[node]`; `environment` is more for its processes. A
    `real_agent` is a child of its keeper: only of such a one does the keeper get the
    jobs.
    """
    root = Path(tempfile.mkdtemp(prefix="gy-", dir="/tmp"))
    node = Node(root)
    node.home.create()
    lines = [f"{name} = {value}" for name, value in (FAST | settings).items()]
    node.home.settings.write_text("\n".join(["[node]", *lines, ""]))
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("GPUYARD_")]:
            patch.delenv(name)
        for name, value in (environment or {}).items():
            patch.setenv(name, value)
        patch.setattr("gpuyard.providers.local._KEEPER_CHECK_S", 0.2)
        if real_agent:
            patch.setenv(REAL_AGENT, "1")
        python = SimpleNamespace(executable=fast_python())
        patch.setattr("gpuyard.providers.local.sys", python)
        try:
            node.open()
            node.linked()
            yield node
        finally:
            node.end()
            shutil.rmtree(root, ignore_errors=True)


def wait_for(condition: Callable[[], T], what: str) -> T:
    """`wait_until` with patience for processes that have to come up."""
    return wait_until(condition, what=what)
