"""Bills of clouds beside a real ledger: what of it is compared, and what is told of it
once a day.
"""

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa

from gpuyard.controller.cloud_accounts import CloudAccounts
from gpuyard.controller.cloud_bills import CloudBills
from gpuyard.domain.bills import BillMatch, Charge, CloudBill, CostPart
from gpuyard.domain.errors import (
    InvalidInputError,
    NotFoundError,
    ProviderError,
    RefusedError,
)
from gpuyard.domain.events import Event
from gpuyard.ledger.ledger import Ledger
from gpuyard.ledger.tables import attempts, pool_nodes
from gpuyard.providers.instances.settings import InstanceSettings
from tests.support.blank_ledger import blank_ledger

pytestmark = pytest.mark.anyio
DAY = date(2026, 11, 27)
BEGIN = datetime(2026, 11, 27, tzinfo=UTC).timestamp()
HOUR_S = 3600.0
NOW = BEGIN + 2.5 * 86_400


class Cloud:
    """A provider whose bill a test decides."""

    PROVIDER_NAME = "aws"

    def __init__(self) -> None:
        values = {"home": "/", "compare_bills": True, "bill_tolerance_percent": 5}
        self.settings = InstanceSettings.read(values)
        self.charges: list[Charge] = []
        self.asked: list[date] = []
        self.problem = ""

    async def bill(self, day: date) -> CloudBill:
        self.asked.append(day)
        if self.problem:
            raise ProviderError(self.problem, "aws", "DENIED")
        end = BEGIN + 86_400
        return CloudBill(day, "UTC", BEGIN, end, self.charges, False, "tags are off")


class NoBills:
    """Another provider."""

    async def bill(self, _: date) -> None:
        return None


class Instance:
    """What the comparison needs of an instance: its ledger, and where events go."""

    def __init__(self, path: Path) -> None:
        self.ledger = Ledger.open(blank_ledger(path))
        self.cloud = Cloud()
        self.events: list[Event] = []
        self.notes: dict[str, Any] = {}
        queries: Any = self.ledger.queries
        queries.note = lambda name: self.notes.get(name, {})
        core: Any = SimpleNamespace(
            queries=queries,
            clock=lambda: NOW,
            writer=SimpleNamespace(set_note=self._set_note),
            emit=self.events.extend,
            committed=self._committed,
        )
        self.core = core

    def _set_note(self, name: str, body: dict[str, Any]) -> None:
        self.notes[name] = body

    async def _committed(self, *, own_only: bool) -> None:
        assert own_only

    def bills(self) -> CloudBills:
        """As a server makes them that has just started."""
        providers: Any = Providers(aws=self.cloud, slurm=NoBills())
        return CloudBills(self.core, providers, CloudAccounts(providers))

    def add(self, table: sa.Table, **values: Any) -> None:
        with self.ledger.engine.begin() as connection:
            connection.execute(sa.insert(table).values(**values))


class Providers(dict[str, Any]):
    """The configured providers."""

    @property
    def rented(self) -> dict[str, Any]:
        return {"aws": self["aws"]}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[Instance]:
    made = Instance(tmp_path / "ledger.db")
    yield made
    made.ledger.close()


def attempt(name: str, **values: Any) -> dict[str, Any]:
    """A row: an hour at 1.20 USD, from two o'clock on."""
    return {
        "id": name,
        "job_id": f"job_of_{name}",
        "provider": "aws",
        "provider_ref": f"us-east-1/i-{name}",
        "created_at": BEGIN + 2 * HOUR_S - 3,
        "ended_at": BEGIN + 3 * HOUR_S,
        "price_per_hour": "1.2",
        "currency": "USD",
        "cost": "1.2",
        **values,
    }


def charge(machine: str, owner: str, amount: str) -> Charge:
    hours = Decimal(1)
    return Charge(machine, owner, CostPart.MACHINE, Decimal(amount), "USD", hours)


