"""Requests to replicas over real connections: how answers end, break off and stay
away, and which connections are used again.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

import pytest
from starlette.routing import Match

from gpuyard.gateway import replica_http
from gpuyard.gateway.openai import DirectRoute, Gateway
from gpuyard.gateway.replica_client import ReplicaClient
from gpuyard.gateway.replica_errors import ReplicaFailedError, ReplicaSilentError
from gpuyard.gateway.replica_http import ReplicaConnections, ReplicaResponse
from gpuyard.gateway.request_queue import Replica as Slots
from gpuyard.gateway.request_queue import RequestQueues
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio
OK = b"HTTP/1.1 200 OK\r\n"
HELLO = OK + b"Content-Length: 5\r\nX-Kind: Word\r\n\r\nhello"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
Say = Callable[[asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Replica:
    """`says`: what it does with each request. `connections`: how many it has had, of
    which `over` have ended.
    """

    def __init__(self) -> None:
        self.url = ""
        self.says: Say = say(HELLO)
        self.connections = 0
        self.heads: list[bytes] = []
        self.over = 0
        self.writers: list[asyncio.StreamWriter] = []

    async def serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.connections += 1
        self.writers.append(writer)
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.heads.append(head)
                (length,) = re.findall(rb"Content-Length: (\d+)", head)
                await reader.readexactly(int(length))
                await self.says(writer)
        finally:
            self.over += 1


def say(*parts: bytes) -> Say:
    async def said(writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.01)

    return said


def say_and_close(*parts: bytes) -> Say:
    async def said(writer: asyncio.StreamWriter) -> None:
        await say(*parts)(writer)
        writer.close()

    return said


@pytest.fixture
async def replica() -> AsyncIterator[Replica]:
    made = Replica()
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/x"
    yield made
    server.close()
    for writer in made.writers:
        writer.close()


@pytest.fixture
async def connections() -> AsyncIterator[ReplicaConnections]:
    made = ReplicaConnections()
    yield made
    await made.close()


async def asked(
    connections: ReplicaConnections, replica: Replica, silent_s: float | None = None
) -> bytes:
    response = await connections.post(replica.url, b'{"a": 1}', silent_s)
    return await read(response)


async def read(response: ReplicaResponse) -> bytes:
    parts: list[bytes] = []
    while part := await response.part():
        parts.append(part)
    return b"".join(parts)


async def test_a_connection_is_used_again_once_its_answer_was_read(
    replica, connections
):
    response = await connections.post(replica.url, b"{}")
    assert (response.status, response.headers["x-kind"]) == (200, "Word")
    assert await read(response) == b"hello"
    assert await response.part() == b""
    response.close()
    assert await asked(connections, replica) == b"hello"
    assert replica.connections == 1
    assert b"POST /v1/x HTTP/1.1" in replica.heads[0]
    both = await asyncio.gather(*(asked(connections, replica) for _ in range(2)))
    assert (both, replica.connections) == ([b"hello"] * 2, 2)


async def test_each_part_of_a_stream_comes_by_itself(replica, connections):
    replica.says = say(CHUNKED, b"1\r\na\r\n", b"2\r\nbc\r\n", b"0\r\n\r\n")
    response = await connections.post(replica.url, b"{}")
    assert [await response.part() for _ in range(3)] == [b"a", b"bc", b""]


async def test_an_answer_may_follow_another_status_and_end_with_its_connection(
    replica, connections
):
    hints = b"HTTP/1.1 103 Early Hints\r\nContent-Length: 0\r\n\r\n"
    replica.says = say_and_close(hints, OK + b"\r\nhel", b"lo")
    assert await asked(connections, replica) == b"hello"
    replica.says = say(HELLO)
    assert await asked(connections, replica) == b"hello"
    assert replica.connections == 2


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [b"HTTP/1.1 200"],
        [OK + b"Content-Length: 9\r\n\r\nhel"],
        [CHUNKED, b"5\r\nhel"],
        [b"nonsense\r\n\r\n"],
    ],
)
async def test_an_answer_that_breaks_off_is_a_failure(replica, connections, parts):
    replica.says = say_and_close(*parts)
    with pytest.raises(ReplicaFailedError) as caught:
        await asked(connections, replica)
    assert "\n" not in str(caught.value)
    assert len(replica.heads) == 1, "it is not asked twice"


async def test_an_answer_that_turns_into_nonsense_is_a_failure(replica, connections):
    replica.says = say(CHUNKED, b"1\r\na\r\n", b"zz\r\nhello\r\n")
    with pytest.raises(ReplicaFailedError, match="is no HTTP: Invalid character"):
        await asked(connections, replica, silent_s=20)


async def test_a_server_that_is_not_there_is_a_failure(connections):
    with pytest.raises(ReplicaFailedError):
        await connections.post("http://127.0.0.1:1/x", b"{}")


async def test_an_answer_is_passed_on_as_it_is(
    replica, connections, monkeypatch: pytest.MonkeyPatch
):
    """No proxy, no cookies, no redirect, and nothing is unpacked."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    head = (
        b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nSet-Cookie: a=b\r\n"
        b"Content-Encoding: gzip\r\nX-Long: %b\r\nX-Name: caf\xe9\r\n"
        b"Content-Length: 5\r\n\r\nhello"
    )
    replica.says = say(head % (b"x" * 100_000))
    response = await connections.post(replica.url, b"{}")
    assert (response.status, await read(response)) == (302, b"hello")
    assert len(response.headers["x-long"]) == 100_000
    assert response.headers["x-name"] == "café"
    await connections.post(replica.url, b"{}")
    (first, second) = replica.heads
    assert first == second, "no cookie"
    assert b"Accept-Encoding: identity\r\n" in first


