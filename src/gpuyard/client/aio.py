"""The asynchronous SDK: the same calls, awaited.

async with gpuyard.AsyncClient() as client:
    job = await client.run(["python3", "train.py"])
    async for line in job.logs():
        print(line)
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx

from gpuyard.client import (
    calls,
    cost_calls,
    job_calls,
    media,
    package_files,
    stored_code,
)
from gpuyard.client.aio_arrays import AsyncArrayMethods
from gpuyard.client.aio_artifacts import AsyncArtifactMethods
from gpuyard.client.aio_costs import AsyncCostMethods
from gpuyard.client.aio_datasets import AsyncDatasetMethods
from gpuyard.client.aio_job import AsyncJobHandle
from gpuyard.client.aio_projects import AsyncProjectMethods
from gpuyard.client.aio_reservations import AsyncReservationMethods
from gpuyard.client.aio_schedules import AsyncScheduleMethods
from gpuyard.client.aio_trust import AsyncTrustMethods
from gpuyard.client.aio_users import AsyncUserMethods
from gpuyard.client.bodies import Work, batch_body, body_of
from gpuyard.client.calls import Call, StreamCall
from gpuyard.client.carrying import EnvironmentCarrier
from gpuyard.client.connection import Address, find_server, look_again
from gpuyard.client.followed_log import LogReader
from gpuyard.client.found_lines import LinesReader
from gpuyard.client.light import unreachable
from gpuyard.client.lines import LineReader
from gpuyard.client.problems import error_of
from gpuyard.client.resend import (
    AGAIN,
    PATIENCE_S,
    Known,
    Lost,
    Outage,
    Resend,
    broken_off,
)
from gpuyard.client.sse import EventReader
from gpuyard.client.transport import (
    STREAM_TIMEOUT,
    TIMEOUT,
    AsyncPieces,
    answer_of,
    async_options,
    content_of,
    sent_as,
)
from gpuyard.domain.errors import GpuyardError, NotFoundError
from gpuyard.domain.jobs import Checkpoint, Job, JobOutcome
from gpuyard.domain.secret_facts import SecretFacts

T = TypeVar("T")


class AsyncClient(
    AsyncArrayMethods,
    AsyncTrustMethods,
    AsyncArtifactMethods,
    AsyncScheduleMethods,
    AsyncUserMethods,
    AsyncProjectMethods,
    AsyncCostMethods,
    AsyncReservationMethods,
    AsyncDatasetMethods,
):
    """A connection to an instance.

    Entering it finds the server, and starts the embedded one if need be. See Client.
    """

    def __init__(
        self,
        address: Address | None = None,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        patience_s: float = PATIENCE_S,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self.patience_s = patience_s
        self.tell = tell
        self._address = address
        self._found = address is None
        self._known = Known.NOTHING
        self._carrier = EnvironmentCarrier()
        self._transport = transport
        self._open: httpx.AsyncClient | None = None

    async def __aenter__(self) -> Self:
        self._address = self._address or await asyncio.to_thread(find_server)
        self._open = httpx.AsyncClient(**async_options(self.address, self._transport))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    @property
    def address(self) -> Address:
        """The server's address."""
        if self._address is None:
            raise RuntimeError("use AsyncClient in `async with`")
        return self._address

    @property
    def _http(self) -> httpx.AsyncClient:
        if self._open is None:
            raise RuntimeError("use AsyncClient in `async with`")
        return self._open

    async def call(self, call: Call[T]) -> T:
        """Carry one call, again if it is lost; GpuyardError (as the server raised it)
        or UnreachableError.
        """
        content = content_of(call.body)
        resend = Resend(call, self._known, self.patience_s, self.tell)
        while True:
            try:
                url = self.address.url + call.path
                sent = sent_as(content, AsyncPieces)
                response = await self._http.request(
                    call.method, url, params=dict(call.params), **sent
                )
                self._known = Known.ANSWERS
                resend.end()
                return answer_of(call, response)
            except (httpx.HTTPError, *AGAIN) as error:
                pause = self._pause(resend, error)
            await asyncio.sleep(pause)
            if self._found:
                await self._move(
                    await asyncio.to_thread(
                        look_again, self.address, start=call.submits
                    )
                )

    def _pause(self, resend: Resend, error: Lost) -> float:
        """Seconds before a call is sent again."""
        try:
            return resend.pause(self.address, error)
        finally:
            if resend.in_vain:
                self._known = Known.AWAY

    async def _move(self, address: Address) -> None:
        """Talk to the server at `address` from now on."""
        if address.socket != self.address.socket:
            await self._http.aclose()
            self._open = httpx.AsyncClient(**async_options(address, self._transport))
        self._address = address

    async def run(
        self, work: Work, *, snapshot: bool = False, **fields: Any
    ) -> AsyncJobHandle:
        """Submit `work` (a command as a list, a JobSpec, S2's JobConfig or a mapping)
        and return its handle; `snapshot`: see `Client.run`.
        """
        body = body_of(work, fields)
        (job,) = await self.submit([body], snapshot=snapshot)
        return AsyncJobHandle(self, job)

    async def submit_many(
        self, bodies: Sequence[Work], *, snapshot: bool = False
    ) -> list[AsyncJobHandle]:
        """Submit specs together: all are queued, or none. `snapshot`: as for `run`."""
        plain = [body_of(body, {}) for body in bodies]
        jobs = await self.submit(plain, snapshot=snapshot)
        return [AsyncJobHandle(self, job) for job in jobs]

    async def submit(
        self, bodies: Sequence[Any], *, snapshot: bool = False
    ) -> list[Job]:
        """Queue jobs in the form of the API, all or none. `snapshot`: as for `run`."""
        if snapshot:
            (bodies, problems) = await self.storing_code(bodies)
            stored_code.refuse(problems)
        filled_in = await self.carrying(bodies)
        if len(filled_in) == 1:
            return [await self.call(calls.submit(filled_in[0]))]
        return await self.call(calls.submit_many(filled_in))

    async def storing_code(self, bodies: Sequence[Any]) -> tuple[list[Any], list[str]]:
        """`bodies`, each job that runs on this host with the code of its folder, which
        is stored now; and why that of some folders was not.
        """
        folders = stored_code.folders_of(self.address, bodies)
        answers = {folder: await self._store_code(folder) for folder in folders}
        return stored_code.with_code(self.address, bodies, answers)

    async def _store_code(self, folder: stored_code.Folder) -> stored_code.Answer:
        try:
            return await self.call(calls.store_code(*folder))
        except NotFoundError:
            return stored_code.OLD_SERVER

    async def carrying(self, bodies: Sequence[Any]) -> list[Any]:
        """`bodies`, each job with the environment of this process if it runs here, and
        with the packages that it names.
        """
        files = package_files.files_named(bodies)
        digests = {file: await self.call(package_files.store(file)) for file in files}
        bodies = package_files.with_packages(bodies, digests)
        request = self._carrier.request(self.address, bodies)
        if request is not None:
            # A server of an older version knows no environments.
            with suppress(NotFoundError):
                self._carrier.stored = await self.call(request)
        return self._carrier.filled_in(bodies)

    async def job(self, reference: str) -> AsyncJobHandle:
        """A job by id, by the ending of its id, or the newest of a name;
        NotFoundError.
        """
        return AsyncJobHandle(self, await self.call(calls.job(reference)))

    async def jobs(self, **filters: Any) -> AsyncIterator[Job]:
        """Every job, newest first, read page by page; the filters of `Client.jobs`."""
        wanted = job_calls.listed(filters)
        cursor: str | None = None
        while True:
            page, cursor = await self.call(
                calls.jobs({**wanted, **({"cursor": cursor} if cursor else {})})
            )
            for job in page:
                yield job
            if cursor is None:
                return

    async def cancel_jobs(self, *references: str, **conditions: Any) -> list[str]:
        """End many jobs in one request; the ids of those that were not over.

        Give jobs (ids, ends of ids, names), or `all=True`, or conditions: `state` (a
        list), `name`, `project`, `user`, `label` (a mapping), `since` (UTC seconds).
        """
        body = dict(conditions)
        if references:
            body["jobs"] = references
        cancelled = await self.call(job_calls.cancel_many(body))
        return job_calls.ended_by(cancelled)

    async def wait_for(self, *references: str) -> list[JobOutcome]:
        """Wait until these jobs are over; how each ended, in their order.

        `asyncio.timeout` bounds it.
        """
        while True:
            call = job_calls.wait(references, job_calls.LONGEST_WAIT_S)
            over, waiting = await self.call(call)
            if not waiting:
                return over

    async def gpus(self) -> list[dict[str, Any]]:
        """Every GPU."""
        return await self.call(calls.listing("gpus"))

    async def nodes(self) -> list[dict[str, Any]]:
        """Every node."""
        return await self.call(calls.listing("nodes"))

    async def tiers(self) -> list[dict[str, Any]]:
        """Every tier."""
        return await self.call(calls.listing("tiers"))

    async def secrets(self) -> list[SecretFacts]:
        """Every secret whose name is known; never its value."""
        return await self.call(calls.secrets())

    async def set_secret(
        self, name: str, value: str, *, shared: bool = False
    ) -> SecretFacts:
        """Set or replace a secret, which jobs refer to by its name: your own jobs, or
        with `shared` those of all.
        """
        return await self.call(calls.set_secret(name, value, shared=shared))

    async def remove_secret(
        self, name: str, *, shared: bool = False, owner: str | None = None
    ) -> SecretFacts:
        """Remove a secret of yours, a shared one, or that of `owner`; what it was.
        NotFoundError.
        """
        call = calls.remove_secret(name, shared=shared, owner=owner)
        return await self.call(call)

    async def batch(
        self, script: str, source: str, *, most: int | None = None, **fields: Any
    ) -> dict[str, Any]:
        """Submit `script` over the items of a folder, a glob, a manifest or a .zim;
        `fields` are a BatchSpec's.
        """

        def found() -> list[media.Item]:
            items = media.expand(script, source, most)
            if media.is_media(script):
                media.probe(items)
            return items

        items = await asyncio.to_thread(found)
        return await self.call(
            calls.submit_batch(batch_body(script, items, source, fields))
        )

    async def events(
        self, *, after: int | None = None, job: str | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        """The live stream of events after the number `after` (default: from now on).

        It goes on when the connection breaks, and misses nothing; UnreachableError
        after `patience_s` without a server.
        """
        reader = EventReader(after)
        outage = Outage(self.patience_s, self.tell)
        while True:
            reader.begin()
            stream = calls.event_stream(reader.last_id, job)
            try:
                async for part in self._stream(stream):
                    outage.end()
                    for event in reader.feed(part):
                        yield event
                error = broken_off(self.address)
            except AGAIN as raised:
                error = raised
            await self._wait_for_server(outage, error)

    async def chat(
        self, body: calls.Json, *, priority: int | None = None
    ) -> AsyncIterator[str]:
        """Ask a model, in the form of OpenAI's chat request; its answer piece by piece.
        `priority`: 1 to 5, as for jobs.
        """
        reader = LineReader()
        request = calls.chat(body, streamed=True, priority=priority)
        async for part in self._stream(request):
            for line in reader.feed(part):
                yield calls.piece_of(line)
        for line in reader.close():
            yield calls.piece_of(line)

    async def ask(
        self, body: calls.Json, *, priority: int | None = None
    ) -> dict[str, Any]:
        """As `chat`; the whole answer, in OpenAI's form."""
        request = calls.chat(body, streamed=False, priority=priority)
        parts = [part async for part in self._stream(request)]
        answer: dict[str, Any] = json.loads(b"".join(parts))
        return answer

    def log_bytes(
        self,
        reference: str,
        *,
        lines: int | None = None,
        follow: bool = False,
        attempt: int | None = None,
    ) -> AsyncIterator[bytes]:
        """A job's output as it comes, undecoded.

        With `follow` it goes on where it was when the connection breaks;
        UnreachableError after `patience_s` without a server.
        """
        if follow:
            return self._follow_log(reference, lines, attempt)
        return self._stream(calls.log(reference, lines, follow, attempt))

    async def log_lines(
        self,
        reference: str,
        *,
        tail: int | None = None,
        follow: bool = False,
        **wanted: Any,
    ) -> AsyncIterator[dict[str, Any]]:
        """Lines of a job's output, oldest first: `attempt`, `offset`, `time`, `level`,
        `section`, `text`; the last so many with `tail`, until the job is over with
        `follow`.

        All of these must hold: `search` (text), `regex` (RE2), `level` (at least that),
        `section`, `since` and `until` (UTC seconds). Besides: `attempt`, `ignore_case`,
        and `sections` to say in which section each line stands.
        """
        reader = LinesReader(reference, tail, follow, wanted)
        while not reader.is_over:
            for line in reader.feed(await self.call(reader.call())):
                yield line

    async def _follow_log(
        self, reference: str, lines: int | None, attempt: int | None
    ) -> AsyncIterator[bytes]:
        reader = LogReader(reference, lines, attempt)
        outage = Outage(self.patience_s, self.tell)
        while not reader.is_over:
            try:
                async for part in self._stream(reader.request()):
                    outage.back()
                    for output in reader.feed(part):
                        outage.end()
                        yield output
                if reader.is_over:
                    return
                error = broken_off(self.address)
            except AGAIN as raised:
                error = raised
            await self._wait_for_server(outage, error)

    async def _wait_for_server(self, outage: Outage, error: GpuyardError) -> None:
        """Pause before a stream is asked for again; raises `error` when that makes no
        sense.
        """
        if self._known is not Known.ANSWERS:
            raise error
        await asyncio.sleep(outage.pause(error))
        if self._found:
            address = await asyncio.to_thread(look_again, self.address, start=False)
            await self._move(address)

    async def download(self, checkpoint: Checkpoint, target: Path) -> Path:
        """Save a checkpoint as `target` (into it, when it is a folder); appears whole
        or not at all.
        """
        return await self._save(
            calls.content(checkpoint.id), calls.saved_as(checkpoint, target)
        )

    async def back_up(self, target: Path) -> Path:
        """Save the whole ledger as it is now as `target`, a SQLite file; appears whole
        or not at all.
        """
        return await self._save(calls.backup(), target, mode=0o600)

    async def export_costs(
        self,
        target: Path,
        *,
        begin: float | None = None,
        end: float | None = None,
        timezone: str | None = None,
    ) -> Path:
        """Save what attempts that have ended cost (see `costs`) as `target`, a CSV file
        in the columns of FOCUS 1.1.
        """
        return await self._save(cost_calls.focus(begin, end, timezone), target)

    async def _save(self, stream: StreamCall, target: Path, mode: int = 0o666) -> Path:
        partial = target.with_name(target.name + ".partial")
        partial.unlink(missing_ok=True)
        partial.touch(mode)
        with partial.open("wb") as file:
            async for part in self._stream(stream):
                await asyncio.to_thread(file.write, part)
        return partial.replace(target)

    async def _stream(self, stream: StreamCall) -> AsyncIterator[bytes]:
        wanted: dict[str, Any] = {
            "params": dict(stream.params),
            "headers": dict(stream.headers),
        }
        if stream.body is not None:
            wanted["content"] = content_of(stream.body)
        try:
            async with self._http.stream(
                stream.method,
                self.address.url + stream.path,
                timeout=TIMEOUT if stream.beats else STREAM_TIMEOUT,
                **wanted,
            ) as answer:
                if answer.is_error:
                    await answer.aread()
                    raise error_of(answer.status_code, answer.content)
                self._known = Known.ANSWERS
                async for part in answer.aiter_bytes():
                    yield part
        except httpx.HTTPError as error:
            raise unreachable(self.address, error) from None
