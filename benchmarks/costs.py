"""A month's report of costs, against bare sqlite3 that adds up one column; also where
bills are in another currency, whose rate changes every day.
"""

import time
from collections.abc import Iterator
from datetime import date, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from zoneinfo import ZoneInfo

import sqlalchemy as sa

from benchmarks.bench import scaled, scratch, timed
from benchmarks.figures import Figure, alternate
from gpuyard.billing.costs import ReportOrder, report
from gpuyard.billing.exchange import Exchange
from gpuyard.domain.cost_keys import CostBy
from gpuyard.domain.exchange_rates import ExchangeRate, ExchangeRates
from gpuyard.ledger.ledger import Ledger

GROUP = "costs"
# The first day of a month, in which clocks are set back at its end.
_BEGIN = 1_790_805_600.0
_MONTH_S = 31 * 86_400 + 3600
_BERLIN = ZoneInfo("Europe/Berlin")
_ONE_CURRENCY = ExchangeRates("USD", ())
# Bills are in euros, and what a dollar is worth changes every day.
_RATE_A_DAY = ExchangeRates(
    "EUR",
    [
        ExchangeRate(
            currency="USD",
            date=date(2026, 9, 30) + timedelta(day),
            rate=Decimal(900 + day) / 1000,
        )
        for day in range(33)
    ],
)
# An attempt of each number: a retry of every twentieth, 20 projects, two tiers, three
# providers; every tenth was measured, and each runs for up to two hours.
_ATTEMPTS = """
WITH RECURSIVE numbers(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM numbers
LIMIT :count)
INSERT INTO attempts (id, job_id, number, state, provider, placements, created_at,
started_at, ended_at, ran_s, exit_code, reason, limits, usage, price_per_hour,
currency, basis, tier, cost, project, owner, gpu, gpus, cpus, gpu_used)
SELECT printf('attempt_%032x', n), printf('job_%032x', n), 1, 'ended',
CASE n % 3 WHEN 0 THEN 'local' WHEN 1 THEN 'slurm' ELSE 'kubernetes' END,
printf('[{"node_id":"node-%d","gpu_uuids":["GPU-%032x"],"cpus":1.0,"memory_gb":8.0}]',
n % 50, n % 400), began, began, began + ran, ran, n % 20 = 0,
CASE n % 20 WHEN 0 THEN 'exit_code' END, '{"gpus":"environment","memory":"cgroup"}',
'{"cpu_s":12.5,"max_rss_mb":512.25,"rss_mb":500.0}', '0.526', 'USD', 'list',
CASE n % 2 WHEN 0 THEN 'GPU_SMALL' ELSE 'GPU_LARGE' END,
printf('%.6f', ran * 0.526 / 3600), printf('project-%d', n % 20), NULL, 'T4', n % 5,
1.0, CASE n % 10 WHEN 0 THEN 0.5 END
FROM (SELECT n, :begin + n * (:span / :count) AS began,
((n * 2654435761) % 7200) + 0.5 AS ran FROM numbers)
"""


def measure(scale: float) -> Iterator[Figure]:
    """By each key that is read in another way."""
    count = scaled(1_000_000, scale, 1000)
    rounds = scaled(5, scale)
    with scratch() as folder:
        ledger = _ledger_with(folder / "costs.db", count)
        for by, rates, words in (
            (CostBy.PROJECT, _ONE_CURRENCY, ""),
            (CostBy.DAY, _ONE_CURRENCY, ""),
            (CostBy.PROJECT, _RATE_A_DAY, ", with a rate a day"),
            (CostBy.DAY, _RATE_A_DAY, ", with a rate a day"),
        ):
            values, floors = alternate(
                rounds, partial(_report_s, ledger, by, rates), partial(_sum_s, ledger)
            )
            yield Figure(
                GROUP,
                f"a month's report by {by} over {count:,} attempts{words}",
                values,
                "s",
                1.0,
                floors,
                "sum of one column",
                absolute=True,
            )
        ledger.close()


def _ledger_with(path: Path, count: int) -> Ledger:
    ledger = Ledger.open(path)
    values = {"count": count, "begin": _BEGIN, "span": float(_MONTH_S)}
    with ledger.engine.begin() as tx:
        tx.exec_driver_sql(_ATTEMPTS, values)
    return ledger


def _report_s(ledger: Ledger, by: CostBy, rates: ExchangeRates) -> float:
    end = _BEGIN + _MONTH_S
    changes = rates.changes(_BEGIN, end)
    order = ReportOrder(by, _BEGIN, end, _BERLIN, rate_days=changes)
    began = time.perf_counter()
    rows = ledger.queries.costs(order.period())
    found = report(order, rows, lambda _, __: 0.0, Exchange(rates, rates.currency))
    taken = time.perf_counter() - began
    assert found.items
    return taken


def _sum_s(ledger: Ledger) -> float:
    statement = sa.text("SELECT SUM(ran_s) FROM attempts WHERE ended_at IS NOT NULL")
    with ledger.engine.connect() as connection:
        return timed(lambda: connection.execute(statement).scalar())
