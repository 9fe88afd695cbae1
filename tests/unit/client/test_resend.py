"""A call whose answer is lost, or that meets a server that restarts, is sent again and
done once.
"""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest

from gpuyard.client import calls, resend
from gpuyard.client.aio import AsyncClient
from gpuyard.client.connection import Address
from gpuyard.client.sync import Client
from gpuyard.domain.errors import RateLimitedError, UnreachableError

ADDRESS = Address("http://127.0.0.1:1", "secret")
JOB = {
    "id": "job_1",
    "name": "a",
    "kind": "command",
    "state": "queued",
    "priority": 3,
    "created_at": 1.0,
}
LOST = [
    httpx.ReadError("cut"),
    httpx.RemoteProtocolError("no answer"),
    httpx.ConnectError("refused"),
]


class Server:
    """Answers with the job, but for what `faults` still holds; remembers every body it
    was sent. Its jobs carry no environment.
    """

    def __init__(self, *faults: Exception | httpx.Response) -> None:
        self.faults = list(faults)
        self.bodies: list[Any] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/api/v1/environments":
            return httpx.Response(201, json={"digest": None})
        self.bodies.append(json.loads(request.content) if request.content else None)
        fault = (
            self.faults.pop(0)
            if self.faults
            else httpx.Response(200, json=self.answer())
        )
        if isinstance(fault, Exception):
            raise fault
        return fault

    def answer(self) -> Any:
        sent = self.bodies[-1]
        return (
            {"items": [JOB] * len(sent), "next": None}
            if isinstance(sent, list)
            else JOB
        )


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses without waiting, four at most, and two for a glance."""

    def pauses(patience_s: float) -> Iterator[float]:
        return iter([0.0] * min(4, round(10 * patience_s)))

    monkeypatch.setattr(resend, "pauses", pauses)


def sync(server: Server, work: Callable[[Client], Any]) -> Any:
    with Client(ADDRESS, transport=httpx.MockTransport(server)) as client:
        return work(client)


@pytest.mark.parametrize("fault", LOST, ids=lambda fault: type(fault).__name__)
def test_a_submission_is_sent_again_with_the_same_key(fault: Exception) -> None:
    server = Server(fault, fault)
    assert sync(server, lambda client: client.run(["true"])).id == "job_1"
    keys = {body["idempotency_key"] for body in server.bodies}
    assert (len(server.bodies), len(keys)) == (3, 1)
    assert keys.pop().startswith("sent_")


def test_every_job_of_a_list_has_a_key_of_its_own_and_the_users_stays() -> None:
    server = Server(LOST[0])
    sync(
        server,
        lambda client: client.submit_many(
            [["true"], {"command": ["true"], "idempotency_key": "mine"}]
        ),
    )
    first, again = server.bodies
    assert first == again
    assert first[1]["idempotency_key"] == "mine" != first[0]["idempotency_key"]


def test_two_submissions_have_different_keys() -> None:
    server = Server()
    for _ in range(2):
        sync(server, lambda client: client.run(["true"]))
    assert server.bodies[0]["idempotency_key"] != server.bodies[1]["idempotency_key"]


def test_the_same_awaited() -> None:
    server = Server(LOST[0])
    long = "x" * 300_000  # it goes out in pieces

    async def program() -> str:
        async with AsyncClient(
            ADDRESS, transport=httpx.MockTransport(server)
        ) as client:
            return (await client.run(["true", long])).id

    assert asyncio.run(program()) == "job_1"
    assert server.bodies[0] == server.bodies[1]


def test_a_server_that_hands_over_is_asked_again() -> None:
    problem = {"code": "unreachable", "detail": "Nobody leads.", "status": 503}
    server = Server(httpx.Response(503, json=problem))
    assert sync(server, lambda client: client.run(["true"])).id == "job_1"


def test_patience_ends() -> None:
    server = Server(*[LOST[2]] * 9)
    with pytest.raises(UnreachableError, match="refused"):
        sync(server, lambda client: client.run(["true"]))
    assert len(server.bodies) == 5


def test_a_first_look_at_a_server_that_is_not_there_is_answered_at_once() -> None:
    server = Server(*[LOST[2]] * 9)
    with pytest.raises(UnreachableError):
        sync(server, lambda client: client.job("a"))
    assert len(server.bodies) == 1


def test_a_submission_is_worth_waiting_for_after_such_a_look() -> None:
    server = Server(*[LOST[2]] * 4)

    def look_and_submit(client: Client) -> str:
        with suppress(UnreachableError):
            client.job("a")
        return client.run(["true"]).id

    assert sync(server, look_and_submit) == "job_1"
    assert len(server.bodies) == 5


def test_after_a_call_that_waited_in_vain_the_next_ones_hardly_wait() -> None:
    there = httpx.Response(200, json=JOB)
    gone = [LOST[2]] * 100
    server = Server(there, *gone)

    def looks(client: Client, submits: bool = False) -> int:
        """How often one call is sent."""
        before = len(server.bodies)
        with suppress(UnreachableError):
            client.call(
                calls.submit({"command": ["true"]}) if submits else calls.job("a")
            )
        return len(server.bodies) - before

    with Client(ADDRESS, transport=httpx.MockTransport(server)) as client:
        assert [looks(client) for _ in range(3)] == [1, 5, 3]
        assert looks(client, submits=True) == 3
        server.faults = [LOST[2], there, *gone]
        assert [looks(client) for _ in range(2)] == [2, 5], (
            "once it has answered again, it is waited for again"
        )


def test_a_server_that_has_answered_before_is_waited_for() -> None:
    server = Server(httpx.Response(200, json=JOB), LOST[2], LOST[0])
    sync(server, lambda client: [client.job("a"), client.job("a")])
    assert len(server.bodies) == 4


@pytest.mark.parametrize(
    ("fault", "times"),
    [(LOST[0], 1), (LOST[2], 2)],
    ids=["perhaps arrived", "never left"],
)
def test_what_would_be_done_twice_is_sent_again_only_if_it_never_left(
    fault: Exception, times: int
) -> None:
    server = Server(httpx.Response(200, json=JOB), fault)
    with Client(ADDRESS, transport=httpx.MockTransport(server)) as client:
        handle = client.job("a")
        if times == 1:
            with pytest.raises(UnreachableError):
                handle.resume()
        else:
            handle.resume()
    assert len(server.bodies) == 1 + times


def test_an_answer_that_takes_too_long_is_not_asked_for_twice() -> None:
    server = Server(httpx.ReadTimeout("slow"))
    with pytest.raises(UnreachableError, match="slow"):
        sync(server, lambda client: client.run(["true"]))
    assert len(server.bodies) == 1


def too_many() -> httpx.Response:
    """The server refuses a request of a user who sends too many."""
    document = {"code": RateLimitedError.code, "detail": "ana sends too many."}
    return httpx.Response(429, json=document)


def test_whoever_sends_too_much_waits_and_sends_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(RateLimitedError, "retry_after", 0)
    server = Server(*(too_many() for _ in range(3)))
    # A cancel is sent again only if it cannot have arrived; a first call never.
    assert sync(server, lambda client: client.job("a").cancel()).id == "job_1"
    server = Server(*(too_many() for _ in range(9)))
    with pytest.raises(RateLimitedError, match="ana sends too many"):
        sync(server, lambda client: client.job("a"))
    assert len(server.bodies) == 5
