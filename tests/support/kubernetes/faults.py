"""What goes wrong between a client and the server, when tests want it to."""

import asyncio
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tests.support.kubernetes import errors
from tests.support.kubernetes.clock import Clock
from tests.support.kubernetes.request import target_of
from tests.support.kubernetes.wire import Wire

_REFUSALS = {
    409: (
        "Conflict",
        'Operation cannot be fulfilled on resourcequotas "all": the object has been'
        " modified; please apply your changes to the latest version and try again",
    ),
    403: (
        "Forbidden",
        'jobs.batch is forbidden: User "gpuyard" cannot create resource "jobs" in API'
        ' group "batch" in the namespace "default"',
    ),
    429: (
        "TooManyRequests",
        "the server has received too many requests and has asked us to try again later",
    ),
    500: ("InternalError", "Internal error occurred: etcdserver: request timed out"),
    503: ("ServiceUnavailable", "the server is currently unable to handle the request"),
}


@dataclass
class Fault:
    """One thing that goes wrong. `left`: for how many more requests, None: until it is
    lifted. `met`: for how many it did. What hangs goes on once it is released.
    """

    what: str
    method: str
    path: re.Pattern[str]
    left: int | None
    code: int = 0
    retry_after_s: int = 1
    fields: tuple[str, ...] = ()
    met: int = 0
    _held: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = field(
        default_factory=list[Any]
    )

    def fits(self, method: str, path: str) -> bool:
        return (
            self.left != 0
            and self.method in ("*", method)
            and bool(self.path.search(path))
        )

    def release(self) -> None:
        """Let go what hangs, and harm no more."""
        self.left = 0
        while self._held:
            loop, event = self._held.pop()
            loop.call_soon_threadsafe(event.set)

    async def hold(self) -> None:
        """Hang here until it is released."""
        event = asyncio.Event()
        self._held.append((asyncio.get_running_loop(), event))
        await event.wait()


class Faults:
    """Each of these makes the next `times` requests that match go wrong; None: all
    until `lift`. From any thread. `wire` is what connections can do wrong.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.wire = Wire()
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self._open: list[tuple[asyncio.AbstractEventLoop, Any]] = []
        self.requests: Counter[tuple[str, str, str]] = Counter()
        self.user_agents: set[str] = set()

    def answer(
        self,
        code: int,
        method: str = "*",
        path: str = "",
        times: int | None = 1,
        retry_after_s: int = 1,
    ) -> Fault:
        """500, 503 or 429, instead of doing anything; or 403, as from a server that has
        only just started and knows no Roles yet; or 409, as when others use the same
        quota at the same time.
        """
        return self._add(
            Fault("answer", method, re.compile(path), times, code, retry_after_s)
        )

    def hang(self, method: str = "*", path: str = "", times: int | None = 1) -> Fault:
        """Do nothing and say nothing until it is released; then go on."""
        return self._add(Fault("hang", method, re.compile(path), times))

    def cut(self, method: str = "*", path: str = "", times: int | None = 1) -> Fault:
        """Close the connection before anything is done."""
        return self._add(Fault("cut", method, re.compile(path), times))

    def cut_after(
        self, method: str = "*", path: str = "", times: int | None = 1
    ) -> Fault:
        """Do it, and close the connection without a reply."""
        return self._add(Fault("cut_after", method, re.compile(path), times))

    def misdirect(
        self, method: str = "*", path: str = "", times: int | None = 1
    ) -> Fault:
        """A proxy before the server answers that it has nothing of this name (404)."""
        return self._add(Fault("misdirect", method, re.compile(path), times))

    def end_watches(self, path: str = "", times: int | None = None) -> Fault:
        """Watches end at once, without a word."""
        return self._add(Fault("end", "WATCH", re.compile(path), times))

    def drop(
        self, *fields: str, method: str = "*", path: str = "", times: int | None = 1
    ) -> Fault:
        """Leave fields (`status.conditions`; through lists: `items.status`) out of the
        reply.
        """
        return self._add(Fault("drop", method, re.compile(path), times, fields=fields))

    def _add(self, fault: Fault) -> Fault:
        with self._lock:
            self._faults.append(fault)
        return fault

    def reset_connections(self) -> None:
        """Reset every connection that waits for an answer or has not got all of it:
        watches, logs, what hangs.
        """
        with self._lock:
            for loop, transport in self._open:
                loop.call_soon_threadsafe(transport.abort)

    @contextmanager
    def connected(self, send: Send) -> Iterator[None]:
        """A request is being answered: `send` is a method of the server's cycle, which
        has the transport.
        """
        cycle: Any = getattr(send, "__self__")  # noqa: B009
        here = (asyncio.get_running_loop(), cycle.transport)
        with self._lock:
            self._open.append(here)
        try:
            yield
        finally:
            with self._lock:
                self._open.remove(here)

    def lift(self) -> None:
        """Nothing goes wrong any more, and what hangs goes on."""
        with self._lock:
            for fault in self._faults:
                fault.release()
            self._faults.clear()
        self.wire.thaw()

    def shift_clock(self, seconds: float) -> None:
        """The server's clock is so far ahead from now on."""
        self._clock.shift_s = seconds

    def count(
        self,
        resource: str | None = None,
        verb: str | None = None,
        method: str | None = None,
    ) -> int:
        """How many requests arrived, those that went wrong too.

        `pods/log` is a resource, `/version` as well.
        """
        with self._lock:
            return sum(
                number
                for (by, about, how), number in self.requests.items()
                if resource in (None, about)
                and verb in (None, how)
                and method in (None, by)
            )

    def meet(self, method: str, path: str, watch: bool) -> Fault | None:
        """Count a request; what befalls it."""
        target = target_of(path)
        ask = target.ask(method, watch) if target else None
        with self._lock:
            self.requests[
                (
                    method,
                    ask.resource if ask else path.rstrip("/"),
                    ask.verb if ask else "get",
                )
            ] += 1
            verb = "WATCH" if watch else method
            fault = next(
                (
                    each
                    for each in self._faults
                    if each.fits(method, path) or each.fits(verb, path)
                ),
                None,
            )
            if fault:
                fault.met += 1
                fault.left = fault.left - 1 if fault.left is not None else None
            return fault


