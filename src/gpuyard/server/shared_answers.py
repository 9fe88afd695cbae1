"""One answer for all who ask the same at about the same time.

Many pages ask the same after each event. A request with `Cache-Control: max-age=1` may
get what another one got, if both see the same things. With `Last-Event-ID`, nothing
that the events up to that one changed is missing from it; without, nothing at all. With
`Prefer: wait=1`, an answer is made anew once a second at most: who asks sooner waits.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpuyard.server.app_state import AppState
from gpuyard.server.permissions import IDENTITY_KEY, present_identity
from gpuyard.server.stream import EventStream

# Where the scope of a request has how to share what is answered to others.
SHARING_KEY = "gpuyard.sharing"
# Here an answer depends on nothing but the question and on what exists for who asks.
_SHARED = re.compile(
    r"/api/v1/(?:gpus|server|nodes|queues|models|batches|budgets|costs|jobs|throughput|pools"
    r"|jobs/(?P<job>job_[0-9a-f]{32})(?:/metrics)?)"
)
# A name of an array means first what is one's own.
_PERSONAL = re.compile(rb"(?:^|&)array=")
_MAY_BE_OLDER = re.compile(rb"(?:^|[ ,])max-age=0*[1-9]")
_WAITS = re.compile(rb"(?:^|[ ,;])wait=0*[1-9]")
_NUMBER = re.compile(rb"[0-9]{1,18}")
# Of who asked first, what says who that is; the rest is about that one request.
_CONDITIONS = frozenset({b"accept", b"last-event-id", b"cache-control", b"prefer"})
_PAUSE_S = 1.0
_MOST_QUESTIONS = 128
_LARGEST_KEPT = 256 * 1024
Messages = Sequence[Message]


@dataclass(frozen=True, slots=True)
class _Version:
    """What an answer has in it: the events up to `seq`, and what the job that was asked
    about, if it was one, had said of its progress.
    """

    seq: int
    progress: int

    def includes(self, other: "_Version") -> bool:
        """Whether nothing of `other` is missing."""
        return self.seq >= other.seq and self.progress >= other.progress


class _Question:
    """Something that is asked again and again, and its newest answer."""

    def __init__(self, version: Callable[[], _Version], pause_s: float) -> None:
        """`version`: what an answer that is made now would have in it. An answer is
        shared for `pause_s`.
        """
        self.made_at = float("-inf")
        self._pause_s = pause_s
        self._version = version
        self._has = _Version(-1, -1)
        self._newest: asyncio.Task[Messages] | None = None
        self._next: asyncio.Task[Messages] | None = None
        self._hurry = asyncio.Event()

    @property
    def is_busy(self) -> bool:
        """Whether somebody waits for an answer."""
        tasks = (self._newest, self._next)
        return any(task and not task.done() for task in tasks)

    async def answer(
        self,
        wanted: _Version,
        make: Callable[[], Awaitable[Messages]],
        *,
        is_patient: bool,
    ) -> Messages:
        """One that has all of `wanted` in it and is not too old."""
        age_s = asyncio.get_running_loop().time() - self.made_at
        is_good = age_s <= self._pause_s and self._has.includes(wanted)
        if self._newest and is_good:
            return await asyncio.shield(self._newest)
        if self._next is None:
            making = self._make(max(self._pause_s - age_s, 0.0), make)
            self._next = asyncio.create_task(making, name="shared-answer")
        if not is_patient:
            self._hurry.set()
        # Another one may wait for it, too.
        return await asyncio.shield(self._next)

    async def _make(
        self, wait_s: float, make: Callable[[], Awaitable[Messages]]
    ) -> Messages:
        with suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self._hurry.wait()
        self._hurry.clear()
        self._has = self._version()
        self.made_at = asyncio.get_running_loop().time()
        self._newest = self._next
        self._next = None
        messages: Messages = ()
        try:
            messages = await make()
        finally:
            if not _is_kept(messages):
                self._newest = None
        return messages


class SharedAnswers:
    """ASGI middleware in front of the application."""

    def __init__(
        self, app: ASGIApp, app_state: AppState, pause_s: float = _PAUSE_S
    ) -> None:
        self.pause_s = pause_s
        self._app = app
        self._app_state = app_state
        self._questions: dict[Hashable, _Question] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request with what another one got, or pass it on."""
        if scope["type"] != "http" or IDENTITY_KEY not in scope:
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        may_be_older = _MAY_BE_OLDER.search(headers.get(b"cache-control", b""))
        if not may_be_older or not is_shared(scope):
            # What the application adds to the scope is of no other request.
            scope[SHARING_KEY] = Sharing(self, dict(scope))
            await self._app(scope, receive, send)
            return
        heard = headers.get(b"last-event-id", b"")
        seq = int(heard) if _NUMBER.fullmatch(heard) else None
        is_patient = bool(_WAITS.search(headers.get(b"prefer", b"")))
        for message in await self.ask(scope, seq, is_patient=is_patient):
            await send(message)

    async def ask(
        self, scope: Scope, seq: int | None = None, *, is_patient: bool
    ) -> Messages:
        """The answer to a question, with the events up to `seq` (None: all) in it."""
        stream = self._app_state.stream
        job_id = _job_in(scope)
        now = _version_of(stream, job_id)
        wanted = now if seq is None else _Version(min(seq, now.seq), now.progress)
        key = self.key_of(scope)
        question = self._questions.pop(key, None)
        if question is None:
            self._make_room()
            question = _Question(partial(_version_of, stream, job_id), self.pause_s)
        # The one that was asked last comes last.
        self._questions[key] = question
        make = partial(_answer_of, self._app, scope)
        return await question.answer(wanted, make, is_patient=is_patient)

    def key_of(self, scope: Scope) -> Hashable:
        """Equal for those who ask the same and for whom the same exists.
        UnauthorizedError and ForbiddenError from who is no longer admitted.
        """
        access = self._app_state.controller.access
        visibility = access.visibility_of(present_identity(scope))
        # Where something is hidden, what is of one's own may be shown all the same.
        user = visibility.user if visibility.hidden else None
        seen = (visibility.hidden, visibility.of_all_users, user)
        return scope["path"], scope["query_string"], *seen

    def are_same(self, questions: Mapping[Hashable, Scope]) -> bool:
        """Whether these requests still ask what they asked. UnauthorizedError and
        ForbiddenError as `key_of`.
        """
        return all(self.key_of(scope) == one for one, scope in questions.items())

    def _make_room(self) -> None:
        for key, question in list(self._questions.items()):
            if len(self._questions) < _MOST_QUESTIONS:
                return
            if not question.is_busy:
                del self._questions[key]