async def test_machines_of_attempts_and_of_pools_are_compared(
    instance: Instance,
) -> None:
    instance.add(attempts, **attempt("a1"))
    instance.add(attempts, **attempt("a2", ended_at=None, cost="0"))
    instance.add(attempts, **attempt("others", provider="slurm"))
    instance.add(attempts, **attempt("queued", provider_ref=None))
    instance.add(attempts, **attempt("early", ended_at=BEGIN - 1))
    instance.add(attempts, **attempt("late", created_at=BEGIN + 86_400))
    node = {
        "id": "pool_1",
        "provider": "aws",
        "reference": "us-east-1/i-p1",
        "price_per_hour": "2",
        "currency": "USD",
        "began_at": BEGIN - HOUR_S,
        "ended_at": BEGIN + HOUR_S,
    }
    instance.add(pool_nodes, **node)
    instance.cloud.charges = [
        charge("", "a1", "1.2"),
        charge("", "pool_1", "2.5"),
        charge("", "a9", "1"),
    ]
    found = await instance.bills().compare("aws")
    assert instance.cloud.asked == [DAY], "the newest day that should be complete"
    by_owner = {item.owner: item for item in found.items}
    assert {name: item.match for name, item in by_owner.items()} == {
        "a1": BillMatch.SAME,
        "a2": BillMatch.NOT_BILLED,
        "pool_1": BillMatch.DIFFERENT,
        "a9": BillMatch.UNKNOWN,
    }
    assert (by_owner["a1"].machine, by_owner["a1"].job_id) == ("i-a1", "job_of_a1")
    assert by_owner["a2"].counted == Decimal("26.401"), "it runs on until midnight"
    assert by_owner["pool_1"].counted == 2, "an hour of it was the day before"


async def test_what_the_bill_has_besides_is_named(instance: Instance) -> None:
    placement = {"node_id": "", "prices": {"machine": "1.1", "disk": "0.1"}}
    instance.add(attempts, **attempt("a1", placements=[placement]))
    traffic = Charge("i-a1", "", CostPart.TRAFFIC, Decimal("0.5"), "USD")
    instance.cloud.charges = [charge("i-a1", "", "1.1"), traffic]
    (item,) = (await instance.bills().compare("aws")).items
    assert item.difference == Decimal("0.4")
    assert item.why == (
        "traffic is billed (0.50) and was not counted; disk was counted (0.1000 an"
        " hour) and is not billed"
    )


async def test_bad_input_is_named(instance: Instance) -> None:
    bills = instance.bills()
    with pytest.raises(InvalidInputError, match="day: 2026-11-29 is not over"):
        await bills.compare("aws", date(2026, 11, 29))
    with pytest.raises(RefusedError, match="slurm tells no bills"):
        await bills.compare("slurm")
    with pytest.raises(NotFoundError, match="No provider 'awz'"):
        await bills.compare("awz")
    assert instance.cloud.asked == []


async def test_each_bill_is_told_of_once(instance: Instance) -> None:
    instance.cloud.charges = [charge("", "a9", "1")]
    await instance.bills().look()
    await instance.bills().look()
    assert instance.cloud.asked == [DAY], "another server does not ask again"
    (event,) = instance.events
    assert event.kind == "bill.differs"
    assert event.info["problem"] == (
        "1 of 1 machines on 2026-11-27, of which 1 are unknown; `gpuyard cloud bills"
        " aws --day 2026-11-27` shows them"
    )
    instance.notes.clear()
    instance.cloud.charges = []
    await instance.bills().look()
    assert instance.events[-1].kind == "bill.compared"


async def test_what_was_compared_last_is_read_without_a_question(
    instance: Instance,
) -> None:
    (before,) = instance.bills().stored()
    assert (before.provider, before.daily, before.comparison) == ("aws", True, None)
    instance.add(attempts, **attempt("a1"))
    instance.cloud.charges = [charge("", "a1", "1.2"), charge("", "a9", "1")]
    found = await instance.bills().compare("aws")
    instance.notes = json.loads(json.dumps(instance.notes))
    (stored,) = instance.bills().stored()
    assert (stored.compared_at, stored.machines, stored.different) == (NOW, 2, 1)
    assert stored.comparison is not None
    (unknown,) = stored.comparison.items
    assert (unknown.owner, unknown.match) == ("a9", BillMatch.UNKNOWN)
    assert stored.comparison.sums == found.sums
    assert len(instance.cloud.asked) == 1, "AWS charges for each question"


async def test_no_bill_is_asked_for_without_the_setting(instance: Instance) -> None:
    values = {"home": "/", "compare_bills": False}
    instance.cloud.settings = InstanceSettings.read(values)
    await instance.bills().look()
    assert (instance.cloud.asked, instance.events) == ([], [])


async def test_a_bill_that_cannot_be_read_is_not_asked_for_each_hour(
    instance: Instance,
) -> None:
    instance.cloud.problem = "ce:GetCostAndUsage is denied"
    bills = instance.bills()
    await bills.look()
    await bills.look()
    assert len(instance.cloud.asked) == 1, "AWS charges for each question"
    assert (instance.events, instance.notes) == ([], {})
