"""Connections of strangers, to a server in this process: each ends by itself."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.server import ServerState

from gpuyard.config.server import ServerSettings
from gpuyard.server.connections import Connection, Connections

Dial = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
PATIENCE_S = 20


async def answer_headers(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the body, and answer with the names of all headers."""
    while (message := await receive()).get("more_body"):
        pass
    if message["type"] == "http.disconnect":
        return
    names = b" ".join(name for name, _ in scope["headers"])
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": names})


async def never_read(_scope: Scope, _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 401, "headers": []})
    await send({"type": "http.response.body", "body": b"no"})


async def never_end(_scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"first", "more_body": True})
    while (await receive())["type"] != "http.disconnect":
        pass


@asynccontextmanager
async def serving(
    app: ASGIApp = answer_headers, **settings: float
) -> AsyncGenerator[Dial]:
    config = uvicorn.Config(app, log_level="error", ws="websockets-sansio")
    connections = Connections(ServerSettings.model_validate(settings))
    state = ServerState()
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(
            connections=connections, config=config, server_state=state, app_state={}
        ),
        "127.0.0.1",
        0,
    )
    host, port = server.sockets[0].getsockname()
    async with server, asyncio.timeout(PATIENCE_S):
        yield lambda: asyncio.open_connection(host, port)


async def rest(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the connection ends."""
    found = b""
    with suppress(ConnectionError):
        while part := await reader.read(65536):
            found += part
    return found


async def endless_trailers(block: bytes) -> bytes:
    async with serving() as dial:
        reader, writer = await dial()
        writer.write(CHUNKED + b"0\r\n")
        with suppress(ConnectionError):
            for _ in range(100):
                writer.write(block)
                await writer.drain()
        return await rest(reader)


def test_endless_trailers_end() -> None:
    for block in (b"a:b\r\n" * 10_000, b"a:" + b"b" * 50_000, b"b" * 50_000):
        assert b" 200 " not in asyncio.run(endless_trailers(block))


def test_trailers_are_dropped() -> None:
    async def scenario() -> bytes:
        async with serving() as dial:
            reader, writer = await dial()
            writer.write(CHUNKED + b"2\r\nhi\r\n0\r\nX-Late: yes\r\n\r\n")
            writer.write(GET + b"Connection: close\r\n\r\n")
            return await rest(reader)

    answers = asyncio.run(scenario())
    assert answers.count(b" 200 OK") == 2
    assert b"host transfer-encoding" in answers
    assert b"host connection" in answers
    assert b"x-late" not in answers


def test_a_large_body_in_any_parts_is_no_head() -> None:
    async def scenario() -> bytes:
        async with serving() as dial:
            reader, writer = await dial()
            writer.write(CHUNKED)
            for _ in range(5):
                writer.write(b"1\r\nx\r\n" * 10_000 + b"30d40\r\n" + bytes(200_000))
                writer.write(b"\r\n")
                await writer.drain()
            writer.write(b"0\r\n\r\n" + GET + b"Connection: close\r\n\r\n")
            return await rest(reader)

    assert asyncio.run(scenario()).count(b" 200 OK") == 2


def test_too_many_connections_make_room_at_once() -> None:
    async def scenario() -> None:
        async with serving(max_connections=4, max_new_connections=2) as dial:
            dialled = [await dial() for _ in range(10)]
            for reader, _ in dialled[:6]:
                assert await rest(reader) == b""
            for reader, writer in dialled[6:]:
                writer.write(GET + b"Connection: close\r\n\r\n")
                assert b" 200 OK" in await rest(reader)

    asyncio.run(scenario())


def test_an_upgrade_with_a_body_is_a_plain_request() -> None:
    async def scenario(length: bytes) -> bytes:
        async with serving(never_read) as dial:
            reader, writer = await dial()
            upgrade = b"Upgrade: websocket\r\nConnection: Upgrade\r\n"
            writer.write(GET + upgrade + length + b"\r\n\r\n")
            return await reader.readuntil(b"\r\n")

    for length in (b"Content-Length: 9", b"Transfer-Encoding: chunked"):
        assert b" 401 " in asyncio.run(scenario(length))


def test_empty_lines_keep_no_connection_open() -> None:
    async def drip(writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(b"\r\n")
            await asyncio.sleep(0.02)

    async def scenario() -> None:
        async with serving(slow_s=0.2) as dial:
            reader, writer = await dial()
            writer.write(GET + b"\r\n")
            await reader.readuntil(b"\r\n")
            dripping = asyncio.create_task(drip(writer))
            await rest(reader)
            dripping.cancel()

    asyncio.run(scenario())


def test_a_refusal_is_no_part_of_another_answer() -> None:
    async def scenario() -> bytes:
        async with serving(never_end) as dial:
            reader, writer = await dial()
            writer.write(CHUNKED)
            begun = await reader.readuntil(b"first")
            writer.write(b"no length\r\n")
            return begun + await rest(reader)

    assert asyncio.run(scenario()).count(b"HTTP/1.1") == 1
