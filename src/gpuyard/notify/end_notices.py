"""Tells the addresses that a job names that it has ended.

The ledger has what is still to be told, so nothing is lost with a server. A notice is
marked as told after its receiver has accepted it: after a crash it may come twice, with
the same id. Each address gets one notice of an owner at a time, so one that does not
answer delays no other; and owners take turns.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import structlog

from gpuyard.domain.end_notices import NoticeAddress, NoticeForm
from gpuyard.domain.errors import LedgerError
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.webhooks import WebhookFormat
from gpuyard.ledger.queries import Queries, Row
from gpuyard.notify.delivery_result import Deliverer, DeliveryOutcome, DeliveryResult
from gpuyard.notify.end_payload import end_payload
from gpuyard.notify.fair_slots import FairSlots
from gpuyard.notify.mailbox import Mailbox, MailServer
from gpuyard.notify.receiver import Receiver
from gpuyard.notify.webhook import Webhook

# Ends that come together are looked for together.
_GATHER_S = 0.2
_LEDGER_RETRY_S = 5.0
_AFTER_FAULT_S = 60.0
_FIRST_WAIT_S = 1.0
_LONGEST_WAIT_S = 300.0
# However much time has passed: the server may have been suspended.
_GIVE_UP_TRIES = 5
_CONCURRENT = 16
_CONCURRENT_OF_OWNER = 4
_ENDS = frozenset(
    {
        EventKind.JOB_COMPLETED,
        EventKind.JOB_FAILED,
        EventKind.JOB_CANCELLED,
        EventKind.JOB_TIMED_OUT,
    }
)
_Place = tuple[str, str | None]
log = structlog.get_logger(__name__)


class EndNotices:
    """Delivers the notices of jobs and arrays that have ended.

    `record` returns when events are in the ledger. `mail`: the server that takes
    e-mails and their sender; None if there is none. `internal_hosts`: see
    `NotifySettings`. `give_up_s`: so long after its end, nobody is told any more.
    """

    def __init__(
        self,
        queries: Queries,
        record: Callable[[Sequence[Event]], Awaitable[None]],
        deliverer: Deliverer,
        mail: tuple[MailServer, str] | None,
        internal_hosts: Sequence[str],
        give_up_s: float,
        *,
        first_wait_s: float = _FIRST_WAIT_S,
    ) -> None:
        self._queries = queries
        self._record = record
        self._deliverer = deliverer
        self._mail = mail
        self._internal_hosts = frozenset(internal_hosts)
        self._give_up_s = give_up_s
        self._first_wait_s = first_wait_s
        self._news = asyncio.Event()
        self._next_seq = 0
        # By address and owner.
        self._under_way: dict[_Place, asyncio.Task[None]] = {}
        self._slots = FairSlots(_CONCURRENT, _CONCURRENT_OF_OWNER)
        self._looking: asyncio.Task[None] | None = None

    @property
    def idle(self) -> bool:
        """True when nobody is being told."""
        return not self._under_way and not self._news.is_set()

    async def start(self) -> None:
        """Tell what the last server has not told, and from now on what ends."""
        self._news.set()
        self._looking = asyncio.create_task(self._look(), name="end notices")

    async def close(self) -> None:
        """Stop; what is under way is told again after the next start."""
        tasks = list(self._under_way.values())
        if self._looking:
            tasks.append(self._looking)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._deliverer.close()

    def on_commit(self, first_seq: int, events: Sequence[Event]) -> None:
        """Note committed events (a `writer.Committed`)."""
        # Of a large commit, only the last events come.
        is_whole = first_seq == self._next_seq
        self._next_seq = first_seq + len(events)
        if not is_whole or any(event.kind in _ENDS for event in events):
            self._news.set()

    async def _look(self) -> None:
        while True:
            await self._news.wait()
            await asyncio.sleep(_GATHER_S)
            self._news.clear()
            try:
                due = await asyncio.to_thread(self._queries.due_notices)
            except LedgerError as error:
                log.warning("the ledger cannot be read for notices", error=str(error))
                await asyncio.sleep(_LEDGER_RETRY_S)
                self._news.set()
                continue
            for notice in due:
                self._begin(notice)

    def _begin(self, notice: Row) -> None:
        place = (notice["address"], notice["owner"])
        if place not in self._under_way:
            task = asyncio.create_task(self._tell(notice), name="end notice")
            self._under_way[place] = task
            task.add_done_callback(lambda task: self._done(place, task))

    def _done(self, place: _Place, task: asyncio.Task[None]) -> None:
        del self._under_way[place]
        if task.cancelled():
            return
        fault = task.exception()
        if fault is None:
            self._news.set()  # the next one of this address
            return
        # Its text and trace may hold the address.
        log.error("telling of an end failed", cause=type(fault).__name__)
        asyncio.get_running_loop().call_later(_AFTER_FAULT_S, self._news.set)

    async def _tell(self, notice: Row) -> None:
        """Try until it is accepted, or give up."""
        address = NoticeAddress.parse(notice["address"])
        receiver = self._receiver(notice, address)
        if receiver is None:
            problem = "this instance sends no e-mails any more"
            await self._mark(notice, address, problem)
            return
        wait_s = self._first_wait_s
        tries = 0
        while True:
            async with self._slots.slot(notice["owner"]):
                payload = end_payload(notice, receiver.format)
                answer = await self._deliverer.deliver(receiver, payload)
            tries += 1
            if not self._is_to_be_tried_again(notice, answer, tries):
                break
            await asyncio.sleep(max(wait_s, answer.wait_s))
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
        is_told = answer.outcome is DeliveryOutcome.DELIVERED
        await self._mark(notice, address, None if is_told else answer.why)

    def _is_to_be_tried_again(
        self, notice: Row, answer: DeliveryResult, tries: int
    ) -> bool:
        if answer.outcome is not DeliveryOutcome.RETRIED:
            return False
        is_late = time.time() - notice["ended_at"] >= self._give_up_s
        return tries < _GIVE_UP_TRIES or not is_late

    def _receiver(self, notice: Row, address: NoticeAddress) -> Receiver | None:
        """Whom to tell; None if there is no mail server."""
        label = address.shown
        if address.form is NoticeForm.MAIL:
            if self._mail is None:
                return None
            server, sender = self._mail
            return Mailbox(
                notice["id"], label, address.target, sender, server, frozenset(), ""
            )
        is_slack = address.form is NoticeForm.SLACK
        is_trusted = notice["owner"] is None or address.host in self._internal_hosts
        return Webhook(
            notice["id"],
            label,
            address.target,
            frozenset(),
            "",
            WebhookFormat.SLACK if is_slack else WebhookFormat.JSON,
            b"",
            public_only=not is_trusted,
        )

    async def _mark(
        self, notice: Row, address: NoticeAddress, problem: str | None
    ) -> None:
        """Note that it was told, or that it never will be."""
        now = time.time()
        is_array = "counts" in notice
        info: dict[str, Any] = {"to": address.shown}
        if is_array:
            info |= {
                "array_id": notice["job_id"],
                "name": notice["name"],
                "total": notice["total"],
            }
        if problem:
            info["problem"] = problem
            log.warning("nobody was told of an end", to=address.shown, why=problem)
        change = Change(
            Table.NOTICES, notice["id"], {"told_at": now, "problem": problem}
        )
        job_id = None if is_array else notice["job_id"]
        event = Event(EventKind.JOB_NOTIFIED, now, (change,), job_id, info)
        await self._record([event])
