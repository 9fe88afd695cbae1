"""The notifier sends events to receivers: webhooks and mailboxes.

Each has a position in the journal, which advances when the receiver has
accepted the event. Nothing is queued in memory: a receiver has at most one page of the
journal, which it shares with others at the same place, and a dead receiver delays no
other. Positions are saved in the ledger a moment later. After a crash an event may come
twice; its id shows that.

An event that a receiver refuses, or has not taken for hours, becomes a dead letter: it
is put aside, counted and shown, and the events behind it go on in order.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from gpuyard.domain.errors import LedgerError
from gpuyard.domain.events import Event, EventKind
from gpuyard.ledger.queries import Queries
from gpuyard.ledger.writer import Writer
from gpuyard.notify.dead_letters import DeadLetter, DeadLetters
from gpuyard.notify.delivery_result import Deliverer, DeliveryOutcome, DeliveryResult
from gpuyard.notify.journal_pages import JournalPage, JournalPages
from gpuyard.notify.receiver import Receiver

NOTE = "webhooks"
DEAD_LETTERS_NOTE = "webhook_dead_letters"
FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 300.0
GIVE_UP_S = 6 * 3600.0
# However much time has passed: the server may have been suspended.
_GIVE_UP_TRIES = 5
# Deliveries at once: the HTTP client looks at all of its connections for each, so that
# a thousand at once stall the server.
CONCURRENT = 64
# Of receivers that failed last, which may take the whole time-out each time.
CONCURRENT_RETRIES = 16
_SAVE_AFTER_S = 0.05
# The journal always keeps its last thousand events, so a position that is saved this
# often is never pruned away.
_SAVE_EVERY = 500
_LEDGER_RETRY_S = 5.0
log = structlog.get_logger(__name__)
Row = Mapping[str, Any]


@dataclass(slots=True)
class _ReceiverState:
    """One receiver and the last event that it does not need any more.

    `idle`: it has received everything. `failing`: why its last delivery failed.
    """

    receiver: Receiver
    seq: int = 0
    idle: bool = False
    failing: str = ""
    dead_letters: DeadLetters = field(default_factory=DeadLetters)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def up_to_date(self) -> bool:
        """Whether no event up to the end of the journal concerns it."""
        return self.idle and not self.news.is_set()


class Notifier:
    """Sends events to receivers.

    `outcomes` counts the results. Only one server at a time may have it started.
    `give_up_s`: after this time without success an event becomes a dead letter.
    """

    def __init__(
        self,
        receivers: Sequence[Receiver],
        queries: Queries,
        writer: Writer,
        deliverer: Deliverer,
        *,
        first_wait_s: float = FIRST_WAIT_S,
        longest_wait_s: float = LONGEST_WAIT_S,
        give_up_s: float = GIVE_UP_S,
    ) -> None:
        self.outcomes = Counter[DeliveryOutcome]()
        self._states = [_ReceiverState(receiver) for receiver in receivers]
        self._by_kinds: dict[frozenset[EventKind], list[_ReceiverState]] = {}
        for state in self._states:
            self._by_kinds.setdefault(state.receiver.kinds, []).append(state)
        self._queries = queries
        self._pages = JournalPages(queries)
        self._writer = writer
        self._deliverer = deliverer
        self._first_wait_s = first_wait_s
        self._longest_wait_s = longest_wait_s
        self._give_up_s = give_up_s
        self._slots = asyncio.Semaphore(CONCURRENT)
        self._retry_slots = asyncio.Semaphore(CONCURRENT_RETRIES)
        self._last_seq = 0
        self._saved_seq = 0
        self._saving: asyncio.TimerHandle | None = None
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Continue at each receiver's saved position; a new one starts at the end.

        The writer must have been started.
        """
        last = await asyncio.to_thread(self._queries.last_seq)
        positions = await asyncio.to_thread(self._queries.note, NOTE)
        dead_letters = await asyncio.to_thread(self._queries.note, DEAD_LETTERS_NOTE)
        for state in self._states:
            state.seq = min(positions.get(state.receiver.id, last), last)
            state.dead_letters = DeadLetters.of(dead_letters.get(state.receiver.id, {}))
        self._last_seq = last
        self._save_positions()
        self._tasks = [
            asyncio.create_task(self._run(state), name=f"notify {state.receiver.label}")
            for state in self._states
        ]

    async def close(self) -> None:
        """Stop; deliveries in progress are sent again after the next start."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._saving:
            self._saving.cancel()
        if self._tasks:
            self._save_positions()
        await self._deliverer.close()

    def describe(self) -> list[dict[str, Any]]:
        """Each receiver for people: without its URL, which may be a secret."""
        return [
            {
                "webhook": state.receiver.label,
                "events": sorted(state.receiver.kinds),
                "position": self._position(state),
                "behind": self._last_seq - self._position(state),
                "failing": state.failing or None,
                "dead_letters": state.dead_letters.to_json(),
            }
            for state in self._states
        ]

    def on_commit(self, first_seq: int, events: Sequence[Event]) -> None:
        """Note committed events (a `writer.Committed`).

        Of a large commit it is called for the last events only.
        """
        before = self._last_seq
        whole = first_seq == before + 1
        kinds = {event.kind for event in events}
        self._pages.note_commit()
        for wanted, states in self._by_kinds.items():
            if whole and wanted.isdisjoint(kinds):
                continue
            for state in states:
                if state.up_to_date:
                    # It may have read events that this says only now.
                    state.seq = max(state.seq, before)
                state.news.set()
        self._last_seq = first_seq + len(events) - 1
        if self._last_seq - self._saved_seq >= _SAVE_EVERY:
            self._save_soon()

    # --- positions ---

    def _position(self, state: _ReceiverState) -> int:
        return max(self._last_seq, state.seq) if state.up_to_date else state.seq

    def _save_soon(self) -> None:
        """Save all positions in a moment: once for many deliveries."""
        if self._saving is None:
            loop = asyncio.get_running_loop()
            self._saving = loop.call_later(_SAVE_AFTER_S, self._save_positions)

    def _save_positions(self) -> None:
        self._saving = None
        self._saved_seq = self._last_seq
        positions = {state.receiver.id: self._position(state) for state in self._states}
        self._writer.set_note(NOTE, positions)

    # --- one receiver ---

    async def _run(self, state: _ReceiverState) -> None:
        while True:
            try:
                await self._catch_up(state)
                state.idle = True
                await state.news.wait()
                state.idle = False
            except LedgerError as error:
                log.warning(
                    "the journal cannot be read for a receiver",
                    receiver=state.receiver.label,
                    error=str(error),
                )
                await asyncio.sleep(_LEDGER_RETRY_S)
            except Exception as error:  # noqa: BLE001 - its text and trace may hold the address
                log.error(
                    "notifying a receiver failed",
                    receiver=state.receiver.label,
                    cause=type(error).__name__,
                )
                await asyncio.sleep(self._longest_wait_s)

    async def _catch_up(self, state: _ReceiverState) -> None:
        """Deliver every event up to the end of the journal."""
        last = False
        while not last:
            state.news.clear()
            page = await self._pages.after(state.receiver.kinds, state.seq)
            if page.pruned:
                self.outcomes[DeliveryOutcome.PRUNED] += page.pruned
                log.warning(
                    "events were pruned from the journal before a receiver got them",
                    receiver=state.receiver.label,
                    events=page.pruned,
                )
            for event in page.events:
                if state.receiver.wants(page.job_of(event)):
                    await self._deliver(state, page, event)
                    state.seq = event["seq"]
                    self._save_soon()
            state.seq = max(state.seq, page.upto)
            last = page.last

    async def _deliver(
        self, state: _ReceiverState, page: JournalPage, event: Row
    ) -> None:
        """Send until the receiver accepts it, or put it aside."""
        receiver = state.receiver
        wait_s = self._first_wait_s
        tries = 0
        began = time.monotonic()
        while True:
            slots = self._retry_slots if state.failing else self._slots
            async with slots:
                payload = page.payload(event, receiver.format)
                answer = await self._deliverer.deliver(receiver, payload)
            tries += 1
            if answer.outcome is DeliveryOutcome.RETRIED and self._gives_up(
                tries, began
            ):
                answer = DeliveryResult(DeliveryOutcome.DROPPED, answer.why)
            self.outcomes[answer.outcome] += 1
            if answer.outcome is not DeliveryOutcome.RETRIED:
                break
            if not state.failing:
                log.warning(
                    "a receiver does not answer, will try again",
                    receiver=receiver.label,
                    why=answer.why,
                )
            state.failing = answer.why
            await asyncio.sleep(max(wait_s, answer.wait_s))
            wait_s = min(2 * wait_s, self._longest_wait_s)
        if answer.outcome is DeliveryOutcome.DROPPED:
            self._put_aside(state, payload.id, event, tries, answer.why)
            return
        if state.failing:
            log.info("a receiver answers again", receiver=receiver.label, tries=tries)
        state.failing = ""

    def _gives_up(self, tries: int, began: float) -> bool:
        waited_s = time.monotonic() - began
        return tries >= _GIVE_UP_TRIES and waited_s >= self._give_up_s

    def _put_aside(
        self, state: _ReceiverState, event_id: str, event: Row, tries: int, why: str
    ) -> None:
        letter = DeadLetter(
            event_id,
            event["seq"],
            event["kind"],
            event["job_id"],
            time.time(),
            tries,
            why,
        )
        state.failing = why
        state.dead_letters.add(letter)
        notes = {
            other.receiver.id: other.dead_letters.to_json()
            for other in self._states
            if other.dead_letters.count
        }
        self._writer.set_note(DEAD_LETTERS_NOTE, notes)
        # The 1st, 2nd, 4th, 8th … one.
        count = state.dead_letters.count
        if count & (count - 1) == 0:
            log.warning(
                "a receiver did not take an event, which is put aside",
                receiver=state.receiver.label,
                why=why,
                event_id=event_id,
                tries=tries,
                put_aside=count,
            )
