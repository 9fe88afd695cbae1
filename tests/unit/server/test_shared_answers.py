"""Answers that many get: nobody gets one of others, or one that lacks what it knows of."""

import asyncio
import json
from collections.abc import Coroutine, Hashable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.types import Message, Receive, Scope, Send

from gpuyard.controller.users import OWNER, Identity
from gpuyard.controller.visibility import Visibility
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.events import Event, EventKind
from gpuyard.domain.users import Role
from gpuyard.server.app_state import AppState
from gpuyard.server.permissions import IDENTITY_KEY
from gpuyard.server.shared_answers import SharedAnswers, Sharing
from gpuyard.server.stream import EventStream
from gpuyard.server.watched_answers import WatchedAnswers, questions_of

JOB = f"job_{1:032x}"
RECENT = {"cache-control": "max-age=1"}
ANA = Identity("ana", Role.MEMBER)
BEN = Identity("ben", Role.MEMBER)
EVE = Identity("eve", Role.MEMBER)


class Instance:
    """An application that counts what it is asked, behind shared answers. The project
    hush does not exist for eve.
    """

    def __init__(self, pause_s: float = 3600.0) -> None:
        self.asked = 0
        self.shown = 0
        self.status = 200
        self.hidden_from = {"eve"}
        queries = SimpleNamespace(last_seq=lambda: 0, events_after=lambda *_: [])
        self.stream = EventStream(cast(Any, queries))
        access = SimpleNamespace(visibility_of=self._visibility_of)
        controller = SimpleNamespace(access=access)
        app_state = SimpleNamespace(stream=self.stream, controller=controller)
        self.answers = SharedAnswers(self._app, cast(AppState, app_state), pause_s)

    def _visibility_of(self, identity: Identity) -> Visibility:
        hidden = {"hush"} if identity.user in self.hidden_from else set[str]()
        is_owner = identity.role is Role.ADMINISTRATOR
        return Visibility(identity.user, frozenset(hidden), of_all_users=is_owner)

    async def _app(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        self.asked += 1
        await asyncio.sleep(0)  # others ask meanwhile
        start = {"type": "http.response.start", "status": self.status, "headers": []}
        await send(start)
        body = json.dumps({"shown": self.shown}).encode()
        await send({"type": "http.response.body", "body": body})

    async def ask(
        self, identity: Identity = ANA, path: str = "/api/v1/gpus", **headers: str
    ) -> int:
        """What it shows to somebody."""
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        scope = scope_of(identity, path, headers or RECENT)
        await self.answers(scope, cast(Receive, None), send)
        return json.loads(sent[1]["body"])["shown"]

    def happen(self, seq: int) -> None:
        """Something changes, and the event number `seq` says so."""
        self.shown = seq
        event = Event(EventKind.JOB_COMPLETED, 0.0, (), JOB, {})
        self.stream.publish(seq, [event])


def scope_of(identity: Identity, path: str, headers: dict[str, str]) -> Scope:
    path, _, query = path.partition("?")
    given = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return {
        "type": "http",
        "method": "GET",
        "path": path,
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in given],
        IDENTITY_KEY: identity,
    }


def run(test: Coroutine[Any, Any, None]) -> None:
    async def within() -> None:
        async with asyncio.timeout(30):
            await test

    asyncio.run(within())


