"""The synchronous SDK.

with gpuyard.Client() as client:
    job = client.run(["python3", "train.py"], tier="GPU_SMALL")
    for line in job.logs():
        print(line)
    print(job.refresh().state)
"""

import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
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
from gpuyard.client.sync_arrays import ArrayMethods
from gpuyard.client.sync_artifacts import ArtifactMethods
from gpuyard.client.sync_costs import CostMethods
from gpuyard.client.sync_datasets import DatasetMethods
from gpuyard.client.sync_job import JobHandle
from gpuyard.client.sync_projects import ProjectMethods
from gpuyard.client.sync_reservations import ReservationMethods
from gpuyard.client.sync_schedules import ScheduleMethods
from gpuyard.client.sync_trust import TrustMethods
from gpuyard.client.sync_users import UserMethods
from gpuyard.client.transport import (
    STREAM_TIMEOUT,
    TIMEOUT,
    answer_of,
    content_of,
    options,
    sent_as,
)
from gpuyard.domain.errors import GpuyardError, NotFoundError
from gpuyard.domain.jobs import Checkpoint, Job, JobOutcome
from gpuyard.domain.secret_facts import SecretFacts

T = TypeVar("T")


class Client(
    ArrayMethods,
    TrustMethods,
    ArtifactMethods,
    ScheduleMethods,
    UserMethods,
    ProjectMethods,
    CostMethods,
    ReservationMethods,
    DatasetMethods,
):
    """A connection to an instance.

    With no `address`, to `$GPUYARD_URL` or the embedded server, started if need be
    (with `start`). A server that has answered and goes away is waited for, as long as
    `patience_s`; `tell` hears of it. Each request is sent within `asking(address)`.
    """

    def __init__(
        self,
        address: Address | None = None,
        *,
        transport: httpx.BaseTransport | None = None,
        start: bool = True,
        patience_s: float = PATIENCE_S,
        tell: Callable[[str], None] | None = None,
        asking: Callable[[Address], AbstractContextManager[object]] = nullcontext,
    ) -> None:
        self.asking = asking
        self.address = address or find_server(start=start)
        self.patience_s = patience_s
        self.tell = tell
        self._found = address is None
        self._known = Known.NOTHING
        self._carrier = EnvironmentCarrier()
        self._transport = transport
        self._http = httpx.Client(**options(self.address, transport))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connections."""
        self._http.close()

    def call(self, call: Call[T]) -> T:
        """Carry one call, again if it is lost; GpuyardError (as the server raised it)
        or UnreachableError.
        """
        content = content_of(call.body)
        resend = Resend(call, self._known, self.patience_s, self.tell)
        while True:
            try:
                url = self.address.url + call.path
                response = self._ask(call, url, content)
                self._known = Known.ANSWERS
                resend.end()
                return answer_of(call, response)
            except (httpx.HTTPError, *AGAIN) as error:
                pause = self._pause(resend, error)
            time.sleep(pause)
            if self._found:
                self._move(look_again(self.address, start=call.submits))

    def _ask(self, call: Call[Any], url: str, content: bytes | None) -> httpx.Response:
        """The answer to one request."""
        waits = nullcontext if call.waits else self.asking
        with waits(self.address):
            return self._http.request(
                call.method, url, params=dict(call.params), **sent_as(content)
            )

    def _pause(self, resend: Resend, error: Lost) -> float:
        """Seconds before a call is sent again."""
        try:
            return resend.pause(self.address, error)
        finally:
            if resend.in_vain:
                self._known = Known.AWAY

    def _move(self, address: Address) -> None:
        """Talk to the server at `address` from now on."""
        if address.socket != self.address.socket:
            self._http.close()
            self._http = httpx.Client(**options(address, self._transport))
        self.address = address

    def run(self, work: Work, *, snapshot: bool = False, **fields: Any) -> JobHandle:
        """Submit `work` (a command as a list, a JobSpec, S2's JobConfig or a mapping)
        and return its handle.

        With `snapshot` it runs the code that its folder has now, as with `gpuyard run`,
        and not as it is when the job starts; RefusedError if that cannot be stored.
        """
        (job,) = self.submit([body_of(work, fields)], snapshot=snapshot)
        return JobHandle(self, job)

    def submit_many(
        self, bodies: Sequence[Work], *, snapshot: bool = False
    ) -> list[JobHandle]:
        """Submit specs together: all are queued, or none. `snapshot`: as for `run`."""
        plain = [body_of(body, {}) for body in bodies]
        jobs = self.submit(plain, snapshot=snapshot)
        return [JobHandle(self, job) for job in jobs]

    def submit(self, bodies: Sequence[Any], *, snapshot: bool = False) -> list[Job]:
        """Queue jobs in the form of the API, all or none. `snapshot`: as for `run`."""
        if snapshot:
            (bodies, problems) = self.storing_code(bodies)
            stored_code.refuse(problems)
        filled_in = self.carrying(bodies)
        if len(filled_in) == 1:
            return [self.call(calls.submit(filled_in[0]))]
        return self.call(calls.submit_many(filled_in))

    def storing_code(self, bodies: Sequence[Any]) -> tuple[list[Any], list[str]]:
        """`bodies`, each job that runs on this host with the code of its folder, which
        is stored now; and why that of some folders was not.
        """
        answers = {
            folder: self._store_code(folder)
            for folder in stored_code.folders_of(self.address, bodies)
        }
        return stored_code.with_code(self.address, bodies, answers)

    def _store_code(self, folder: stored_code.Folder) -> stored_code.Answer:
        try:
            return self.call(calls.store_code(*folder))
        except NotFoundError:
            return stored_code.OLD_SERVER

    def carrying(self, bodies: Sequence[Any]) -> list[Any]:
        """`bodies`, each job with the environment of this process if it runs here, and
        with the packages that it names.
        """
        files = package_files.files_named(bodies)
        digests = {file: self.call(package_files.store(file)) for file in files}
        bodies = package_files.with_packages(bodies, digests)
        request = self._carrier.request(self.address, bodies)
        if request is not None:
            # A server of an older version knows no environments.
            with suppress(NotFoundError):
                self._carrier.stored = self.call(request)
        return self._carrier.filled_in(bodies)

    def job(self, reference: str) -> JobHandle:
        """A job by id, by the ending of its id, or the newest of a name;
        NotFoundError.
        """
        return JobHandle(self, self.call(calls.job(reference)))

    def jobs(self, **filters: Any) -> Iterator[Job]:
        """Every job, newest first, read page by page; `state`, `name` (with `*` and
        `?`), `project`, `user`, `label` (a mapping), `since` (UTC seconds), `array`,
        `limit` (a page's size).
        """
        wanted = job_calls.listed(filters)
        cursor: str | None = None
        while True:
            page, cursor = self.call(
                calls.jobs({**wanted, **({"cursor": cursor} if cursor else {})})
            )
            yield from page
            if cursor is None:
                return

    def cancel_jobs(self, *references: str, **conditions: Any) -> list[str]:
        """End many jobs in one request; the ids of those that were not over.

        Give jobs (ids, ends of ids, names), or `all=True`, or conditions: `state` (a
        list), `name`, `project`, `user`, `label` (a mapping), `since` (UTC seconds).
        """
        body = dict(conditions)
        if references:
            body["jobs"] = references
        cancelled = self.call(job_calls.cancel_many(body))
        return job_calls.ended_by(cancelled)

    def wait_for(
        self, *references: str, timeout: float | None = None
    ) -> list[JobOutcome]:
        """Wait until these jobs are over; how each ended, in their order. TimeoutError
        after `timeout` seconds.
        """
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            left_s = max(deadline - time.monotonic(), 0.0)
            wait_s = min(left_s, job_calls.LONGEST_WAIT_S)
            over, waiting = self.call(job_calls.wait(references, wait_s))
            if not waiting:
                return over
            if left_s <= wait_s:
                count = sum(waiting.values())
                raise TimeoutError(f"jobs not over after {timeout:g} s: {count}")

    def gpus(self) -> list[dict[str, Any]]:
        """Every GPU."""
        return self.call(calls.listing("gpus"))

    def nodes(self) -> list[dict[str, Any]]:
        """Every node."""
        return self.call(calls.listing("nodes"))

    def tiers(self) -> list[dict[str, Any]]:
        """Every tier."""
        return self.call(calls.listing("tiers"))

    def secrets(self) -> list[SecretFacts]:
        """Every secret whose name is known; never its value."""
        return self.call(calls.secrets())

    def set_secret(self, name: str, value: str, *, shared: bool = False) -> SecretFacts:
        """Set or replace a secret, which jobs refer to by its name: your own jobs, or
        with `shared` those of all.
        """
        return self.call(calls.set_secret(name, value, shared=shared))

    def remove_secret(
        self, name: str, *, shared: bool = False, owner: str | None = None
    ) -> SecretFacts:
        """Remove a secret of yours, a shared one, or that of `owner`; what it was.
        NotFoundError.
        """
        call = calls.remove_secret(name, shared=shared, owner=owner)
        return self.call(call)

    def batch(
        self, script: str, source: str, *, most: int | None = None, **fields: Any
    ) -> dict[str, Any]:
        """Submit `script` over the items of a folder, a glob, a manifest or a .zim;
        `fields` are a BatchSpec's.
        """
        items = media.expand(script, source, most)
        if media.is_media(script):
            media.probe(items)
        return self.call(calls.submit_batch(batch_body(script, items, source, fields)))

    def events(
        self, *, after: int | None = None, job: str | None = None
    ) -> Iterator[dict[str, Any]]:
        """The live stream of events after the number `after` (default: from now on).

        It goes on when the connection breaks, and misses nothing; UnreachableError
        after `patience_s` without a server.
        """
        reader = EventReader(after)
        outage = Outage(self.patience_s, self.tell)
        while True:
            reader.begin()
            try:
                for part in self._stream(calls.event_stream(reader.last_id, job)):
                    outage.end()
                    yield from reader.feed(part)
                error = broken_off(self.address)
            except AGAIN as raised:
                error = raised
            self._wait_for_server(outage, error)

    def chat(self, body: calls.Json, *, priority: int | None = None) -> Iterator[str]:
        """Ask a model, in the form of OpenAI's chat request; its answer piece by piece.
        `priority`: 1 to 5, as for jobs.
        """
        reader = LineReader()
        for part in self._stream(calls.chat(body, streamed=True, priority=priority)):
            yield from map(calls.piece_of, reader.feed(part))
        yield from map(calls.piece_of, reader.close())

    def ask(self, body: calls.Json, *, priority: int | None = None) -> dict[str, Any]:
        """As `chat`; the whole answer, in OpenAI's form."""
        parts = self._stream(calls.chat(body, streamed=False, priority=priority))
        answer: dict[str, Any] = json.loads(b"".join(parts))
        return answer

    def log_bytes(
        self,
        reference: str,
        *,
        lines: int | None = None,
        follow: bool = False,
        attempt: int | None = None,
    ) -> Iterator[bytes]:
        """A job's output as it comes, undecoded.

        With `follow` it goes on where it was when the connection breaks;
        UnreachableError after `patience_s` without a server.
        """
        if follow:
            return self._follow_log(reference, lines, attempt)
        return self._stream(calls.log(reference, lines, follow, attempt))

    def log_lines(
        self,
        reference: str,
        *,
        tail: int | None = None,
        follow: bool = False,
        **wanted: Any,
    ) -> Iterator[dict[str, Any]]:
        """Lines of a job's output, oldest first: `attempt`, `offset`, `time`, `level`,
        `section`, `text`; the last so many with `tail`, until the job is over with
        `follow`.

        All of these must hold: `search` (text), `regex` (RE2), `level` (at least that),
        `section`, `since` and `until` (UTC seconds). Besides: `attempt`, `ignore_case`,
        and `sections` to say in which section each line stands.
        """
        reader = LinesReader(reference, tail, follow, wanted)
        while not reader.is_over:
            yield from reader.feed(self.call(reader.call()))

    def _follow_log(
        self, reference: str, lines: int | None, attempt: int | None
    ) -> Iterator[bytes]:
        reader = LogReader(reference, lines, attempt)
        outage = Outage(self.patience_s, self.tell)
        while not reader.is_over:
            try:
                for part in self._stream(reader.request()):
                    outage.back()
                    for output in reader.feed(part):
                        outage.end()
                        yield output
                if reader.is_over:
                    return
                error = broken_off(self.address)
            except AGAIN as raised:
                error = raised
            self._wait_for_server(outage, error)

    def _wait_for_server(self, outage: Outage, error: GpuyardError) -> None:
        """Pause before a stream is asked for again; raises `error` when that makes no
        sense.
        """
        if self._known is not Known.ANSWERS:
            raise error
        time.sleep(outage.pause(error))
        if self._found:
            self._move(look_again(self.address, start=False))

    def download(self, checkpoint: Checkpoint, target: Path) -> Path:
        """Save a checkpoint as `target` (into it, when it is a folder); appears whole
        or not at all.
        """
        return self._save(
            calls.content(checkpoint.id), calls.saved_as(checkpoint, target)
        )

    def back_up(self, target: Path) -> Path:
        """Save the whole ledger as it is now as `target`, a SQLite file; appears whole
        or not at all.
        """
        return self._save(calls.backup(), target, mode=0o600)

    def export_costs(
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
        return self._save(cost_calls.focus(begin, end, timezone), target)

    def _save(self, stream: StreamCall, target: Path, mode: int = 0o666) -> Path:
        partial = target.with_name(target.name + ".partial")
        partial.unlink(missing_ok=True)
        partial.touch(mode)
        with partial.open("wb") as file:
            for part in self._stream(stream):
                file.write(part)
        return partial.replace(target)

    def _stream(self, stream: StreamCall) -> Iterator[bytes]:
        wanted: dict[str, Any] = {
            "params": dict(stream.params),
            "headers": dict(stream.headers),
        }
        if stream.body is not None:
            wanted["content"] = content_of(stream.body)
        try:
            with self._http.stream(
                stream.method,
                self.address.url + stream.path,
                timeout=TIMEOUT if stream.beats else STREAM_TIMEOUT,
                **wanted,
            ) as answer:
                if answer.is_error:
                    answer.read()
                    raise error_of(answer.status_code, answer.content)
                self._known = Known.ANSWERS
                yield from answer.iter_bytes()
        except httpx.HTTPError as error:
            raise unreachable(self.address, error) from None