@dataclass(frozen=True, slots=True)
class Sharing:
    """How a request asks what others may ask, too."""

    answers: SharedAnswers
    scope: Scope

    def asking(self, address: str) -> Scope:
        """A request of `address` from the same client, which has no body."""
        path, _, query = address.partition("?")
        headers = [one for one in self.scope["headers"] if one[0] not in _CONDITIONS]
        return {
            **self.scope,
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": headers,
        }


def is_shared(scope: Scope) -> bool:
    """Whether its answer may be another one's, too."""
    is_question = scope["method"] == "GET" and _SHARED.fullmatch(scope["path"])
    return bool(is_question) and not _PERSONAL.search(scope["query_string"])


def _job_in(scope: Scope) -> str | None:
    found = _SHARED.fullmatch(scope["path"])
    return found["job"] if found else None


def _version_of(stream: EventStream, job_id: str | None) -> _Version:
    return _Version(stream.last_seq, stream.progress_of(job_id) if job_id else 0)


def _is_kept(messages: Messages) -> bool:
    """Whether others may get this, too: a good answer, and not too long to keep."""
    size = sum(len(message.get("body", b"")) for message in messages)
    return bool(messages) and messages[0]["status"] == 200 and size <= _LARGEST_KEPT


async def _answer_of(app: ASGIApp, scope: Scope) -> Messages:
    """What the application sends to who asks, and who may have left meanwhile."""
    messages: list[Message] = []
    unread: list[Message] = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> Message:
        if not unread:
            # Others wait for the answer, so nobody has left before it is there.
            await asyncio.Event().wait()
        return unread.pop()

    async def send(message: Message) -> None:
        messages.append(message)

    await app(scope, receive, send)
    return messages
