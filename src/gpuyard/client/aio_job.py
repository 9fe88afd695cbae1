"""A submitted job, as the asynchronous SDK hands it out."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from gpuyard.client import calls, job_calls
from gpuyard.client.handle import Handle
from gpuyard.client.lines import LineReader
from gpuyard.domain.artifacts import Artifact
from gpuyard.domain.jobs import Checkpoint, Job
from gpuyard.domain.records import RunRecord

if TYPE_CHECKING:
    from gpuyard.client.aio import AsyncClient
    from gpuyard.client.commands import CommandResult


class AsyncJobHandle(Handle[Job]):
    """A submitted job: `info` is its resource as last read."""

    def __init__(self, client: "AsyncClient", info: Job) -> None:
        super().__init__(info)
        self._client = client

    async def refresh(self) -> Job:
        """Read the job anew."""
        self.info = await self._client.call(calls.job(self.id))
        return self.info

    async def logs(
        self,
        *,
        follow: bool = True,
        lines: int | None = None,
        attempt: int | None = None,
    ) -> AsyncIterator[str]:
        """Its output line by line; with `follow` (the default) until the job is
        over.
        """
        reader = LineReader()
        async for part in self._client.log_bytes(
            self.id, lines=lines, follow=follow, attempt=attempt
        ):
            for line in reader.feed(part):
                yield line
        for line in reader.close():
            yield line

    async def wait(self) -> Job:
        """Wait until it is over; use asyncio.timeout for a limit."""
        pause = 0.02
        while not (await self.refresh()).state.terminal:
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, 1.0)
        return self.info

    async def cancel(self) -> Job:
        """End it."""
        self.info = await self._client.call(calls.cancel(self.id))
        return self.info

    async def resume(self, checkpoint: str | None = None, **changes: Any) -> Job:
        """Start a new attempt from its newest checkpoint, or from the one named.

        `changes`, where it needs something else: `priority`, `timeout_s`, `gpus`.
        """
        call = calls.resume(self.id, checkpoint, changes)
        self.info = await self._client.call(call)
        return self.info

    async def exec(
        self, command: Sequence[str], *, stdin: bytes = b""
    ) -> "CommandResult":
        """Run a command beside the running job, with its GPUs, folder and environment;
        returns when it has ended. RefusedError when the job does not run.
        """
        from gpuyard.client.commands import run_beside

        return await run_beside(self._client.address, self.id, command, stdin)

    async def hold(self) -> Job:
        """Let it not start before it is released."""
        await self._client.call(job_calls.set_held([self.id], "hold"))
        return await self.refresh()

    async def release(self) -> Job:
        """Let it start."""
        await self._client.call(job_calls.set_held([self.id], "release"))
        return await self.refresh()

    async def update(self, **changes: Any) -> Job:
        """Give it another `name`, `priority`, `timeout_s` or `deadline` (None: it has
        none any more); RefusedError for what cannot change any more.
        """
        self.info = await self._client.call(job_calls.update(self.id, changes))
        return self.info

    async def record(self) -> RunRecord:
        """What it ran: code, packages, data, host, driver and seed."""
        return await self._client.call(job_calls.record(self.id))

    async def rerun(self) -> "tuple[AsyncJobHandle, list[str]]":
        """Run it once more with the code, environment, packages and data that it had;
        returns the new job, and what may differ. RefusedError when something is gone.
        """
        (job, notes) = await self._client.call(job_calls.rerun(self.id))
        return AsyncJobHandle(self._client, job), notes

    async def why(self) -> dict[str, Any]:
        """Why it waits."""
        return await self._client.call(calls.why(self.id))

    async def metrics(
        self, *names: str, points: int = 1000
    ) -> dict[str, list[dict[str, Any]]]:
        """Its metric series by name."""
        return await self._client.call(calls.metrics(self.id, names, points))

    async def checkpoints(self) -> list[Checkpoint]:
        """Its checkpoints, oldest first."""
        return await self._client.call(calls.checkpoints(self.id))

    async def artifacts(self) -> list[Artifact]:
        """The files that it has left, by path."""
        return await self._client.artifacts(self.id)
