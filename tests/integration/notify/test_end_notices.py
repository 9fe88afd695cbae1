"""Who is named by a job is told once when it has ended, by a real receiver or mail
server, whatever it answers and whoever is killed.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuyard.domain.emails import EmailSpec
from gpuyard.domain.errors import LedgerError
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.ledger.ledger import Ledger
from gpuyard.notify.end_notices import EndNotices
from gpuyard.notify.mailbox import read_mail_server
from gpuyard.notify.senders import Senders
from tests.support.blank_ledger import blank_ledger
from tests.support.mail_server import mail_server
from tests.support.receiver import HANG, receiver
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio
ENDED_AT = 1_795_000_000.0


class Office:
    """A server's part: it commits, and tells who is named by jobs."""

    def __init__(self, ledger: Ledger, email: EmailSpec | None, give_up_s: float):
        self.ledger = ledger
        self.told: list[Event] = []
        self.is_killed = False
        mail = (read_mail_server(email, {}), email.sender) if email else None
        self.notices = EndNotices(
            ledger.queries,
            self.record,
            Senders(),
            mail,
            ["internal.example.org"],
            give_up_s,
            first_wait_s=0.01,
        )
        self.writer = ledger.writer(self.notices.on_commit)

    async def record(self, events: Sequence[Event]) -> None:
        if self.is_killed:
            raise LedgerError("killed before the commit")
        await self.commit(*events)
        self.told += events

    async def commit(self, *events: Event) -> None:
        self.writer.add_events(events)
        await self.writer.committed()

    async def begins(
        self, thing: str, *addresses: str, owner: str | None = None
    ) -> None:
        """A job that names these addresses."""
        await self.commit(job_event(EventKind.JOB_SUBMITTED, thing, "running"))
        await self.names(thing, *addresses, owner=owner)

    async def names(
        self, thing: str, *addresses: str, owner: str | None = None
    ) -> None:
        changes = tuple(
            Change(
                Table.NOTICES,
                f"{thing}/{number}",
                {"job_id": thing, "address": address, "owner": owner},
            )
            for number, address in enumerate(addresses)
        )
        await self.commit(Event(EventKind.JOB_UPDATED, ENDED_AT, changes))

    async def ends(self, thing: str) -> None:
        await self.commit(job_event(EventKind.JOB_FAILED, thing, "failed"))


def job_event(
    kind: EventKind, job_id: str, state: str, array_id: str | None = None
) -> Event:
    row: dict[str, Any] = {
        "name": "train",
        "project": "vision",
        "state": state,
        "reason": "exit_code" if state == "failed" else None,
        "exit_code": 3 if state == "failed" else None,
        "ended_at": ENDED_AT,
        "array_id": array_id,
    }
    return Event(kind, ENDED_AT, (Change(Table.JOBS, job_id, row),), job_id, {})


@pytest.fixture
def office(ledger: Ledger) -> Callable[..., AbstractAsyncContextManager[Office]]:
    @asynccontextmanager
    async def serving(
        email: EmailSpec | None = None, give_up_s: float = 3600.0 * 24 * 36500
    ) -> AsyncIterator[Office]:
        made = Office(ledger, email, give_up_s)
        made.writer.start()
        await made.notices.start()
        yield made
        await made.notices.close()
        await made.writer.close()

    return serving


Serve = Callable[..., AbstractAsyncContextManager[Office]]


async def test_each_address_is_told_once_when_the_job_has_ended(office: Serve) -> None:
    with receiver() as there, receiver() as chat:
        async with office() as serving:
            await serving.begins("job_1", there.url, f"slack:{chat.url}")
            await serving.begins("job_2", there.url)
            await serving.ends("job_1")
            await eventually(lambda: len(serving.told) == 2)
        async with office() as serving:  # a server that begins later
            await serving.ends("job_2")
            await eventually(lambda: len(serving.told) == 1)
    first, second = there.bodies()
    assert (first["kind"], first["job_id"]) == ("job.failed", "job_1")
    assert first["text"] == "Job train (job_1) failed: exit code 3."
    assert first["data"]["exit_code"] == 3
    assert first["data"]["project"] == "vision"
    assert second["job_id"] == "job_2"
    assert [body["text"] for body in chat.bodies()] == [first["text"]]
    (said,) = serving.told
    assert said.info == {"to": "webhook at 127.0.0.1"}


async def test_what_ended_without_a_server_is_told_and_comes_twice_with_one_id(
    office: Serve,
) -> None:
    with receiver() as there:
        async with office() as serving:
            serving.is_killed = True
            await serving.begins("job_1", there.url)
            await serving.ends("job_1")
            await eventually(lambda: there.taken)
        async with office() as serving:
            await eventually(lambda: serving.told)
    first, second = there.bodies()
    assert first == second


