"""The port for what jobs serve: real connections to it, and a job in this process."""

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import httpx
import pytest

from gpuyard.controller.job_streams import JobStreams
from gpuyard.domain import stream_frames as frames
from gpuyard.domain.errors import InvalidInputError
from gpuyard.providers.node_streams import NodeStream
from gpuyard.server.tools import door as door_module
from gpuyard.server.tools.door import ToolsDoor
from gpuyard.server.tools.heads import read_head
from gpuyard.server.tools.places import ToolAddresses, ToolPlace
from gpuyard.server.tools.sessions import ToolSessions
from tests.support.nginx import nginx_of
from tests.support.ports import free_port

pytestmark = pytest.mark.anyio
PLACE = ToolPlace("job_" + 32 * "0", 6006)
OTHER_PORT = ToolPlace(PLACE.job_id, 1)
UPGRADE = {"Connection": "Upgrade", "Upgrade": "websocket"}
LARGE = 300_000
GUIDE = Path(__file__).parents[3] / "docs/guides/running.md"
UNVERIFIED = ssl.create_default_context()
UNVERIFIED.check_hostname = False
UNVERIFIED.verify_mode = ssl.CERT_NONE


class Job:
    """Serves at one port, as frames of a node's agent: it tells in JSON what it was
    asked, sets cookies, and takes each upgrade.
    """

    def __init__(self, *, refuses_upgrades: bool = False) -> None:
        self.asked: list[str] = []
        self.closed = asyncio.Event()
        self._refuses_upgrades = refuses_upgrades
        self._serving: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def open(self, job_id: str, port: int = 0) -> AsyncGenerator[NodeStream]:
        """As JobStreams does."""
        assert ToolPlace(job_id, port) == PLACE
        served: asyncio.Queue[asyncio.Task[None]] = asyncio.Queue()

        async def serve(
            reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> None:
            task = asyncio.current_task()
            assert task
            served.put_nowait(task)
            try:
                await self._serve(reader, writer)
            except (OSError, asyncio.CancelledError):
                pass  # the browser has gone
            finally:
                writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        there = server.sockets[0].getsockname()
        reader, writer = await asyncio.open_connection(*there)
        task = await served.get()
        try:
            yield NodeStream(reader, writer)
        finally:
            task.cancel()
            writer.close()
            server.close()
            self.closed.set()

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        read = frames.client_frames()
        received = b""

        async def more() -> None:
            nonlocal received
            for frame in read.feed(await reader.read(65536)):
                if isinstance(frame, frames.Input):
                    received += frame.data
                    writer.write(frames.encode(frames.Taken(len(frame.data))))

        while b"\r\n\r\n" not in received:
            await more()
        raw, _, received = received.partition(b"\r\n\r\n")
        head = read_head(raw + b"\r\n\r\n")
        self.asked.append(head.first)
        if head.get("upgrade") and self._refuses_upgrades:
            say(writer, "403 Forbidden", "content-length: 0")
            await asyncio.Event().wait()  # it keeps the connection
        elif head.get("upgrade"):
            say(writer, "101 Switching Protocols", "upgrade: websocket")
            while b"hello" not in received:
                await more()
            writer.write(frames.encode(frames.Output(b"got " + received)))
        else:
            length = int(head.get("content-length") or 0)
            while len(received) < length:
                await more()
            say(writer, "103 Early Hints", "link: </a>")
            say(
                writer,
                "200 OK",
                "set-cookie: gpuyard_1_session=evil; Path=/",
                "set-cookie: mine=1; Domain=localhost; Path=/",
                'clear-site-data: "cookies"',
            )
            body = json.dumps([head.first, dict(head.headers), len(received)])
            writer.write(frames.encode(frames.Output(body.encode())))
        writer.write(frames.encode(frames.OutputEnd()))
        await writer.drain()


def say(writer: asyncio.StreamWriter, status: str, *headers: str) -> None:
    text = "\r\n".join([f"HTTP/1.1 {status}", *headers, "", ""])
    writer.write(frames.encode(frames.Output(text.encode())))


class Browser:
    """Asks the door, at any host name."""

    def __init__(self, door: ToolsDoor, port: int) -> None:
        self.door = door
        self.origin = door.addresses.origin(PLACE)
        self.port = port

    async def ask(
        self,
        url: str,
        method: str = "GET",
        headers: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        leaves: bool = False,
    ) -> tuple[int, str, str]:
        """Status, head and body of the answer. Whatever comes first, all is sent; what
        goes through a WebSocket, after the head has come. `leaves`: it reads no body.
        """
        host, _, path = url.partition("//")[2].partition("/")
        given = {"Host": host, **(headers or {})}
        lines = [f"{method} /{path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in given.items()]
        request = "\r\n".join([*lines, "", ""]).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        received = b""
        if "Upgrade" in given:
            writer.write(request)
            received = await reader.readuntil(b"\r\n\r\n")
            writer.write(body)
        else:
            writer.write(request + body)
        if not leaves:
            received += await reader.read()
        writer.close()
        head, _, rest = received.decode().partition("\r\n\r\n")
        return int(head.split()[1]), head, rest

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection on which nothing was said."""
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def websocket(
        self, headers: dict[str, str]
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A WebSocket that the job has taken."""
        reader, writer = await self.connect()
        given = {"Host": self.origin.partition("//")[2], **UPGRADE, **headers}
        lines = [f"{name}: {value}" for name, value in given.items()]
        writer.write("\r\n".join(["GET / HTTP/1.1", *lines, "", ""]).encode())
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 101 " in head
        return reader, writer

    async def cookie(self) -> str:
        """That of a browser that has signed in."""
        code = self.door.sessions.code(PLACE, lambda: True)
        status, head, _ = await self.ask(self.door.link(PLACE, code))
        assert status == 303, head
        (line,) = [one for one in head.split("\r\n") if one.startswith("set-cookie")]
        assert line.endswith("; Path=/; HttpOnly; SameSite=Lax")
        return line.removeprefix("set-cookie: ").partition(";")[0]


@asynccontextmanager
async def opened(job: Job | None = None, url: str = "") -> AsyncGenerator[Browser]:
    """A browser before a door."""
    port = free_port()
    addresses = ToolAddresses(url or f"http://localhost:{port}")
    streams = cast("JobStreams", job or Job())
    sessions = ToolSessions(100.0)
    door = ToolsDoor(f"127.0.0.1:{port}", addresses, sessions, streams, 60.0)
    await door.open()
    try:
        yield Browser(door, port)
    finally:
        await door.close()


async def test_the_job_learns_no_secret_and_sets_no_cookie_of_ours() -> None:
    async with opened() as browser:
        cookie = await browser.cookie()
        headers = {
            "Cookie": f"gpuyard_1_session=secret; {cookie}; a=1; __Host-gpuyard_x=2",
            "Authorization": "Bearer secret",
            "Origin": browser.origin,
            "Referer": f"{browser.origin}/page",
            "X-Forwarded-For": "10.0.0.1",
            "Content-Length": str(LARGE),
        }
        # What follows is another request, which the job must not see.
        body = LARGE * b"x" + b"GET /secret HTTP/1.1\r\n\r\n"
        url = f"{browser.origin}/a?b=c"
        status, head, said = await browser.ask(url, "POST", headers, body)
    assert status == 200, head
    assert "set-cookie: mine=1; Path=/\r\n" in head
    assert "evil" not in head
    assert "clear-site-data" not in head
    assert "secret" not in said
    first, asked, length = json.loads(said)
    assert (first, length) == ("POST /a?b=c HTTP/1.1", LARGE)
    assert asked["host"] == "127.0.0.1:6006"
    assert asked["origin"] == "http://127.0.0.1:6006"
    assert asked["cookie"] == "a=1"
    assert not {"referer", "x-forwarded-for", "authorization"} & asked.keys()


async def test_a_websocket_is_carried() -> None:
    async with opened() as browser:
        cookie = await browser.cookie()
        headers = {**UPGRADE, "Cookie": cookie, "Origin": browser.origin}
        status, head, said = await browser.ask(
            browser.origin, headers=headers, body=b"hello"
        )
    assert (status, said) == (101, "got hello"), head


async def test_a_browser_that_is_refused_a_websocket_leaves_nothing_open() -> None:
    job = Job(refuses_upgrades=True)
    async with opened(job) as browser:
        cookie = await browser.cookie()
        headers = {**UPGRADE, "Cookie": cookie, "Origin": browser.origin}
        status, _, _ = await browser.ask(browser.origin, headers=headers, leaves=True)
        assert status == 403
        await asyncio.wait_for(job.closed.wait(), 30)


async def test_a_link_opens_one_port_of_one_job_once() -> None:
    async with opened() as browser:
        code = browser.door.sessions.code(PLACE, lambda: True)
        link = browser.door.link(PLACE, code)
        other = browser.door.addresses.origin(OTHER_PORT)
        assert (await browser.ask(browser.door.link(OTHER_PORT, code)))[0] == 401
        assert (await browser.ask(link))[0] == 303
        assert (await browser.ask(link))[0] == 401
        headers = {"Cookie": await browser.cookie()}
        assert (await browser.ask(browser.origin, headers=headers))[0] == 200
        assert (await browser.ask(other, headers=headers))[0] == 401
        status, _, said = await browser.ask(browser.origin)
    assert status == 401
    assert "`gpuyard forward 00000000 6006 --link` prints a link" in said


FOREIGN = [
    ("GET", {"Origin": "http://127.0.0.1:8400"}),
    ("GET", {"Origin": "null"}),
    ("GET", {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}),
    ("GET", {**UPGRADE, "Origin": "http://evil.example"}),
    ("GET", UPGRADE),
    ("POST", {}),
    ("POST", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}),
]


async def test_pages_of_others_reach_no_job() -> None:
    job = Job()
    async with opened(job) as browser:
        cookie = {"Cookie": await browser.cookie()}
        for method, headers in FOREIGN:
            answer = await browser.ask(browser.origin, method, {**cookie, **headers})
            assert answer[0] == 403, (method, headers, answer)
        assert not job.asked
        followed = {
            "Sec-Fetch-Site": "cross-site",
            "Sec-Fetch-Mode": "navigate",
            "Sec-Fetch-Dest": "document",
        }
        answer = await browser.ask(browser.origin, headers={**cookie, **followed})
        assert answer[0] == 200, answer


async def test_what_is_odd_reaches_no_job() -> None:
    job = Job()
    async with opened(job) as browser:
        cookie = {"Cookie": await browser.cookie()}
        label = browser.origin.removeprefix("http://").partition(".")[0]
        for host in ("127.0.0.1", f"{label}.evil.example"):
            answer = await browser.ask(f"http://{host}/", headers=cookie)
            assert answer[0] == 421, answer
        for odd in ({"Transfer-Encoding": "chunked"}, {"Content-Length": "-1"}):
            answer = await browser.ask(browser.origin, headers={**cookie, **odd})
            assert answer[0] == 400, answer
    assert not job.asked


async def test_a_port_that_is_taken_is_told() -> None:
    async with opened() as browser:
        with pytest.raises(InvalidInputError, match=r"server\.tools_listen: .* cannot"):
            await browser.door.open()


async def test_what_only_looks_at_a_link_leaves_it_good() -> None:
    async with opened() as browser:
        code = browser.door.sessions.code(PLACE, lambda: True)
        link = browser.door.link(PLACE, code)
        for method in ("HEAD", "POST"):
            status, head, _ = await browser.ask(link, method)
            assert (status, "allow: GET" in head) == (405, True)
        assert (await browser.ask(link))[0] == 303


async def test_one_person_keeps_no_other_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "_MOST_OF_ONE", 2)
    async with opened() as browser:

        async def signed_in(person: str) -> dict[str, str]:
            code = browser.door.sessions.code(PLACE, lambda: True, person)
            _, head, _ = await browser.ask(browser.door.link(PLACE, code))
            cookie = head.partition("set-cookie: ")[2].partition(";")[0]
            return {"Cookie": cookie, "Origin": browser.origin}

        ann = await signed_in("ann")
        bea = await signed_in("bea")
        sockets = [await browser.websocket(ann) for _ in range(2)]
        assert (await browser.ask(browser.origin, headers=ann))[0] == 503
        assert (await browser.ask(browser.origin, headers=bea))[0] == 200
        for _, writer in sockets:
            writer.close()


