"""An executor's standing: what a check changes in the trust in it, and how the yard is told."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpuyard.client import calls
from gpuyard.domain.errors import GpuyardError
from gpuyard.verification.records.executors import ExecutorRecord
from gpuyard.verification.trust import Outcome, Trust, quarantine_s

if TYPE_CHECKING:
    from gpuyard.client.aio import AsyncClient
    from gpuyard.verification.check import Check


def stands(known: ExecutorRecord | None, check: Mapping[str, Any]) -> ExecutorRecord:
    """The record after a check, from its row. A failure brings quarantine, longer each time; a pass after that is over
    makes the next one shorter."""
    now = time.time()
    record = known or _unknown(check["executor"], check["gpu_class"], now)
    outcome = Outcome(check["outcome"])
    trust = Trust(record.alpha, record.beta, record.updated_at).after(outcome, now)
    record = replace(record, gpu_class=check["gpu_class"], alpha=trust.alpha, beta=trust.beta, updated_at=trust.at)
    if outcome is Outcome.FAILED:
        return replace(record, quarantined_until=now + quarantine_s(record.repeats), repeats=record.repeats + 1)
    if outcome is Outcome.PASSED and not is_quarantined(record, now):
        return replace(record, quarantined_until=None, repeats=max(0, record.repeats - 1))
    return record


def _unknown(name: str, gpu_class: str, now: float) -> ExecutorRecord:
    trust = Trust(at=now)
    return ExecutorRecord(name, gpu_class, trust.alpha, trust.beta, now)


def score(record: ExecutorRecord, now: float) -> float:
    """How far it is trusted now, from 0 to 1."""
    return Trust(record.alpha, record.beta, record.updated_at).faded(now).score


def is_quarantined(record: ExecutorRecord, now: float) -> bool:
    """Whether it gets no work now."""
    return record.quarantined_until is not None and record.quarantined_until > now


async def tell_yard(client: "AsyncClient", checks: Sequence["Check"], records: Iterable[ExecutorRecord]) -> list[str]:
    """Put the standing of everyone who was checked into the yard; what went wrong, in words."""
    now, known, faults = time.time(), {record.name: record for record in records}, list[str]()
    for check in checks:
        record = known.get(check.executor.name)
        if record is None:
            continue
        until = record.quarantined_until if is_quarantined(record, now) else None
        body = {"score": round(score(record, now), 4), "quarantined_until": until,
                "reason": f"verification: {check.reason}"[:500] if until else "verification"}  # fmt: skip
        try:
            await client.call(calls.record_trust(check.executor.place, body))
        except GpuyardError as error:
            faults.append(f"{check.executor.place}: {error}")
    return faults
