"""The notifier sends events to webhooks.

Each webhook has a position in the journal, which advances when its receiver has
accepted the event. Nothing is queued in memory: a webhook holds at most one page of the
journal, and a dead receiver delays no other. Positions are saved in the ledger a few
milliseconds later. After a crash an event may come twice; its id shows that.
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
from gpuyard.notify.delivery_result import Deliverer, DeliveryOutcome, DeliveryResult
from gpuyard.notify.payload import Payload, make_payload
from gpuyard.notify.webhook import Webhook

NOTE = "webhooks"
FIRST_WAIT_S = 1.0
LONGEST_WAIT_S = 300.0
PAGE = 32
# The journal always keeps its last thousand events, so a position that is saved this
# often is never pruned away.
_SAVE_EVERY = 500
_LEDGER_RETRY_S = 5.0
log = structlog.get_logger(__name__)
Row = Mapping[str, Any]


@dataclass(slots=True)
class _WebhookState:
    """One webhook and the last event that it does not need any more.

    `idle`: it has received everything. `drops`: refusals in a row.
    """

    hook: Webhook
    seq: int = 0
    idle: bool = False
    drops: int = 0
    news: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True, slots=True)
class _Page:
    """The next events for a webhook.

    `pruned`: how many were lost before. `upto`: the webhook's position after this page.
    """

    pruned: int
    events: Sequence[Row]
    jobs: Mapping[str, Row]
    upto: int
    last: bool


class Notifier:
    """Sends events to webhooks.

    `outcomes` counts the results. Only one server at a time may have it started.
    """

    def __init__(
        self,
        hooks: Sequence[Webhook],
        queries: Queries,
        writer: Writer,
        deliverer: Deliverer,
        *,
        first_wait_s: float = FIRST_WAIT_S,
        longest_wait_s: float = LONGEST_WAIT_S,
    ) -> None:
        self.outcomes = Counter[DeliveryOutcome]()
        self._states = [_WebhookState(hook) for hook in hooks]
        self._queries = queries
        self._writer = writer
        self._deliverer = deliverer
        self._first_wait_s = first_wait_s
        self._longest_wait_s = longest_wait_s
        self._last_seq = 0
        self._saved_seq = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Continue at each webhook's saved position; a new one starts at the end.

        The writer must have been started.
        """
        last = await asyncio.to_thread(self._queries.last_seq)
        positions = await asyncio.to_thread(self._queries.note, NOTE)
        for state in self._states:
            state.seq = min(positions.get(state.hook.id, last), last)
        self._last_seq = last
        self._save_positions()
        self._tasks = [
            asyncio.create_task(self._run(state), name=f"notify {state.hook.label}")
            for state in self._states
        ]

    async def close(self) -> None:
        """Stop; deliveries in progress are sent again after the next start."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._tasks:
            self._save_positions()
        await self._deliverer.close()

    def on_commit(self, first_seq: int, events: Sequence[Event]) -> None:
        """Note committed events (a `writer.Committed`).

        Of a large commit it is called for the last events only.
        """
        whole = first_seq == self._last_seq + 1
        self._last_seq = first_seq + len(events) - 1
        kinds = {event.kind for event in events}
        for state in self._states:
            if not whole or not state.hook.kinds.isdisjoint(kinds):
                state.news.set()
            elif state.idle and not state.news.is_set():
                state.seq = self._last_seq
        if self._last_seq - self._saved_seq >= _SAVE_EVERY:
            self._save_positions()

    def _save_positions(self) -> None:
        self._saved_seq = self._last_seq
        self._writer.set_note(
            NOTE, {state.hook.id: state.seq for state in self._states}
        )

    # --- one webhook ---

    async def _run(self, state: _WebhookState) -> None:
        while True:
            try:
                await self._catch_up(state)
                state.idle = True
                await state.news.wait()
                state.idle = False
            except LedgerError as error:
                log.warning(
                    "the journal cannot be read for a webhook",
                    webhook=state.hook.label,
                    error=str(error),
                )
                await asyncio.sleep(_LEDGER_RETRY_S)
            except Exception as error:  # noqa: BLE001 - its text and trace may hold the address
                log.error(
                    "notifying a webhook failed",
                    webhook=state.hook.label,
                    cause=type(error).__name__,
                )
                await asyncio.sleep(self._longest_wait_s)

    async def _catch_up(self, state: _WebhookState) -> None:
        """Deliver every event up to the end of the journal."""
        last = False
        while not last:
            state.news.clear()
            page = await asyncio.to_thread(self._read, state)
            if page.pruned:
                self.outcomes[DeliveryOutcome.PRUNED] += page.pruned
                log.warning(
                    "events were pruned from the journal before a webhook"
                    " received them",
                    webhook=state.hook.label,
                    events=page.pruned,
                )
            for event in page.events:
                job = page.jobs.get(event["job_id"] or "")
                if state.hook.wants(job):
                    await self._deliver(
                        state, make_payload(event, job, state.hook.format)
                    )
                    state.seq = event["seq"]
                    self._save_positions()
            state.seq = max(state.seq, page.upto)
            last = page.last

    def _read(self, state: _WebhookState) -> _Page:
        """Read the webhook's next page of the journal; runs in a thread."""
        queries = self._queries
        seq = state.seq
        first = queries.first_seq()
        newest = queries.last_seq()
        events = queries.events_of(state.hook.kinds, seq, PAGE)
        jobs = queries.jobs_by_id(
            {event["job_id"] for event in events if event["job_id"]}
        )
        last = len(events) < PAGE
        pruned = max(first - seq - 1, 0)
        upto = max(newest, seq) if last else events[-1]["seq"]
        return _Page(pruned, events, jobs, upto, last)

    async def _deliver(self, state: _WebhookState, payload: Payload) -> None:
        """Send until the receiver accepts it or refuses it for good."""
        wait_s = self._first_wait_s
        label = state.hook.label
        failed = 0
        while True:
            answer = await self._deliverer.deliver(state.hook, payload)
            self.outcomes[answer.outcome] += 1
            if answer.outcome is not DeliveryOutcome.RETRIED:
                break
            failed += 1
            if failed == 1:
                log.warning(
                    "a webhook does not answer, will try again",
                    webhook=label,
                    why=answer.why,
                )
            await asyncio.sleep(max(wait_s, answer.wait_s))
            wait_s = min(2 * wait_s, self._longest_wait_s)
        if failed:
            log.info("a webhook answers again", webhook=label, tries=failed + 1)
        self._log_refusal(state, payload, answer)

    @staticmethod
    def _log_refusal(
        state: _WebhookState, payload: Payload, answer: DeliveryResult
    ) -> None:
        """Log the 1st, 2nd, 4th, 8th … refusal in a row."""
        state.drops = (
            state.drops + 1 if answer.outcome is DeliveryOutcome.DROPPED else 0
        )
        if state.drops and state.drops & (state.drops - 1) == 0:
            log.warning(
                "a webhook refused an event, which is dropped",
                webhook=state.hook.label,
                why=answer.why,
                event_id=payload.id,
                in_a_row=state.drops,
            )
