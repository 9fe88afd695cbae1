"""An executor's standing: what a check changes in the trust in it, and how the yard is told."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpuyard.client import calls
from gpuyard.domain.errors import GpuyardError
from gpuyard.domain.trust import Trust as YardTrust
from gpuyard.verification.protocol import one_line
from gpuyard.verification.records.executors import ExecutorRecord
from gpuyard.verification.trust import Outcome, Trust, quarantine_s

_LONGEST_REASON = 400

if TYPE_CHECKING:
    from gpuyard.client.aio import AsyncClient


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a check of an executor, for the yard; `reason` is empty where it passed."""

    executor: str
    place: str
    outcome: Outcome
    reason: str


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


async def tell_yard(
    client: "AsyncClient", results: Sequence[Result], records: Iterable[ExecutorRecord], places: Mapping[str, str]
) -> list[str]:
    """Put the standing of everyone who was checked into the yard; what went wrong, in words.

    `places` of the executors that are known, by name. A place with several stands as its worst one does, whoever of
    them was checked: a job that goes there may get just that. Only a failure changes a quarantine, and it shortens
    none: what somebody has begun or ended by hand, a check that is passed leaves as it is.
    """
    now, known, faults = time.time(), {record.name: record for record in records}, list[str]()
    checked = {result.executor: result.place for result in results}
    names = {**{name: name for name in known}, **places, **checked}
    for place in dict.fromkeys(result.place for result in results):
        here = [result for result in results if result.place == place]
        found = [known[name] for name, at in names.items() if at == place and name in known]
        try:
            before = await _recorded(client, place)
            await client.call(calls.record_trust(place, _finding(here, found, before, now)))
        except GpuyardError as error:
            faults.append(f"The yard was not told about {place}: {error}")
    return faults


def _weight(record: ExecutorRecord, now: float) -> float:
    """Its score as the yard is to weigh it. There a place that nobody has checked counts in full, so whoever is trusted
    as much as a newcomer is here, or more, must not count for less."""
    return min(1.0, score(record, now) / Trust().score)


async def _recorded(client: "AsyncClient", place: str) -> YardTrust:
    recorded = {one.place: one for one in await client.call(calls.trust())}
    return recorded.get(place) or YardTrust(place=place, updated_at=0.0)


def _finding(
    results: Sequence[Result], records: Sequence[ExecutorRecord], before: YardTrust, now: float
) -> dict[str, Any]:  # fmt: skip
    """What to record about a place instead of what was recorded `before`."""
    until = before.quarantined_until or 0.0
    reason = "verification of " + "; ".join(f"{result.executor}: {result.reason or 'passed'}" for result in results)
    if any(result.outcome is Outcome.FAILED for result in results):
        until = max([until, *(record.quarantined_until or 0.0 for record in records)])
    elif until > now:
        reason = before.reason  # of the quarantine that goes on
    return {
        "score": round(min((_weight(record, now) for record in records), default=0.0), 4),
        "quarantined_until": until if until > now else None,
        "reason": one_line(reason)[:_LONGEST_REASON],
    }
