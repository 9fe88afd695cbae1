"""A controller on a real ledger with a fake provider, and words for what a test does
with them.
"""

import asyncio
import hashlib
import io
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gpuyard
from gpuyard.config.paths import Home
from gpuyard.config.settings import Settings
from gpuyard.controller.controller import Controller
from gpuyard.domain import wire
from gpuyard.domain.states import AttemptState
from gpuyard.ledger.apply import fold
from gpuyard.ledger.ledger import Ledger
from gpuyard.ledger.prune import history
from gpuyard.storage.blobs import BlobStore
from tests.support import fake_provider
from tests.support.blank_ledger import blank_ledger
from tests.support.fake_provider import FakeHost, FakeProvider
from tests.support.ledger import state_of
from tests.support.wait import eventually

RETRY_S = 0.02
OVER = ("completed", "failed", "cancelled", "timed_out")


def _is_the_servers(task: asyncio.Task[Any]) -> bool:
    """By the file of its code: the package's own, or the fake provider's end of a
    link.
    """
    code = getattr(task.get_coro(), "cr_code", None)
    file = Path(code.co_filename) if code else Path()
    return Path(gpuyard.__file__).parent in file.parents or file == Path(
        fake_provider.__file__
    )


async def _no_news(timeout_s: float) -> None:
    await asyncio.sleep(0.01)


