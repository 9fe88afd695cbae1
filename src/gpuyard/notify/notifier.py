"""The notifier: each webhook is a position in the journal, which moves on when its receiver has taken the event there.

Nothing is queued in memory: a webhook holds one page of the journal at the most, and one whose receiver is dead holds
up no other. Positions are kept in the ledger, a few milliseconds behind: after a crash an event may come twice, and is
known by its id.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from gpuyard.domain.errors import LedgerError
from gpuyard.domain.events import Event
from gpuyard.ledger.queries import Queries
from gpuyard.ledger.writer import Writer
from gpuyard.notify.answer import Answer, Deliverer, Outcome
from gpuyard.notify.letter import Letter, letter_of
from gpuyard.notify.webhook import Webhook

NOTE = "webhooks"
FIRST_WAIT_S, LONGEST_WAIT_S = 1.0, 300.0
PAGE = 32
# A journal is never pruned to fewer than a thousand events, so what is kept this often is never pruned away.
_KEEP_EVERY = 500
_LEDGER_AGAIN_S = 5.0
log = structlog.get_logger(__name__)
Row = Mapping[str, Any]


@dataclass(slots=True)
class _Line:
    """One webhook, and the last event it needs no more. It is `idle` when it has been told of everything."""

    hook: Webhook
    seq: int = 0
    idle: bool = False
    drops: int = 0
    news: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class _Page:
    """What comes next for a webhook: how many events are gone, some that it wants, and where it is after them."""

    pruned: int
    events: Sequence[Row]
    jobs: Mapping[str, Row]
    upto: int
    last: bool


class Notifier:
    """Tells webhooks of events. `outcomes` counts what became of each try; one server at a time may have it started."""

    def __init__(
        self, hooks: Sequence[Webhook], queries: Queries, writer: Writer, deliverer: Deliverer,
        *, first_wait_s: float = FIRST_WAIT_S, longest_wait_s: float = LONGEST_WAIT_S,
    ) -> None:  # fmt: skip
        self.outcomes = Counter[Outcome]()
        self._lines = [_Line(hook) for hook in hooks]
        self._queries = queries
        self._writer = writer
        self._deliverer = deliverer
        self._first_wait_s = first_wait_s
        self._longest_wait_s = longest_wait_s
        self._heard = self._kept = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Go on where each webhook was left, and with a new one from now on. The writer must have been started."""
        last = await asyncio.to_thread(self._queries.last_seq)
        positions = await asyncio.to_thread(self._queries.note, NOTE)
        for line in self._lines:
            line.seq = min(positions.get(line.hook.id, last), last)
        self._heard = last
        self._keep()
        self._tasks = [asyncio.create_task(self._run(line), name=f"tell {line.hook.label}") for line in self._lines]

    async def close(self) -> None:
        """Stop; what is under way is sent again by the next one."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._tasks:
            self._keep()
        await self._deliverer.close()

    def hear(self, first_seq: int, events: Sequence[Event]) -> None:
        """Events were committed (a `writer.Committed`); of a large commit it hears only the end."""
        whole = first_seq == self._heard + 1
        self._heard = first_seq + len(events) - 1
        kinds = {event.kind for event in events}
        for line in self._lines:
            if not whole or not line.hook.kinds.isdisjoint(kinds):
                line.news.set()
            elif line.idle and not line.news.is_set():
                line.seq = self._heard
        if self._heard - self._kept >= _KEEP_EVERY:
            self._keep()

    def _keep(self) -> None:
        self._kept = self._heard
        self._writer.put_note(NOTE, {line.hook.id: line.seq for line in self._lines})

    # --- one webhook ---

    async def _run(self, line: _Line) -> None:
        while True:
            try:
                await self._catch_up(line)
                line.idle = True
                await line.news.wait()
                line.idle = False
            except LedgerError as error:
                log.warning("the journal cannot be read for a webhook", webhook=line.hook.label, error=str(error))
                await asyncio.sleep(_LEDGER_AGAIN_S)
            except Exception as error:  # noqa: BLE001 - not its words nor its trace: they may hold the address
                log.error("telling a webhook failed", webhook=line.hook.label, cause=type(error).__name__)
                await asyncio.sleep(self._longest_wait_s)

    async def _catch_up(self, line: _Line) -> None:
        """Deliver until there is nothing more."""
        last = False
        while not last:
            line.news.clear()
            page = await asyncio.to_thread(self._read, line)
            if page.pruned:
                self.outcomes[Outcome.PRUNED] += page.pruned
                log.warning("a webhook missed what was pruned from the journal before it could be told",
                            webhook=line.hook.label, events=page.pruned)  # fmt: skip
            for event in page.events:
                job = page.jobs.get(event["job_id"] or "")
                if line.hook.wants(job):
                    await self._tell(line, letter_of(event, job, line.hook.format))
                    line.seq = event["seq"]
                    self._keep()
            line.seq, last = max(line.seq, page.upto), page.last

    def _read(self, line: _Line) -> _Page:
        """In a thread: the next page of the journal for this webhook."""
        queries, seq = self._queries, line.seq
        first, newest = queries.first_seq(), queries.last_seq()
        events = queries.events_of(line.hook.kinds, seq, PAGE)
        jobs = queries.jobs_by_id({event["job_id"] for event in events if event["job_id"]})
        last = len(events) < PAGE
        pruned = max(first - seq - 1, 0)
        return _Page(pruned, events, jobs, max(newest, seq) if last else events[-1]["seq"], last)

    async def _tell(self, line: _Line, letter: Letter) -> None:
        """Until it is taken, or refused for good."""
        wait_s, label = self._first_wait_s, line.hook.label
        failed = 0
        while True:
            answer = await self._deliverer.deliver(line.hook, letter)
            self.outcomes[answer.outcome] += 1
            if answer.outcome is not Outcome.RETRIED:
                break
            failed += 1
            if failed == 1:
                log.warning("a webhook does not answer, will try again", webhook=label, why=answer.why)
            await asyncio.sleep(max(wait_s, answer.wait_s))
            wait_s = min(2 * wait_s, self._longest_wait_s)
        if failed:
            log.info("a webhook answers again", webhook=label, tries=failed + 1)
        self._note_drop(line, letter, answer)

    @staticmethod
    def _note_drop(line: _Line, letter: Letter, answer: Answer) -> None:
        """Say that a receiver refused, but not each time: the 1st, 2nd, 4th, 8th … in a row."""
        line.drops = line.drops + 1 if answer.outcome is Outcome.DROPPED else 0
        if line.drops and line.drops & (line.drops - 1) == 0:
            log.warning("a webhook refused an event, which is dropped", webhook=line.hook.label, why=answer.why,
                        letter=letter.id, in_a_row=line.drops)  # fmt: skip