async def test_a_server_that_closes_idle_connections_is_asked_on_another(
    replica, connections
):
    await asked(connections, replica)

    async def says(writer: asyncio.StreamWriter) -> None:
        if writer is replica.writers[0]:
            writer.close()
        else:
            writer.write(HELLO)

    replica.says = says
    assert await asked(connections, replica) == b"hello"
    assert (replica.connections, len(replica.heads)) == (2, 3)


async def test_a_connection_that_was_closed_is_not_used(replica, connections):
    await asked(connections, replica)
    replica.writers[0].close()
    assert await asked(connections, replica) == b"hello"
    assert replica.connections == 2


async def test_idle_connections_are_closed_after_a_rush(
    replica, connections, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(replica_http, "_IDLE_S", 0.05)
    answers = await asyncio.gather(
        *(connections.post(replica.url, b"{}") for _ in range(5))
    )
    for answer in answers:
        await read(answer)
    await eventually(lambda: all(writer.is_closing() for writer in replica.writers))
    assert await asked(connections, replica) == b"hello"


async def test_silence_is_told_before_the_answer_and_within_it(replica, connections):
    for parts in ([], [CHUNKED, b"1\r\na\r\n"]):
        replica.says = say(*parts)
        with pytest.raises(ReplicaSilentError):
            await asked(connections, replica, silent_s=0.1)
    replica.says = say(CHUNKED, *[b"1\r\na\r\n"] * 20, b"0\r\n\r\n")
    assert await asked(connections, replica, silent_s=0.15) == b"a" * 20


@pytest.mark.parametrize("begun", [b"data: 1\n\n", b"data: 1\n", b"data: 1"])
async def test_a_stream_that_falls_silent_ends_with_an_error_in_openais_form(
    replica, begun: bytes
):
    head = OK + b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    replica.says = say(head + b"%x\r\n%b\r\n" % (len(begun), begun))
    queues = RequestQueues({"toy": None})
    one = Slots("one", "toy", replica.url.removesuffix("/v1/x"), "toy")
    queues.put(one)
    gateway = Gateway(queues, ReplicaClient(queues), 5.0, lambda _: None, 0.1)
    body = [{"type": "http.request", "body": b'{"model": "toy", "stream": true}'}]
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return body.pop() if body else await asyncio.Future()

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    path = "/v1/chat/completions"
    scope = {"type": "http", "method": "POST", "path": path, "headers": []}
    route = DirectRoute(gateway)
    assert route.matches(scope)[0] is Match.FULL
    await route.handle(scope, receive, send)
    said = b"".join(message.get("body", b"") for message in sent)
    first, error = filter(None, (event.strip() for event in said.split(b"\n\n")))
    assert first == b"data: 1"
    told = json.loads(error.removeprefix(b"data: "))
    assert told["error"]["code"] == "model_is_silent"
    assert (sent[0]["status"], sent[-1]["more_body"], one.busy) == (200, False, 0)


async def test_one_that_is_not_read_holds_up_its_server_and_is_whole(
    replica, connections
):
    size = 20_000_000
    held_up = asyncio.Event()

    async def much(writer: asyncio.StreamWriter) -> None:
        writer.write(OK + b"Content-Length: %d\r\n\r\n" % size)
        for _ in range(size // 1_000_000):
            writer.write(b"x" * 1_000_000)
            try:
                async with asyncio.timeout(0.5):
                    await writer.drain()
            except TimeoutError:
                held_up.set()
                await writer.drain()

    replica.says = much
    response = await connections.post(replica.url, b"{}")
    await held_up.wait()
    assert len(await read(response)) == size


async def test_one_that_is_closed_ends_its_connection_and_its_reader(
    replica, connections
):
    replica.says = say(CHUNKED)
    response = await connections.post(replica.url, b"{}")
    reading = asyncio.create_task(response.part())
    await asyncio.sleep(0)
    response.close()
    with pytest.raises(ReplicaFailedError):
        await reading
    replica.says = say(HELLO)
    assert await asked(connections, replica) == b"hello"
    assert replica.connections == 2


async def test_a_request_that_is_cancelled_ends_its_connection(replica, connections):
    replica.says = say()
    asking = asyncio.create_task(connections.post(replica.url, b"x" * 5_000_000))
    await eventually(lambda: replica.heads)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await eventually(lambda: replica.over)