class Controlled:
    """`controller` is the server's part under test; `hosts` the world around it, which
    a crash does not touch.
    """

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        quick = {
            "scheduler": {"retry_base_s": RETRY_S, "retry_max_s": 4 * RETRY_S},
            "node": {"keep_checkpoints": 2},
        }
        self.settings = Settings(**{**quick, **settings})
        self.hosts: dict[str, FakeHost] = {"node_1": FakeHost()}
        self.blobs = BlobStore(folder / "blobs")
        self.notes: list[tuple[str, str | None]] = []

    @property
    def host(self) -> FakeHost:
        return self.hosts["node_1"]

    # --- the server's life ---

    async def start(self) -> None:
        self.ledger = Ledger.open(blank_ledger(self.folder / "ledger.db"))
        self.provider = FakeProvider({"hosts": self.hosts})
        self.controller = Controller(
            self.ledger,
            self.settings,
            lambda _: {"fake": self.provider},
            self.blobs,
            Home(self.folder),
            _no_news,
        )
        self.core = self.controller.core
        self.core.listeners.append(
            lambda _, events: self.notes.extend(
                (e.kind.value, e.job_id) for e in events
            )
        )
        self.extend(self.controller)
        await self.controller.start()

    def extend(self, controller: Controller) -> None:
        """Add extensions to a new controller, before it starts."""

    async def stop(self) -> None:
        """An orderly end."""
        await self.controller.close()
        await self._forsake()

    async def crash(self) -> None:
        """As by `kill -9`: nothing that is under way is finished, nothing that waits is
        written.
        """
        await self._forsake()

    async def _forsake(self) -> None:
        self.core._set_alarm(None)
        self.core.schedule = lambda: None
        mine = [task for task in asyncio.all_tasks() if _is_the_servers(task)]
        for task in mine:
            task.cancel()
        await asyncio.gather(*mine, return_exceptions=True)
        self.ledger.close()

    async def restart(self) -> None:
        await self.crash()
        await self.start()

    # --- what people ask for ---

    async def submit(self, **fields: Any) -> str:
        (job_id,) = await self.controller.requests.submit(
            [{"command": ["true"], **fields}]
        )
        return job_id

    async def cancel(self, job_id: str) -> None:
        await self.controller.requests.cancel(job_id)

    async def resume(self, job_id: str, checkpoint: str | None = None) -> None:
        await self.controller.requests.resume(job_id, checkpoint)

    # --- what happens on hosts ---

    async def begun(self, job_id: str) -> str:
        """Wait until a host has been told to start the job's live attempt; its id."""
        return await eventually(
            lambda: self._on_host(job_id), f"job {job_id} to reach a host"
        )

    def _on_host(self, job_id: str) -> str | None:
        job = self.core.view.jobs.get(job_id)
        attempt_id = job.attempt_id if job else None
        return (
            attempt_id
            if any(attempt_id in host.attempts for host in self.hosts.values())
            else None
        )

    def _host_of(self, attempt_id: str) -> FakeHost:
        return next(host for host in self.hosts.values() if attempt_id in host.attempts)

    async def on_host(self, job_id: str, act: Callable[[FakeHost, str], object]) -> str:
        """Let something happen to the job's attempt and its host tell of it."""
        attempt_id = await self.begun(job_id)
        host = self._host_of(attempt_id)
        act(host, attempt_id)
        await self.provider.deliver(host.node_id)
        return attempt_id

    async def finish(self, job_id: str, **fields: Any) -> str:
        """The job's attempt ends, with exit code 0 unless `fields` say otherwise; its
        id.
        """
        return await self.on_host(
            job_id, lambda host, i: host.ended(i, **(fields or {"exit_code": 0}))
        )

    async def end_all(self, job_ids: Sequence[str]) -> None:
        """Let every attempt that reaches a host end well until these jobs are over."""

        def over() -> bool:
            for host in self.hosts.values():
                for attempt_id in [
                    i for i, attempt in host.attempts.items() if attempt.live
                ]:
                    host.ended(attempt_id, exit_code=0)
                self.provider.deliver_soon(host.node_id)
            return all(self.job(job_id)["state"] in OVER for job_id in job_ids)

        await eventually(over, "all jobs to be over")

    async def save(
        self, job_id: str, path: str, content: bytes = b"", step: int | None = None
    ) -> str:
        """A checkpoint with this content appears; its SHA-256."""
        content = content or path.encode()
        blob = self.blobs.put(io.BytesIO(content))
        assert blob.sha256 == hashlib.sha256(content).hexdigest()
        await self.on_host(
            job_id,
            lambda host, i: host.say(
                wire.CheckpointSaved(i, path, blob.sha256, blob.size, time.time(), step)
            ),
        )
        return blob.sha256

    async def progress(self, job_id: str, step: int) -> None:
        """The program of a job prints a step."""
        await self.on_host(
            job_id,
            lambda host, i: host.say(wire.ProgressSeen(i, {"step": step}, [])),
        )

    # --- what there is to see ---

    def job(self, job_id: str) -> dict[str, Any]:
        row = self.ledger.queries.job(job_id)
        assert row is not None
        return row

    def attempts(self, job_id: str) -> list[dict[str, Any]]:
        return self.ledger.queries.attempts_of([job_id]).get(job_id, [])

    async def until(self, job_id: str, *states: str) -> dict[str, Any]:
        """Wait until the ledger has the job in one of `states`, by default over; its
        row.
        """
        wanted = states or OVER
        await eventually(
            lambda: self.job(job_id)["state"] in wanted,
            f"{job_id} to be {' or '.join(wanted)}",
        )
        return self.job(job_id)

    async def settled(self) -> None:
        """Wait until the controller has nothing under way and all is written."""
        await eventually(lambda: not self.core._tasks, "work in the background to end")
        await self.core.committed()

    def check(self) -> None:
        """What must hold whatever happened: nothing ran twice, one live attempt a job,
        tables equal the journal.
        """
        for host in self.hosts.values():
            assert all(count <= 1 for count in host.runs.values()), (
                "an attempt was run twice"
            )
        assert not self.core.submitting, "a key is held that is in the ledger"
        live = [
            row["job_id"]
            for row in self.ledger.queries.live_attempts()
            if AttemptState(row["state"]).live
        ]
        assert len(live) == len(set(live)), "a job has two live attempts"
        tables = None
        folded = None
        # A commit that was under way in its thread may come between the two readings.
        while tables is None or state_of(self.ledger.engine) != tables:
            tables = state_of(self.ledger.engine)
            folded = self._folded()
        assert folded == tables

    def _folded(self) -> Any:
        """The tables as the journal has them."""
        place = self.folder / f"fold-{time.monotonic_ns()}.db"
        fresh = Ledger.open(blank_ledger(place))
        with self.ledger.engine.connect() as source, fresh.engine.begin() as tx:
            fold(tx, history(source))
        tables = state_of(fresh.engine)
        fresh.close()
        return tables
