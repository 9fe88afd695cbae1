"""A submitted job, as the synchronous SDK hands it out."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from gpuyard.client import calls, job_calls
from gpuyard.client.handle import Handle
from gpuyard.client.lines import LineReader
from gpuyard.domain.artifacts import Artifact
from gpuyard.domain.jobs import Checkpoint, Job
from gpuyard.domain.records import RunRecord

if TYPE_CHECKING:
    from gpuyard.client.commands import CommandResult
    from gpuyard.client.sync import Client


class JobHandle(Handle[Job]):
    """A submitted job: `info` is its resource as last read."""

    def __init__(self, client: "Client", info: Job) -> None:
        super().__init__(info)
        self._client = client

    def refresh(self) -> Job:
        """Read the job anew."""
        self.info = self._client.call(calls.job(self.id))
        return self.info

    def logs(
        self,
        *,
        follow: bool = True,
        lines: int | None = None,
        attempt: int | None = None,
    ) -> Iterator[str]:
        """Its output line by line; with `follow` (the default) until the job is
        over.
        """
        reader = LineReader()
        for part in self._client.log_bytes(
            self.id, lines=lines, follow=follow, attempt=attempt
        ):
            yield from reader.feed(part)
        yield from reader.close()

    def output(self, *, lines: int | None = None) -> Iterator[bytes]:
        """Its output as it comes, undecoded, until the job is over."""
        return self._client.log_bytes(self.id, lines=lines, follow=True)

    def peek(self) -> Job:
        """Its resource as it is now, on a connection of its own: safe beside a thread
        that follows the log.
        """
        with type(self._client)(self._client.address) as client:
            return client.call(calls.job(self.id))

    def wait(self, timeout: float | None = None) -> Job:
        """Wait until it is over; TimeoutError after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        pause = 0.02
        while not self.refresh().state.terminal:
            if deadline is not None and time.monotonic() > deadline:
                raise TimeoutError(
                    f"job {self.id} is still {self.state} after {timeout:g} s"
                )
            time.sleep(pause)
            pause = min(pause * 1.5, 1.0)
        return self.info

    def cancel(self) -> Job:
        """End it."""
        self.info = self._client.call(calls.cancel(self.id))
        return self.info

    def resume(self, checkpoint: str | None = None, **changes: Any) -> Job:
        """Start a new attempt from its newest checkpoint, or from the one named.

        `changes`, where it needs something else: `priority`, `timeout_s`, `gpus`.
        """
        call = calls.resume(self.id, checkpoint, changes)
        self.info = self._client.call(call)
        return self.info

    def exec(self, command: Sequence[str], *, stdin: bytes = b"") -> "CommandResult":
        """Run a command beside the running job, with its GPUs, folder and environment;
        returns when it has ended. RefusedError when the job does not run.
        """
        from gpuyard.client.commands import run_beside

        # A thread of its own: the caller may have an event loop, as notebooks do.
        with ThreadPoolExecutor(1, "gpuyard-exec") as thread:
            running = run_beside(self._client.address, self.id, command, stdin)
            return thread.submit(asyncio.run, running).result()

    def hold(self) -> Job:
        """Let it not start before it is released."""
        self._client.call(job_calls.set_held([self.id], "hold"))
        return self.refresh()

    def release(self) -> Job:
        """Let it start."""
        self._client.call(job_calls.set_held([self.id], "release"))
        return self.refresh()

    def update(self, **changes: Any) -> Job:
        """Give it another `name`, `priority`, `timeout_s` or `deadline` (None: it has
        none any more); RefusedError for what cannot change any more.
        """
        self.info = self._client.call(job_calls.update(self.id, changes))
        return self.info

    def record(self) -> RunRecord:
        """What it ran: code, packages, data, host, driver and seed."""
        return self._client.call(job_calls.record(self.id))

    def rerun(self) -> "tuple[JobHandle, list[str]]":
        """Run it once more with the code, environment, packages and data that it had;
        returns the new job, and what may differ. RefusedError when something is gone.
        """
        (job, notes) = self._client.call(job_calls.rerun(self.id))
        return JobHandle(self._client, job), notes

    def why(self) -> dict[str, Any]:
        """Why it waits."""
        return self._client.call(calls.why(self.id))

    def metrics(
        self, *names: str, points: int = 1000
    ) -> dict[str, list[dict[str, Any]]]:
        """Its metric series by name: points of `step`, `value`, `at`."""
        return self._client.call(calls.metrics(self.id, names, points))

    def checkpoints(self) -> list[Checkpoint]:
        """Its checkpoints, oldest first."""
        return self._client.call(calls.checkpoints(self.id))

    def artifacts(self) -> list[Artifact]:
        """The files that it has left, by path."""
        return self._client.artifacts(self.id)