class FaultGate:
    """Stands before the server as ASGI middleware."""

    def __init__(self, app: ASGIApp, faults: Faults, clock: Clock) -> None:
        self._app = app
        self._faults = faults
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            self._faults.meet("GET", scope["path"], watch=False)
            await self._app(scope, receive, send)
            return
        with self._faults.connected(send):
            await self._faults.wire.arrive(scope)
            await self._pass(scope, receive, send)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        query = scope["query_string"].decode()
        path = scope["path"] + (f"?{query}" if query else "")
        agents = (value for key, value in scope["headers"] if key == b"user-agent")
        self._faults.user_agents.update(agent.decode() for agent in agents)
        fault = self._faults.meet(
            scope["method"], path.split("?")[0], "watch=" in query
        )
        what = fault.what if fault else ""

        async def dated(message: Message) -> None:
            if message["type"] == "http.response.start":
                date = formatdate(self._clock.now(), usegmt=True)
                message["headers"] = [
                    *message.get("headers", ()),
                    (b"date", date.encode()),
                ]
            await send(message)

        if fault and what == "hang":
            await fault.hold()
        if fault and what == "answer":
            await _refuse(fault, dated)
        elif what == "misdirect":
            await _say(dated, 404, b"default backend - 404")
        elif what == "end":
            await _say(dated, 200, b"")
        elif what == "cut":
            await _abort(send)
        elif what == "cut_after":
            await self._app(scope, receive, _swallow)
            await _abort(send)
        elif fault and what == "drop":
            await self._without(fault, scope, receive, dated)
        else:
            with self._faults.wire.answering(scope, dated) as carry:
                await self._app(scope, receive, carry)

    async def _without(
        self, fault: Fault, scope: Scope, receive: Receive, send: Send
    ) -> None:
        messages: list[Message] = []

        async def keep(message: Message) -> None:
            messages.append(message)

        await self._app(scope, receive, keep)
        body = json.loads(b"".join(each.get("body", b"") for each in messages))
        for path in fault.fields:
            _drop(body, path.split("."))
        data = json.dumps(body).encode()
        start: MutableMapping[str, Any] = messages[0]
        start["headers"] = [
            each for each in start["headers"] if each[0] != b"content-length"
        ]
        start["headers"].append((b"content-length", str(len(data)).encode()))
        await send(start)
        await send({"type": "http.response.body", "body": data})


async def _refuse(fault: Fault, send: Send) -> None:
    reason, message = _REFUSALS[fault.code]
    retry = fault.code in (429, 503)
    details = {"retryAfterSeconds": fault.retry_after_s} if retry else {}
    body = json.dumps(
        errors.ApiError(fault.code, reason, message, details).status
    ).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    if retry:
        headers.append((b"retry-after", str(fault.retry_after_s).encode()))
    await send(
        {"type": "http.response.start", "status": fault.code, "headers": headers}
    )
    await send({"type": "http.response.body", "body": body})


async def _say(send: Send, code: int, body: bytes) -> None:
    headers = [
        (b"content-type", b"text/plain"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": code, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _abort(send: Send) -> None:
    """Reset the connection: `send` is a method of the server's cycle, which has the
    transport.
    """
    cycle: Any = getattr(send, "__self__")  # noqa: B009
    cycle.transport.abort()
    while not cycle.disconnected:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def _swallow(message: Message) -> None:
    """Say nothing."""


def _drop(value: Any, path: list[str]) -> None:
    if isinstance(value, list):
        for each in value:
            _drop(each, path)
    elif isinstance(value, dict) and len(path) == 1:
        value.pop(path[0], None)
    elif isinstance(value, dict) and path[0] in value:
        _drop(value[path[0]], path[1:])
