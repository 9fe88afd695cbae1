"""The event stream: every committed event and the jobs' progress, for any listener.

A listener holds only a cursor: one that does not read costs no memory, and one that
comes back reads the journal from its cursor. Recent events are kept in a ring, so that
listeners who keep up never read the ledger. Listeners are woken in waves, so that ten
thousand of them do not delay requests. One of many gets what comes in quick succession
together: what a message costs is mostly the sending.
"""

import asyncio
import random
from collections import deque
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Hashable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gpuyard.domain.events import Event, EventKind
from gpuyard.ledger.queries import Queries

_RING = 1024
# The largest batch, and so the most that a listener that does not read keeps in
# memory besides the socket's buffer.
_PAGE = 32
# This many listeners are woken before requests run again: a millisecond or two.
_WAVE = 10
_HEARTBEAT_S = 15.0
# So long for each listener, and so long at most, one of many is not told again.
_PAUSE_EACH_S = 0.005
_LONGEST_PAUSE_S = 0.25
# So few are each told at once.
_FEW = 4


@dataclass(slots=True)
class Message:
    """An event as the stream shows it; `seq` is None for progress, which is not in the
    journal.
    """

    seq: int | None
    at: float
    kind: str
    job_id: str | None
    data: Mapping[str, Any]
    _sse: bytes = field(default=b"", repr=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        """The public form."""
        return {
            "seq": self.seq,
            "at": self.at,
            "kind": self.kind,
            "job_id": self.job_id,
            "data": dict(self.data),
        }

    def to_sse(self) -> bytes:
        """The form of server-sent events, made once; only what is in the journal
        carries an id to come back to.
        """
        if not self._sse:
            head = f"id: {self.seq}\n" if self.seq is not None else ""
            body = msgspec.json.encode(self.to_json())
            self._sse = f"{head}event: {self.kind}\ndata: ".encode() + body + b"\n\n"
        return self._sse


def answer_of(path: str, status: int, body: bytes) -> Message:
    """What the API answers at `path`, JSON, as a message."""
    shown = {"path": path, "status": status, "body": msgspec.Raw(body)}
    sse = b"event: answer\ndata: " + msgspec.json.encode(shown) + b"\n\n"
    return Message(None, 0.0, "answer", None, shown, sse)


def message_of(row: Mapping[str, Any]) -> Message:
    """A journal row as a message."""
    return Message(row["seq"], row["at"], row["kind"], row["job_id"], row["info"])


See = Callable[[Sequence[Message]], list[Message]]


class EventStream:
    """Committed events for all listeners."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._ring: deque[Message] = deque(maxlen=_RING)
        self._progress: dict[str, tuple[int, Message]] = {}
        # What watched questions are answered, by the question.
        self._answers: dict[Hashable, tuple[int, Message]] = {}
        self._listeners = 0
        self._version = 0
        # Grows with each message that is no answer.
        self.news = 0
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._waking: asyncio.Task[None] | None = None
        self._news = False
        self._catching_up = asyncio.Lock()
        self._closed = False

    @property
    def last_seq(self) -> int:
        """The number of the newest event that was published; 0 before the first."""
        return self._ring[-1].seq or 0 if self._ring else 0

    def progress_of(self, job_id: str) -> int:
        """Grows with each reading of a job; 0 after an event of it."""
        version, _ = self._progress.get(job_id, (0, None))
        return version

    def publish(self, first_seq: int, events: Sequence[Event]) -> None:
        """Committed events, in order; `first_seq` is the first one's number."""
        self._add(
            [
                Message(seq, e.at, e.kind.value, e.job_id, e.info)
                for seq, e in enumerate(events, first_seq)
            ]
        )

    def unread(self) -> list[Message]:
        """What another server has written since the last `publish` or `take`; may run
        in a thread.
        """
        last = self._ring[-1].seq if self._ring else None
        if last is None:
            last = max(self._queries.last_seq() - 1, 0)
        found: list[Message] = []
        while rows := self._queries.events_after(last, _RING):
            found = [*found, *map(message_of, rows)][-_RING:]
            last = rows[-1]["seq"]
        return found

    def take(self, messages: Sequence[Message]) -> None:
        """Show what `unread` found."""
        if messages:
            self._add(messages)

    def _add(self, messages: Sequence[Message]) -> None:
        if self._ring and messages[0].seq != (self._ring[-1].seq or 0) + 1:
            self._ring.clear()  # positions in the ring are counted from its last number
        for message in messages:
            self._ring.append(message)
            if message.job_id:
                self._progress.pop(message.job_id, None)
        self.news += 1
        self._wake()

    def publish_progress(self, job_id: str, body: Mapping[str, Any], at: float) -> None:
        """A job's latest reading; a listener that is behind sees only the newest."""
        self._version += 1
        message = Message(None, at, EventKind.JOB_PROGRESS.value, job_id, body)
        self._progress[job_id] = (self._version, message)
        self.news += 1
        self._wake()

    def publish_answer(self, question: Hashable, answer: Message) -> None:
        """The newest answer to something that listeners watch; a listener that is
        behind sees only that.
        """
        self._version += 1
        self._answers[question] = (self._version, answer)
        self._wake()

    def forget_answer(self, question: Hashable) -> None:
        """Nobody watches that any more."""
        self._answers.pop(question, None)

    def close(self) -> None:
        """End every listener."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        self._news = True
        if self._waiting and self._waking is None:
            self._waking = asyncio.create_task(self._wake_all(), name="wake-listeners")

    async def _wake_all(self) -> None:
        try:
            while self._news:
                self._news = False
                waiting = list(self._waiting)
                for first in range(0, len(waiting), _WAVE):
                    for future in waiting[first : first + _WAVE]:
                        if not future.done():
                            future.set_result(None)
                    await asyncio.sleep(0)
        finally:
            self._waking = None

    async def changed(self, timeout_s: float) -> bool:
        """Wait for news; False when `timeout_s` passed without any."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = None
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            return False
        finally:
            del self._waiting[future]
        return True

    async def listen(
        self,
        after: int,
        job_id: str | None,
        see: See | None = None,
        *,
        from_now: bool = False,
        watched: Collection[Hashable] = (),
    ) -> AsyncIterator[list[Message]]:
        """Batches of messages after the number `after`, of one job if asked; an empty
        one is a heartbeat. `see` takes out what does not exist for who listens.
        `from_now`: no progress that jobs have made already. `watched`: the answers to
        these questions, too.
        """
        cursor = after
        version = self._version if from_now else 0
        answered = 0
        self._listeners += 1
        try:
            while not self._closed:
                before = cursor
                batch, cursor = await self._after(cursor, job_id)
                news = self._progress_after(version, job_id)
                version = max([version, *(number for number, _ in news)])
                batch += [message for _, message in news]
                if see is not None:
                    batch = see(batch)
                answers = self._answers_after(answered, watched)
                answered = max([answered, *(number for number, _ in answers)])
                batch += [answer for _, answer in answers]
                if batch:
                    yield batch
                    if job_id is None and cursor >= self.last_seq:
                        await self._pause()
                elif cursor == before and not await self.changed(
                    _HEARTBEAT_S * random.uniform(0.7, 1.0)
                ):
                    yield []  # a heartbeat, at a different moment for each listener
        finally:
            self._listeners -= 1

    async def _pause(self) -> None:
        """Let one of many listeners wait, for what comes next to come together."""
        if self._listeners > _FEW:
            pause_s = self._listeners * _PAUSE_EACH_S
            await asyncio.sleep(min(pause_s, _LONGEST_PAUSE_S))

    def _progress_after(
        self, version: int, job_id: str | None
    ) -> list[tuple[int, Message]]:
        news = [
            (number, message)
            for number, message in self._progress.values()
            if number > version and job_id in (None, message.job_id)
        ]
        return sorted(news, key=lambda pair: pair[0])

    def _answers_after(
        self, version: int, watched: Collection[Hashable]
    ) -> list[tuple[int, Message]]:
        found = [self._answers[one] for one in watched if one in self._answers]
        return [(number, answer) for number, answer in found if number > version]

    async def _after(
        self, cursor: int, job_id: str | None
    ) -> tuple[list[Message], int]:
        """The next messages after `cursor` and the cursor behind them, from the ring if
        it reaches back far enough.
        """
        first = self._ring[0].seq if self._ring else None
        if first is None or cursor < first - 1:
            # One listener reads the journal at a time, and others run after each page.
            async with self._catching_up:
                last = self._queries.last_seq()
                rows = self._queries.events_after(cursor, _PAGE, job_id)
                await asyncio.sleep(0)
            following = rows[-1]["seq"] if len(rows) == _PAGE else last
            return [message_of(row) for row in rows], following
        last = self._ring[-1].seq or 0
        behind = cursor - last
        recent = [self._ring[i] for i in range(behind, min(behind + _PAGE, 0))]
        wanted = [message for message in recent if job_id in (None, message.job_id)]
        return wanted, min(cursor + _PAGE, last)
