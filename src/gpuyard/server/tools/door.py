"""The port at which browsers open what jobs serve. It passes one request on each
connection to the job, and what follows byte by byte: so streams and WebSockets work.
"""

import asyncio
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from html import escape
from urllib.parse import parse_qs

import structlog

from gpuyard.config.connection_tasks import ConnectionTasks
from gpuyard.controller.job_streams import JobStreams
from gpuyard.controller.port_stream import PortStream
from gpuyard.domain.errors import (
    ForbiddenError,
    GpuyardError,
    InvalidInputError,
    RequestRefusedError,
    ServerBusyError,
    TooLargeError,
    UnauthorizedError,
    UnreachableError,
    WrongMethodError,
)
from gpuyard.server.tools import heads
from gpuyard.server.tools.heads import Head, Request
from gpuyard.server.tools.places import ToolAddresses, ToolPlace
from gpuyard.server.tools.sessions import ToolSession, ToolSessions

# No program of a job is asked for this path.
SIGN_IN_PATH = "/.gpuyard/open"
_HEAD_BYTES = 64 * 1024
_PART = 1 << 16
_MOST_CONNECTIONS = 1024
# Browsers have six at a time to each port of a job.
_MOST_OF_ONE = 128
# That have shown no session: of more, the oldest ends.
_MOST_NEW = 128
_MOST_INTERIM_ANSWERS = 8
_SWITCHING = 101
_FIRST_FINAL = 200
_PAGE = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>gpuyard</title>'
    "<p>{}</p></html>"
)
log = structlog.get_logger(__name__)


