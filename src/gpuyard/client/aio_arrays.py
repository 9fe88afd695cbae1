"""Arrays in the asynchronous SDK: one job with many tasks."""

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from gpuyard.client import array_calls, job_calls, stored_code
from gpuyard.client.aio_job import AsyncJobHandle
from gpuyard.client.bodies import Work, body_of
from gpuyard.client.calls import Call
from gpuyard.client.handle import Handle
from gpuyard.domain.arrays import Array
from gpuyard.domain.jobs import Job

if TYPE_CHECKING:
    from gpuyard.client.aio import AsyncClient

T = TypeVar("T")


class AsyncArrayHandle(Handle[Array]):
    """A submitted array: `info` is its resource as last read."""

    def __init__(self, client: "AsyncClient", info: Array) -> None:
        super().__init__(info)
        self._client = client

    async def refresh(self) -> Array:
        """Read the array anew."""
        self.info = await self._client.call(array_calls.show(self.id))
        return self.info

    async def task(self, index: int) -> AsyncJobHandle:
        """The task of this index, a job like any other; NotFoundError."""
        return await self._client.job(f"{self.id}_{index}")

    def tasks(self, **filters: Any) -> AsyncIterator[Job]:
        """Its tasks, newest first; the filters of `Client.jobs`."""
        return self._client.jobs(array=self.id, **filters)

    async def wait(self) -> Array:
        """Wait until all its tasks are over. `asyncio.timeout` bounds it."""
        await self._client.wait_for(self.id)
        return await self.refresh()

    async def cancel(self) -> Array:
        """End all its tasks."""
        self.info = await self._client.call(array_calls.cancel(self.id))
        return self.info

    async def resume(self, **changes: Any) -> Array:
        """Start a new attempt of each task that has ended without completing, from its
        newest checkpoint. `changes`: `priority`, `timeout_s`, `gpus`,
        `deadline`.
        """
        self.info = await self._client.call(array_calls.resume(self.id, changes))
        return self.info

    async def hold(self) -> Array:
        """Let those of its tasks that wait not start before they are released."""
        await self._client.call(job_calls.set_held([self.id], "hold"))
        return await self.refresh()

    async def release(self) -> Array:
        """Let its tasks start."""
        await self._client.call(job_calls.set_held([self.id], "release"))
        return await self.refresh()

    async def update(self, **changes: Any) -> Array:
        """Let `at_most` of its tasks run at once from now on, None for any number; give
        those that are not over another `priority` or `deadline` (None: none any more).
        """
        self.info = await self._client.call(array_calls.update(self.id, changes))
        return self.info

    async def why(self) -> dict[str, Any]:
        """Why its first waiting task waits."""
        return await self._client.call(array_calls.why(self.id))


class AsyncArrayMethods:
    """As those of `Client`, awaited."""

    async def call(self, call: Call[T]) -> T:
        """Carry one call."""
        raise NotImplementedError

    async def carrying(self, bodies: Sequence[Any]) -> list[Any]:
        """`bodies`, each job with the environment that it carries."""
        raise NotImplementedError

    async def storing_code(self, bodies: Sequence[Any]) -> tuple[list[Any], list[str]]:
        """`bodies`, each job with the code of its folder."""
        raise NotImplementedError

    async def run_array(
        self, work: Work, array: str, *, snapshot: bool = False, **fields: Any
    ) -> AsyncArrayHandle:
        """Submit `work` (as for `run`) once for each index of `array`: `0-1999%20` are
        2,000 tasks, of which at most 20 run at once; `0-9:3` and `1,4,7-9` work, too.

        `{i}` in a word of the command is the index, and so is `$GPUYARD_ARRAY_INDEX`.
        """
        body = {**body_of(work, fields), "array": array}
        return await self.submit_array(body, snapshot=snapshot)

    async def submit_array(
        self, body: Any, *, snapshot: bool = False
    ) -> AsyncArrayHandle:
        """Queue an array in the form of the API. `snapshot`: as for `run`."""
        bodies = [body]
        if snapshot:
            (bodies, problems) = await self.storing_code(bodies)
            stored_code.refuse(problems)
        (filled_in,) = await self.carrying(bodies)
        array = await self.call(array_calls.submit(filled_in))
        return AsyncArrayHandle(cast("AsyncClient", self), array)

    async def array(self, reference: str) -> AsyncArrayHandle:
        """An array by id, by the ending of its id, or the newest of a name;
        NotFoundError.
        """
        array = await self.call(array_calls.show(reference))
        return AsyncArrayHandle(cast("AsyncClient", self), array)

    async def arrays(self) -> AsyncIterator[Array]:
        """Every array, newest first, read page by page."""
        cursor: str | None = None
        while True:
            (page, cursor) = await self.call(array_calls.listing(cursor))
            for array in page:
                yield array
            if cursor is None:
                return