async def test_an_array_is_told_of_when_its_last_task_has_ended(office: Serve) -> None:
    with receiver() as there:
        async with office() as serving:
            array = {"name": "folds", "project": None, "total": 2}
            change = Change(Table.ARRAYS, "array_1", array)
            await serving.commit(Event(EventKind.ARRAY_SUBMITTED, ENDED_AT, (change,)))
            for state in ("running", "queued"):
                job = f"job_{state}"
                kind = EventKind.JOB_SUBMITTED
                await serving.commit(job_event(kind, job, state, "array_1"))
            await serving.names("array_1", there.url)
            kind = EventKind.JOB_FAILED
            await serving.commit(job_event(kind, "job_running", "failed", "array_1"))
            await eventually(lambda: serving.notices.idle)
            assert there.taken == []
            kind = EventKind.JOB_COMPLETED
            await serving.commit(job_event(kind, "job_queued", "completed", "array_1"))
            await eventually(lambda: serving.told)
    (body,) = there.bodies()
    assert (body["kind"], body["array_id"]) == ("array.ended", "array_1")
    assert body["text"].endswith("2 jobs) has ended: 1 completed, 1 failed.")
    assert body["data"]["counts"] == {"completed": 1, "failed": 1}
    assert serving.told[0].info["array_id"] == "array_1"


async def test_who_does_not_answer_delays_nobody_and_is_tried_again(
    office: Serve,
) -> None:
    with receiver() as dead, receiver() as busy, receiver() as there:
        dead.answers += [HANG]
        busy.answers += [503, 500]
        async with office() as serving:
            await serving.begins("job_1", dead.url, busy.url, there.url)
            await serving.ends("job_1")
            await eventually(lambda: there.taken and busy.taken)
        dead.over.set()
    assert len(busy.came) == 3


@pytest.mark.parametrize(
    ("answers", "tries", "why"),
    [([404], 1, "status 404: refused"), ([500] * 9, 5, "status 500")],
)
async def test_who_refuses_or_never_takes_it_is_given_up_and_it_says_so(
    office: Serve, answers: list[int], tries: int, why: str
) -> None:
    with receiver() as there:
        there.answers += answers
        async with office(give_up_s=0.0) as serving:
            await serving.begins("job_1", there.url)
            await serving.ends("job_1")
            await eventually(lambda: serving.told)
    assert (len(there.came), there.taken) == (tries, [])
    assert serving.told[0].info["problem"] == why


@pytest.mark.parametrize("has_proxy", [False, True])
async def test_the_jobs_of_users_reach_no_host_inside(
    office: Serve, monkeypatch: pytest.MonkeyPatch, has_proxy: bool
) -> None:
    with receiver() as there:
        if has_proxy:  # which would reach it
            monkeypatch.setenv("HTTP_PROXY", there.url)
        by_name = there.url.replace("127.0.0.1", "localhost")
        async with office(give_up_s=0.0) as serving:
            await serving.begins("job_1", there.url, by_name, owner="ana")
            await serving.ends("job_1")
            await eventually(lambda: len(serving.told) == 2)
    assert there.came == []
    assert {event.info["problem"] for event in serving.told} == {"ConnectError"}


async def test_one_owners_many_addresses_hide_no_others(
    office: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuyard.ledger.queries.notices._MOST_OF_OWNER", 2)
    async with office() as serving:
        await serving.notices.close()
        both = "https://example.org/both"
        many = [f"https://example.org/{number}" for number in range(3)]
        await serving.begins("job_1", *many, both, owner="ana")
        await serving.begins("job_2", both, owner="ben")
        await serving.ends("job_1")
        await serving.ends("job_2")
        due = serving.ledger.queries.due_notices()
    assert sorted((row["owner"], row["id"]) for row in due) == [
        ("ana", "job_1/0"),
        ("ana", "job_1/1"),
        ("ben", "job_2/0"),
    ]


async def test_a_mailbox_gets_an_email(tmp_path: Path) -> None:
    ledger = Ledger.open(blank_ledger(tmp_path / "ledger.db"))
    with mail_server() as there:
        given = {"host": "127.0.0.1", "port": there.port, "tls": "none"}
        spec = EmailSpec.model_validate({**given, "from": "gpuyard@example.org"})
        serving = Office(ledger, spec, 3600.0)
        serving.writer.start()
        await serving.notices.start()
        await serving.begins("job_1", "mail:ana@example.org")
        await serving.ends("job_1")
        await eventually(lambda: serving.told)
        await serving.notices.close()
        await serving.writer.close()
    ledger.close()
    assert there.subjects() == ["[gpuyard] Job train (job_1) failed: exit code 3."]