async def test_connections_that_say_nothing_make_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(door_module, "_MOST_NEW", 2)
    async with opened() as browser:
        headers = {"Cookie": await browser.cookie()}
        reader, writer = await browser.connect()
        _, second = await browser.connect()
        assert (await browser.ask(browser.origin, headers=headers))[0] == 200
        assert await reader.read() == b""
        for one in (writer, second):
            one.close()


async def test_nginx_leads_there_as_the_guide_says(tmp_path: Path) -> None:
    url = "https://tools.example.org"
    async with opened(url=url) as browser:
        with nginx_of(GUIDE, browser.port, tmp_path) as port:
            code = browser.door.sessions.code(PLACE, lambda: True)
            path = browser.door.link(PLACE, code).removeprefix(browser.origin)
            headers = {"Host": browser.origin.removeprefix("https://")}
            here = f"https://127.0.0.1:{port}"
            async with httpx.AsyncClient(base_url=here, verify=UNVERIFIED) as web:
                signed_in = await web.get(path, headers=headers)
                (cookie, *more) = signed_in.headers["set-cookie"].split("; ")
                assert cookie.startswith("__Host-gpuyard_tool=")
                assert "Secure" in more
                headers |= {"Cookie": cookie, "Origin": browser.origin}
                sent = await web.post("/a?b=c", headers=headers, content=LARGE * b"x")
                first, _, length = sent.json()
                assert (first, length) == ("POST /a?b=c HTTP/1.1", LARGE)
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=UNVERIFIED
            )
            lines = [f"{name}: {value}" for name, value in (headers | UPGRADE).items()]
            asked = "\r\n".join(["GET / HTTP/1.1", *lines, "", ""])
            writer.write(asked.encode())
            assert b" 101 " in await reader.readuntil(b"\r\n\r\n")
            writer.write(b"hello")
            assert await reader.read() == b"got hello"
            writer.close()