def test_those_who_see_the_same_get_one_answer() -> None:
    async def test() -> None:
        instance = Instance()
        await asyncio.gather(*(instance.ask(ANA) for _ in range(50)))
        assert await instance.ask(BEN) == 0
        assert instance.asked == 1
        await instance.ask(EVE)
        await instance.ask(OWNER)
        assert instance.asked == 3

    run(test())


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/api/v1/gpus", {"accept": "*/*"}),
        ("/api/v1/gpus", {"cache-control": "max-age=0"}),
        ("/api/v1/jobs?array=mine", RECENT),
        ("/api/v1/jobs/mine", RECENT),
        ("/api/v1/tokens", RECENT),
        ("/api/v1/events", RECENT),
    ],
)
def test_others_are_asked_each_time(path: str, headers: dict[str, str]) -> None:
    async def test() -> None:
        instance = Instance()
        for _ in range(3):
            await instance.ask(ANA, path, **headers)
        assert instance.asked == 3

    run(test())


def test_no_answer_lacks_what_has_happened() -> None:
    async def test() -> None:
        instance = Instance(pause_s=0.1)
        assert await instance.ask() == 0
        instance.happen(1)
        assert await instance.ask() == 1
        instance.happen(2)
        waiting = {
            "cache_control": "max-age=1",
            "last_event_id": "2",
            "prefer": "wait=1",
        }
        waiters = [asyncio.create_task(instance.ask(**waiting)) for _ in range(9)]
        await asyncio.sleep(0)
        instance.happen(3)
        assert {await waiter for waiter in waiters} == {3}
        assert instance.asked == 3

    run(test())


def test_who_has_heard_of_less_does_not_wait_for_more() -> None:
    async def test() -> None:
        instance = Instance()
        instance.happen(1)
        await instance.ask()
        instance.happen(2)
        assert await instance.ask(cache_control="max-age=1", last_event_id="1") == 1

    run(test())


def test_progress_of_a_job_is_missing_from_no_answer_about_it() -> None:
    async def test() -> None:
        instance = Instance()
        await instance.ask(path=f"/api/v1/jobs/{JOB}")
        instance.stream.publish_progress(JOB, {"step": 1}, 0.0)
        await instance.ask(path=f"/api/v1/jobs/{JOB}")
        assert instance.asked == 2

    run(test())


def test_an_error_is_not_kept() -> None:
    async def test() -> None:
        instance = Instance()
        instance.status = 503
        await instance.ask()
        await instance.ask()
        assert instance.asked == 2

    run(test())


# --- what is watched ---


def sharing_of(instance: Instance, identity: Identity) -> Sharing:
    scope = scope_of(identity, "/api/v1/events", {"accept": "text/event-stream"})
    return Sharing(instance.answers, scope)


async def next_answer(stream: EventStream, questions: dict[Hashable, Scope]) -> Any:
    """The first answer that somebody hears who begins to watch."""
    async for batch in stream.listen(0, None, watched=questions):
        for message in batch:
            if message.kind == "answer":
                sse = message.to_sse().decode()
                return json.loads(sse.partition("data: ")[2])
    return None


def test_what_is_watched_is_told_to_all_when_it_changes() -> None:
    async def test() -> None:
        instance = Instance(pause_s=0.1)
        watched = WatchedAnswers(instance.stream)
        sharing = sharing_of(instance, ANA)
        path = "/api/v1/jobs?limit=8"
        questions = dict(questions_of(sharing, [path]))
        with watched.watching(questions, sharing):
            others = [next_answer(instance.stream, questions) for _ in range(9)]
            answers = await asyncio.gather(*others)
            first = {"path": path, "status": 200, "body": {"shown": 0}}
            assert answers == [first] * 9
            assert instance.asked == 1
            instance.happen(1)
            instance.status = 404
            while (told := await next_answer(instance.stream, questions)) == first:
                await instance.stream.changed(1)
            assert told == {"path": path, "status": 404, "body": {"shown": 1}}
        asked = instance.asked
        instance.happen(2)
        await asyncio.sleep(0)
        assert instance.asked == asked

    run(test())


def test_nobody_is_told_what_has_become_hidden() -> None:
    async def test() -> None:
        instance = Instance(pause_s=0.1)
        watched = WatchedAnswers(instance.stream)
        sharing = sharing_of(instance, ANA)
        questions = dict(questions_of(sharing, ["/api/v1/jobs"]))
        instance.hidden_from.add("ana")
        with watched.watching(questions, sharing):
            instance.happen(1)
            await asyncio.sleep(0.01)
            assert instance.asked == 0
        assert not instance.answers.are_same(questions)

    run(test())


def test_nobody_makes_the_server_ask_without_end() -> None:
    async def test() -> None:
        instance = Instance()
        watched = WatchedAnswers(instance.stream)
        by_ana = sharing_of(instance, ANA)
        many = [f"/api/v1/jobs?name={number}" for number in range(129)]
        with ExitStack() as open_pages:
            for path in [*many[:128], *many[:128]]:
                one = questions_of(by_ana, [path])
                assert watched.has_room(one, by_ana)
                open_pages.enter_context(watched.watching(one, by_ana))
            more = questions_of(by_ana, many[128:])
            assert not watched.has_room(more, by_ana)
            for_ana = Identity("ben", Role.MEMBER, sender=ANA)
            assert not watched.has_room(more, sharing_of(instance, for_ana))
            for other in (BEN, OWNER):
                assert watched.has_room(more, sharing_of(instance, other))
        assert watched.has_room(more, by_ana)

    run(test())


@pytest.mark.parametrize(
    "path", ["", "/api/v1/tokens", "/api/v1/jobs?array=mine", "/api/v1/jobs/mine/logs"]
)
def test_not_everything_can_be_watched(path: str) -> None:
    sharing = sharing_of(Instance(), ANA)
    with pytest.raises(InvalidInputError, match=r"watch.*which nobody can watch"):
        questions_of(sharing, [path])