class ToolsDoor:
    """Listens at `listen` (HOST:PORT); pages are at `addresses`. `slow_s`: how long a
    head may take.
    """

    def __init__(
        self,
        listen: str,
        addresses: ToolAddresses,
        sessions: ToolSessions,
        streams: JobStreams,
        slow_s: float,
    ) -> None:
        host, _, port = listen.rpartition(":")
        self._host = host.strip("[]")
        self._port = int(port)
        self.addresses = addresses
        self.sessions = sessions
        self._streams = streams
        self._slow_s = slow_s
        self._server: asyncio.Server | None = None
        self._connections = ConnectionTasks()
        # Those that have shown no session, the oldest first.
        self._new: dict[asyncio.Task[None], None] = {}
        # How many of each person have shown one.
        self._signed_in: Counter[str | None] = Counter()
        prefix = "__Host-" if addresses.is_secure else ""
        self._cookie = f"{prefix}gpuyard_tool"

    async def open(self) -> None:
        """Listen; InvalidInputError when the address cannot be used."""
        try:
            self._server = await asyncio.start_server(
                self._accept, self._host, self._port, limit=_HEAD_BYTES
            )
        except OSError as error:
            fault = f"{self._host}:{self._port} cannot be used: {error.strerror}"
            remedy = "name an address of this machine, and a free port"
            raise InvalidInputError.of("server.tools_listen", fault, remedy) from None
        log.info("listening for browsers of tools", port=self._port)

    async def close(self) -> None:
        """End all connections."""
        if self._server:
            self._server.close()
        await self._connections.end()

    def link(self, place: ToolPlace, code: str) -> str:
        """The address that signs a browser in with a code."""
        return f"{self.addresses.origin(place)}{SIGN_IN_PATH}?code={code}"

    async def _accept(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with self._connections.serving(writer) as task:
            self._new[task] = None
            if len(self._new) > _MOST_NEW:
                next(iter(self._new)).cancel()
            try:
                await self._serve(reader, writer)
            finally:
                self._new.pop(task, None)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Answer one request, or say why not."""
        try:
            if len(self._connections) > _MOST_CONNECTIONS:
                raise ServerBusyError("Too many browsers are connected.", "Wait.")
            request = await self._request(reader)
            if request is None:
                return
            place = self.addresses.place(request.head.get("host"))
            path, _, query = request.target.partition("?")
            if path == SIGN_IN_PATH:
                self._sign_in(place, request.method, query, writer)
            else:
                check_origin(request, self.addresses.origin(place))
                cookie = heads.cookie_of(request.head, self._cookie)
                session = self.sessions.find(cookie, place)
                if session is None:
                    raise _signed_out(place)
                check_service_worker(request.head, path)
                with self._counted(session.person):
                    await self._pass_on(request, session, reader, writer)
        except GpuyardError as error:
            writer.write(_error_page(error))
        await writer.drain()

    @contextmanager
    def _counted(self, person: str | None) -> Generator[None]:
        """Count this connection as the person's; ServerBusyError if there are too many
        of the same person: they keep nobody else out.
        """
        task = asyncio.current_task()
        assert task
        self._new.pop(task, None)
        if self._signed_in[person] >= _MOST_OF_ONE:
            raise ServerBusyError(
                f"You have {_MOST_OF_ONE} connections here.", "Close other tabs."
            )
        self._signed_in[person] += 1
        try:
            yield
        finally:
            self._signed_in[person] -= 1
            if not self._signed_in[person]:
                del self._signed_in[person]

    async def _request(self, reader: asyncio.StreamReader) -> Request | None:
        """The head of the request; None if none came. RequestRefusedError."""
        try:
            async with asyncio.timeout(self._slow_s):
                raw = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, TimeoutError):
            return None
        except asyncio.LimitOverrunError:
            raise TooLargeError("The headers are over 64 KB.", "Send fewer.") from None
        return heads.read_request(raw)

    def _sign_in(
        self, place: ToolPlace, method: str, query: str, writer: asyncio.StreamWriter
    ) -> None:
        """Redeem a code for a cookie. UnauthorizedError; WrongMethodError, which leaves
        the code good: what only looks at a link asks with HEAD.
        """
        if method != "GET":
            raise WrongMethodError(
                "A link is opened with GET.", "Open it in a browser."
            )
        code = parse_qs(query).get("code", [""])[0]
        cookie = self.sessions.redeem(code, place)
        if cookie is None:
            raise _signed_out(place)
        secure = "; Secure" if self.addresses.is_secure else ""
        value = f"{self._cookie}={cookie}; Path=/; HttpOnly; SameSite=Lax{secure}"
        headers = [("location", "/"), ("set-cookie", value), *_OWN_HEADERS]
        headers.append(("content-length", "0"))
        writer.write(Head("HTTP/1.1 303 See Other", headers).encoded())

    async def _pass_on(
        self,
        request: Request,
        session: ToolSession,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        place = session.place
        async with self._streams.open(place.job_id, place.port) as stream:
            job = PortStream(stream.reader, stream.writer)
            origin = self.addresses.origin(place)
            passing = _Passing(request, session, origin, reader, writer, job)
            await passing.run()


class _Passing:
    """One request and its answer, or a WebSocket."""

    def __init__(
        self,
        request: Request,
        session: ToolSession,
        origin: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        job: PortStream,
    ) -> None:
        self._request = request
        self._session = session
        self._origin = origin
        self._reader = reader
        self._writer = writer
        self._job = job
        # The job has taken the WebSocket.
        self._has_switched = False

    async def run(self) -> None:
        """Pass all on, until the job has said all, or the browser has gone.
        UnreachableError if the job says nothing that can be passed on.
        """
        up = asyncio.create_task(self._up())
        down = asyncio.create_task(self._down())
        try:
            await asyncio.wait([up, down], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in (up, down):
                way.cancel()
            await asyncio.gather(up, down, return_exceptions=True)
        if not down.cancelled() and (error := down.exception()):
            raise error

    async def _up(self) -> None:
        """The request, and nothing behind it; of a WebSocket, all that comes once the
        job has taken it: before, no browser sends anything.
        """
        port = self._session.place.port
        await self._job.write(heads.for_job(self._request, port).encoded())
        left = self._request.length
        while left:
            data = await self._reader.read(min(left, _PART))
            if not data or not self._session.is_good():
                return
            left -= len(data)
            await self._job.write(data)
        while data := await self._reader.read(_PART):
            if not self._session.is_good():
                return
            # What follows a plain request is another one: its answer would be read by
            # nobody, and its head has not been looked at.
            if self._has_switched:
                await self._job.write(data)

    async def _down(self) -> None:
        answer, rest = await self._answer()
        port = self._session.place.port
        self._has_switched = heads.status_of(answer) == _SWITCHING
        shown = heads.for_browser(answer, port, self._origin)
        self._writer.write(shown.encoded() + rest)
        await self._writer.drain()
        while (data := await self._job.read()) and self._session.is_good():
            self._writer.write(data)
            await self._writer.drain()

    async def _answer(self) -> tuple[Head, bytes]:
        """The head of the job's answer, and what has come of its body.
        UnreachableError.
        """
        received = b""
        interim = 0
        while interim <= _MOST_INTERIM_ANSWERS:
            raw, end, rest = received.partition(b"\r\n\r\n")
            if not end and len(received) <= _HEAD_BYTES:
                data = await self._job.read()
                if not data:
                    raise _no_answer("It has ended the connection.")
                received += data
                continue
            try:
                answer = heads.read_head(raw + end)
                status = heads.status_of(answer)
            except RequestRefusedError:
                raise _no_answer("What it says is no HTTP/1.") from None
            if status >= _FIRST_FINAL:
                return answer, rest
            if status == _SWITCHING:
                if not self._request.is_websocket:
                    raise _no_answer("It speaks another protocol.")
                return answer, rest
            received = rest  # something comes before the answer
            interim += 1
        raise _no_answer("It says more and more before its answer.")


def check_origin(request: Request, origin: str) -> None:
    """ForbiddenError for what a page of another origin sends, such as one of another
    job: browsers add the cookie. A link to here may be followed.
    """
    given = request.head.get("origin").lower()
    site = request.head.get("sec-fetch-site")
    mode = request.head.get("sec-fetch-mode")
    is_look = request.method in ("GET", "HEAD") and not request.is_websocket
    is_followed = is_look and mode == "navigate"
    is_followed = is_followed and request.head.get("sec-fetch-dest") == "document"
    is_foreign = site not in ("", "same-origin", "none") and not is_followed
    if is_foreign or given not in ("", origin) or not (given or is_look):
        raise ForbiddenError(
            "This request does not come from a page of this job.",
            f"Open {origin} itself.",
        )


def check_service_worker(head: Head, path: str) -> None:
    """ForbiddenError for the program of a service worker that would answer
    SIGN_IN_PATH in place of this server, and so read each later link. It may answer
    what is in the folder of its program.
    """
    folder = path.rpartition("/")[0] + "/"
    if head.get("service-worker") and SIGN_IN_PATH.startswith(folder):
        raise ForbiddenError(
            "A service worker cannot be for all pages here.",
            "Serve its program from a folder: it is for the pages there.",
        )


_OWN_HEADERS = [
    ("cache-control", "no-store"),
    ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("referrer-policy", "no-referrer"),
    ("connection", "close"),
]


def _error_page(error: GpuyardError) -> bytes:
    body = _PAGE.format(escape(str(error))).encode()
    headers = [("content-type", "text/html; charset=utf-8"), *_OWN_HEADERS]
    headers.append(("content-length", str(len(body))))
    if isinstance(error, WrongMethodError):
        headers.append(("allow", "GET"))
    return Head(f"HTTP/1.1 {error.status} Refused", headers).encoded() + body


def _signed_out(place: ToolPlace) -> UnauthorizedError:
    return UnauthorizedError(
        "This browser is not signed in here, or no longer.",
        f"`gpuyard forward {place.job_id[-8:]} {place.port} --link` prints a link that"
        " signs it in.",
    )


def _no_answer(why: str) -> UnreachableError:
    return UnreachableError(f"The job does not answer: {why}", "Look at its log.")
