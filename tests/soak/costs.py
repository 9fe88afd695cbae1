"""What must hold of costs at the end of a soak: however they are cut and added up, the
sums are those of the attempts, whatever was killed and whatever prices changed.
"""

import csv
import io
import time
from collections.abc import Iterator, Sequence
from decimal import Decimal
from itertools import pairwise
from typing import Any

from gpuyard.client.sync import Client
from gpuyard.domain.cost_keys import CostBy
from gpuyard.domain.jobs import Attempt, Job
from tests.support.instance import TestInstance
from tests.support.web import http

# In so many periods, one after the other, the time of the soak is cut.
_PERIODS = 7


def change_price(instance: TestInstance, per_hour: Decimal) -> None:
    """From its next start on, the server bills this for an hour of a job."""
    path = instance.home.root / "gpuyard.toml"
    written = path.with_suffix(".new")
    written.write_text(f'[billing]\nlocal_price_per_hour = "{per_hour}"\n')
    written.replace(path)


def broken_sums(instance: TestInstance, jobs: Sequence[Job]) -> Iterator[str]:
    """Every sum that is not that of the attempts of these jobs, in words; all jobs of
    the instance are over.
    """
    attempts = [each for job in jobs for each in job.attempts]
    yield from _billed_twice(attempts)
    begin = min((job.created_at for job in jobs), default=0.0) - 60.0
    end = time.time() + 60.0
    whole = sum((each.cost.amount for each in attempts), Decimal(0))
    with instance.client() as client:
        for by in CostBy:
            found = client.costs(by.value, begin=begin, end=end)
            lines = sum((line.amount for line in found.items), Decimal(0))
            of_sums = sum((line.amount for line in found.sums), Decimal(0))
            yield from _differs(f"the lines by {by}", lines, whole)
            yield from _differs(f"the sum of the report by {by}", of_sums, whole)
        periods = sum(_of_periods(client, begin, end), Decimal(0))
        yield from _differs(f"{_PERIODS} periods together", periods, whole)
    yield from _differs("the bill", _of_bill(instance, begin, end), whole)


def _differs(what: str, found: Decimal, wanted: Decimal) -> list[str]:
    if found == wanted:
        return []
    return [f"costs: {what}: {found}, and those of the attempts are {wanted}"]


def _billed_twice(attempts: Sequence[Attempt]) -> Iterator[str]:
    """Attempts that cost more than they can, and those that are there twice."""
    if len({each.id for each in attempts}) != len(attempts):
        yield "costs: an attempt is there twice"
    for each in attempts:
        ran_s = Decimal(str(each.ran_s or 0.0))
        most = each.cost.price_per_hour * ran_s / 3600 + Decimal("0.000001")
        if not 0 <= each.cost.amount <= most:
            yield f"costs: attempt {each.id} cost {each.cost} for {ran_s} s"


def _of_periods(client: Client, begin: float, end: float) -> Iterator[Decimal]:
    """What each of the periods cost."""
    step = (end - begin) / _PERIODS
    cuts = [*(begin + number * step for number in range(_PERIODS)), end]
    for first, last in pairwise(cuts):
        sums: Any = client.costs("user", begin=first, end=last).sums
        yield sum((line.amount for line in sums), Decimal(0))


def _of_bill(instance: TestInstance, begin: float, end: float) -> Decimal:
    """The sum of what the file in the columns of FOCUS says."""
    with http(instance) as web:
        params = {"from": begin, "to": end}
        text = web.get("/api/v1/costs/focus", params=params).text
    rows = csv.DictReader(io.StringIO(text))
    return sum((Decimal(row["BilledCost"]) for row in rows), Decimal(0))
