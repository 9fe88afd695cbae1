"""Compares what clouds bill with what the ledger has: when somebody asks, and once a
day where the settings of a provider say so.
"""

import asyncio
import time
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from typing import Any

import structlog

from gpuyard.billing.bills import PaidMachine, compare
from gpuyard.billing.paid_machines import machine_of_attempt, machine_of_pool_node
from gpuyard.controller.cloud_accounts import CloudAccounts
from gpuyard.controller.core import Core
from gpuyard.domain.bills import (
    MOST_STORED,
    BillComparison,
    BillMatch,
    CloudBill,
    StoredBill,
)
from gpuyard.domain.errors import InvalidInputError, RefusedError
from gpuyard.domain.events import Event, EventKind
from gpuyard.providers.configured import Providers

_USUAL_TOLERANCE_PERCENT = 5.0
# A bill of a day is complete a day or two after it, in any time zone of a bill.
_COMPLETE_AFTER = timedelta(days=2)
# A bill that cannot be read is asked for again after this time: AWS charges for each
# question.
_ASK_AGAIN_S = 6 * 3600.0
log = structlog.get_logger(__name__)


class CloudBills:
    """The bills of the configured providers."""

    def __init__(
        self, core: Core, providers: Providers, accounts: CloudAccounts
    ) -> None:
        self._core = core
        self._providers = providers
        self._accounts = accounts
        # When a bill could not be read (monotonic seconds), by provider.
        self._failed_at: dict[str, float] = {}

    async def compare(self, name: str, day: date | None = None) -> BillComparison:
        """The bill of a provider for a `day`; without one, the newest that should be
        complete. NotFoundError for a provider that is not configured, RefusedError for
        one without bills, InvalidInputError for a day that is not over, ProviderError.
        """
        provider = self._accounts.find(name)
        wanted = self._newest_day() if day is None else day
        today = datetime.fromtimestamp(self._core.clock(), UTC).date()
        if wanted >= today:
            raise InvalidInputError.of(
                "day", f"{wanted} is not over", f"name one before {today}, in UTC"
            )
        bill = await provider.bill(wanted)
        if bill is None:
            raise RefusedError(
                f"Provider {name} tells no bills.",
                "`gpuyard report --by provider` shows what gpuyard has counted.",
            )
        paid = await asyncio.to_thread(self._paid, name, bill)
        found = compare(name, bill, paid, self._tolerance_percent(name))
        await self._store(found)
        return found

    def stored(self) -> list[StoredBill]:
        """The last comparison of each provider that rents machines. No cloud is
        asked.
        """
        return [
            self._stored(name, provider.settings.compare_bills)
            for name, provider in self._providers.rented.items()
        ]

    def _stored(self, name: str, daily: bool) -> StoredBill:
        note = self._core.queries.note(_stored_note(name))
        known = {"provider": name, "daily": daily}
        return StoredBill.model_validate({**note, **known})

    async def _store(self, found: BillComparison) -> None:
        """Keep what differs: that is what people look into."""
        different = [item for item in found.items if item.match != BillMatch.SAME]
        shortened = found.model_copy(update={"items": different[:MOST_STORED]})
        body = {
            "compared_at": self._core.clock(),
            "machines": len(found.items),
            "different": len(different),
            "comparison": shortened.model_dump(mode="json"),
        }
        self._core.writer.set_note(_stored_note(found.provider), body)
        await self._core.committed(own_only=True)

    def _newest_day(self) -> date:
        now = datetime.fromtimestamp(self._core.clock(), UTC)
        return (now - _COMPLETE_AFTER).date()

    def _tolerance_percent(self, name: str) -> float:
        rented = self._providers.rented.get(name)
        if rented is None:
            return _USUAL_TOLERANCE_PERCENT
        return rented.settings.bill_tolerance_percent

    def _paid(self, name: str, bill: CloudBill) -> list[PaidMachine]:
        queries = self._core.queries
        now = self._core.clock()
        attempts = queries.rented_attempts(name, bill.begin, bill.end)
        nodes = queries.rented_pool_nodes(name, bill.begin, bill.end)
        return [
            *(machine_of_attempt(row, now) for row in attempts),
            *(machine_of_pool_node(row, now) for row in nodes),
        ]

    # --- once a day ---

    async def look(self) -> None:
        """Compare the newest bill of each provider whose settings say so, once."""
        day = self._newest_day().isoformat()
        for name, provider in self._providers.rented.items():
            note = f"bill:{name}"
            if not provider.settings.compare_bills or not self._may_ask(name):
                continue
            if self._core.queries.note(note).get("day") == day:
                continue
            if await self._compare_and_tell(name):
                self._core.writer.set_note(note, {"day": day})
                await self._core.committed(own_only=True)

    def _may_ask(self, name: str) -> bool:
        failed_at = self._failed_at.get(name, float("-inf"))
        return time.monotonic() - failed_at >= _ASK_AGAIN_S

    async def _compare_and_tell(self, name: str) -> bool:
        try:
            found = await self.compare(name)
        except Exception as error:  # noqa: BLE001  (a cloud may say anything)
            self._failed_at[name] = time.monotonic()
            why = str(error) or type(error).__name__
            log.warning("a bill cannot be read", provider=name, error=why)
            return False
        kind = EventKind.BILL_DIFFERS if found.differs else EventKind.BILL_COMPARED
        self._core.emit([Event(kind, self._core.clock(), (), None, _told(found))])
        return True


def _stored_note(provider: str) -> str:
    """The note of the ledger with the last comparison of a provider."""
    return f"bill_comparison:{provider}"


def _told(found: BillComparison) -> dict[str, Any]:
    """What everybody may know of a comparison: it has no amounts, because they are also
    those of private projects.
    """
    matches = Counter(item.match for item in found.items)
    different = len(found.items) - matches[BillMatch.SAME]
    info: dict[str, Any] = {
        "provider": found.provider,
        "day": found.day.isoformat(),
        "machines": len(found.items),
        "different": different,
        "unknown": matches[BillMatch.UNKNOWN],
    }
    if found.differs:
        info["problem"] = (
            f"{different} of {len(found.items)} machines on {found.day}, of which"
            f" {matches[BillMatch.UNKNOWN]} are unknown; `gpuyard cloud bills"
            f" {found.provider} --day {found.day}` shows them"
        )
    return info
