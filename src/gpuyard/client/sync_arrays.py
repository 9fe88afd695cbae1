"""Arrays in the synchronous SDK: one job with many tasks."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from gpuyard.client import array_calls, job_calls, stored_code
from gpuyard.client.bodies import Work, body_of
from gpuyard.client.calls import Call
from gpuyard.client.handle import Handle
from gpuyard.client.sync_job import JobHandle
from gpuyard.domain.arrays import Array
from gpuyard.domain.jobs import Job

if TYPE_CHECKING:
    from gpuyard.client.sync import Client

T = TypeVar("T")


class ArrayHandle(Handle[Array]):
    """A submitted array: `info` is its resource as last read."""

    def __init__(self, client: "Client", info: Array) -> None:
        super().__init__(info)
        self._client = client

    def refresh(self) -> Array:
        """Read the array anew."""
        self.info = self._client.call(array_calls.show(self.id))
        return self.info

    def task(self, index: int) -> JobHandle:
        """The task of this index, a job like any other; NotFoundError."""
        return self._client.job(f"{self.id}_{index}")

    def tasks(self, **filters: Any) -> Iterator[Job]:
        """Its tasks, newest first; the filters of `Client.jobs`."""
        return self._client.jobs(array=self.id, **filters)

    def wait(self, timeout: float | None = None) -> Array:
        """Wait until all its tasks are over; TimeoutError after `timeout` seconds."""
        self._client.wait_for(self.id, timeout=timeout)
        return self.refresh()

    def cancel(self) -> Array:
        """End all its tasks."""
        self.info = self._client.call(array_calls.cancel(self.id))
        return self.info

    def resume(self, **changes: Any) -> Array:
        """Start a new attempt of each task that has ended without completing, from its
        newest checkpoint. `changes`: `priority`, `timeout_s`, `gpus`,
        `deadline`.
        """
        self.info = self._client.call(array_calls.resume(self.id, changes))
        return self.info

    def hold(self) -> Array:
        """Let those of its tasks that wait not start before they are released."""
        self._client.call(job_calls.set_held([self.id], "hold"))
        return self.refresh()

    def release(self) -> Array:
        """Let its tasks start."""
        self._client.call(job_calls.set_held([self.id], "release"))
        return self.refresh()

    def update(self, **changes: Any) -> Array:
        """Let `at_most` of its tasks run at once from now on, None for any number; give
        those that are not over another `priority` or `deadline` (None: none any more).
        """
        self.info = self._client.call(array_calls.update(self.id, changes))
        return self.info

    def why(self) -> dict[str, Any]:
        """Why its first waiting task waits."""
        return self._client.call(array_calls.why(self.id))


class ArrayMethods:
    """One job with many tasks."""

    def call(self, call: Call[T]) -> T:
        """Carry one call."""
        raise NotImplementedError

    def carrying(self, bodies: Sequence[Any]) -> list[Any]:
        """`bodies`, each job with the environment that it carries."""
        raise NotImplementedError

    def storing_code(self, bodies: Sequence[Any]) -> tuple[list[Any], list[str]]:
        """`bodies`, each job with the code of its folder."""
        raise NotImplementedError

    def run_array(
        self, work: Work, array: str, *, snapshot: bool = False, **fields: Any
    ) -> ArrayHandle:
        """Submit `work` (as for `run`) once for each index of `array`: `0-1999%20` are
        2,000 tasks, of which at most 20 run at once; `0-9:3` and `1,4,7-9` work, too.

        `{i}` in a word of the command is the index, and so is `$GPUYARD_ARRAY_INDEX`.
        """
        body = {**body_of(work, fields), "array": array}
        return self.submit_array(body, snapshot=snapshot)

    def submit_array(self, body: Any, *, snapshot: bool = False) -> ArrayHandle:
        """Queue an array in the form of the API. `snapshot`: as for `run`."""
        bodies = [body]
        if snapshot:
            (bodies, problems) = self.storing_code(bodies)
            stored_code.refuse(problems)
        (filled_in,) = self.carrying(bodies)
        array = self.call(array_calls.submit(filled_in))
        return ArrayHandle(cast("Client", self), array)

    def array(self, reference: str) -> ArrayHandle:
        """An array by id, by the ending of its id, or the newest of a name;
        NotFoundError.
        """
        array = self.call(array_calls.show(reference))
        return ArrayHandle(cast("Client", self), array)

    def arrays(self) -> Iterator[Array]:
        """Every array, newest first, read page by page."""
        cursor: str | None = None
        while True:
            (page, cursor) = self.call(array_calls.listing(cursor))
            yield from page
            if cursor is None:
                return
