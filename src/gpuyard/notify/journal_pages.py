"""Pages of the journal, read once for all webhooks that are at the same place."""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpuyard.domain.events import EventKind
from gpuyard.domain.webhooks import WebhookFormat
from gpuyard.ledger.queries import Queries
from gpuyard.notify.payload import Payload, make_payload

PAGE = 32
_KEPT_PAGES = 32
Row = Mapping[str, Any]
_Key = tuple[frozenset[EventKind], int]


@dataclass(frozen=True, slots=True)
class JournalPage:
    """The next events of some kinds after a place.

    `pruned`: how many were lost before. `upto`: the place after this page. `last`:
    whether that was the end of the journal.
    """

    pruned: int
    events: Sequence[Row]
    jobs: Mapping[str, Row]
    upto: int
    last: bool
    _payloads: dict[tuple[int, WebhookFormat], Payload] = field(
        default_factory=dict[tuple[int, WebhookFormat], Payload], repr=False
    )

    def job_of(self, event: Row) -> Row | None:
        """The row of the event's job."""
        return self.jobs.get(event["job_id"] or "")

    def payload(self, event: Row, form: WebhookFormat) -> Payload:
        """What receivers get; encoded once for all of them."""
        key = event["seq"], form
        payload = self._payloads.get(key)
        if payload is None:
            payload = make_payload(event, self.job_of(event), form)
            self._payloads[key] = payload
        return payload


class JournalPages:
    """Reads the journal for all webhooks, one page at a time."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._pages: OrderedDict[_Key, JournalPage] = OrderedDict()
        self._reading = asyncio.Lock()
        self._commits = 0

    def note_commit(self) -> None:
        """Forget pages that ended at the end of the journal."""
        self._commits += 1
        for key in [key for key, page in self._pages.items() if page.last]:
            del self._pages[key]

    async def after(self, kinds: frozenset[EventKind], seq: int) -> JournalPage:
        """The next page of these kinds after `seq`."""
        key = kinds, seq
        async with self._reading:
            page = self._pages.get(key)
            if page is not None:
                return page
            commits = self._commits
            page = await asyncio.to_thread(self._read, kinds, seq)
            # Else the journal goes on behind it by now.
            if not page.last or commits == self._commits:
                self._pages[key] = page
            while len(self._pages) > _KEPT_PAGES:
                self._pages.popitem(last=False)
            return page

    def _read(self, kinds: frozenset[EventKind], seq: int) -> JournalPage:
        queries = self._queries
        first = queries.first_seq()
        newest = queries.last_seq()
        events = queries.events_of(kinds, seq, PAGE)
        job_ids = {event["job_id"] for event in events if event["job_id"]}
        jobs = queries.jobs_by_id(job_ids)
        last = len(events) < PAGE
        pruned = max(first - seq - 1, 0)
        upto = max(newest, seq) if last else events[-1]["seq"]
        return JournalPage(pruned, events, jobs, upto, last)
