"""What follows the verdicts of a batch: evidence, and reports to the instance.

This is also done for batches whose process died.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gpuyard.client import calls
from gpuyard.domain.errors import GpuyardError, InvalidInputError
from gpuyard.domain.trust import UNVERIFIED
from gpuyard.domain.trust import Trust as InstanceTrust
from gpuyard.domain.verifications import LONGEST_EVIDENCE
from gpuyard.storage.folder_syncs import make_folder, sync_folder
from gpuyard.verification import evidence
from gpuyard.verification.check import Check
from gpuyard.verification.context import Context, LeaseBusy, LeaseLost, call, leased
from gpuyard.verification.executors import place_named, place_of
from gpuyard.verification.protocol import one_line
from gpuyard.verification.records import Records
from gpuyard.verification.records.executors import ExecutorRecord
from gpuyard.verification.trust import (
    WAITS_KEEP_FREE,
    TrustEstimate,
    brings_quarantine,
    keeps_place_free,
    kept_free_s,
    record_after,
    score,
)
from gpuyard.verification.verdict import CheckOutcome, VerdictLine

if TYPE_CHECKING:
    from gpuyard.client.aio import AsyncClient
    from gpuyard.verification.session import VerificationStore

log = structlog.get_logger(__name__)
_DIED = "fault: not the executor's: the process that verified it died"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check, for the instance.

    `reason` is empty when it passed. `bars`: whether it brings quarantine.
    `kept_free_until`: until when its place is kept free for its next check (UTC
    seconds); None if it is not.
    """

    executor: str
    place: str
    outcome: CheckOutcome
    reason: str
    check: str
    gpu_class: str
    at: float
    solve_s: float | None = None
    job_id: str | None = None
    lines: tuple[VerdictLine, ...] = ()
    bars: bool = False
    kept_free_until: float | None = None

    def body(self, trust: float | None, evidence: Path) -> dict[str, Any]:
        """As the instance keeps it, with its evidence unless that is large or lost."""
        return {
            "executor": self.executor,
            "gpu_class": self.gpu_class,
            "place": self.place,
            "outcome": self.outcome.value,
            "reason": _short(self.reason),
            "at": self.at,
            "solve_s": self.solve_s,
            "trust": trust,
            "job": self.job_id,
            "lines": [
                {"name": _short(one.name), "ok": one.ok, "reason": _short(one.reason)}
                for one in self.lines[:_MOST_LINES]
            ],
            "evidence": _evidence_text(evidence / f"{self.check}.json"),
        }


class Settlement:
    """Settles batches.

    `faults`: in words, which evidence was not kept and what was not reported.
    """

    def __init__(
        self, client: "AsyncClient", store: "VerificationStore", context: Context
    ) -> None:
        self.faults: list[str] = []
        self._client = client
        self._store = store
        self._context = context

    async def keep(self, checks: Sequence[Check]) -> None:
        """Write evidence of each check. This happens before the verdicts count."""
        self.faults += await asyncio.to_thread(
            keep_evidence, self._store.evidence, self._store.key(), checks
        )

    async def tell(self, checks: Sequence[Check]) -> bool:
        """Report the checks to the instance; returns whether all were accepted."""
        return await self._tell(
            [
                CheckResult(
                    check.executor.name,
                    check.executor.place,
                    check.outcome,
                    check.reason,
                    check.id,
                    check.executor.gpu_class.value,
                    time.time(),
                    check.solve_s,
                    check.job_id,
                    check.lines,
                )
                for check in checks
            ]
        )

    async def settle(self) -> None:
        """Close the batches of processes that died.

        Checks that already count are reported, as their process would have done. The
        others are blameless.
        """
        for batch in await call(self._context.records.open_batches):
            # It runs, or another process settles it.
            with suppress(LeaseBusy, LeaseLost):
                await leased(
                    self._context,
                    lock_of(batch["holder"]),
                    partial(self._settle, batch["id"]),
                )

    async def _settle(self, batch_id: str) -> None:
        records = self._context.records
        rows = await call(records.checks_of, batch_id)
        if rows and all(row["scored"] for row in rows):
            if await self._tell([self._result(row) for row in rows]):
                await call(records.end_batch, batch_id, "done")
            return
        await call(
            records.close_checks, [_abandoned(row) for row in rows], record_after
        )
        await call(records.end_batch, batch_id, "abandoned")
        for row in rows:  # its verdict does not count
            with suppress(OSError):  # there is none, or the folder is read-only
                await asyncio.to_thread(
                    (self._store.evidence / f"{row['id']}.json").unlink
                )

    async def _tell(self, results: Sequence[CheckResult]) -> bool:
        known = await call(self._context.records.executors)
        judged = [await self._with_consequences(result) for result in results]
        # The verdicts first: whoever hears that the trust has changed looks for them.
        faults = await leave_verdicts(self._client, judged, known, self._store.evidence)
        faults += await tell_instance(self._client, judged, known, self._places())
        self.faults += faults
        return not faults

    async def _with_consequences(self, result: CheckResult) -> CheckResult:
        records = self._context.records
        history = await call(records.outcomes_after, result.check)
        bars = brings_quarantine(result.outcome, history)
        until = None
        if keeps_place_free(result.outcome, history):
            until = await call(kept_free_until, records, result.executor, time.time())
        return replace(result, bars=bars, kept_free_until=until)

    def _result(self, row: Mapping[str, Any]) -> CheckResult:
        # An executor that is not in the settings is named by its place.
        name: str = row["executor"]
        return CheckResult(
            name,
            place_named(name, self._store.settings.executors),
            CheckOutcome(row["outcome"]),
            row["reason"] or "",
            row["id"],
            row["gpu_class"],
            row["answered_at"] or row["created_at"],
            row["solve_s"],
            row["job_id"],
        )

    def _places(self) -> dict[str, str]:
        return {
            name: place_of(settings)
            for name, settings in self._store.settings.executors.items()
        }


def kept_free_until(records: Records, executor: str, now: float) -> float:
    """Until when the place of an executor is kept free, by its newest checks."""
    newest = records.checks_by(executor, limit=WAITS_KEEP_FREE)
    return now + kept_free_s([row["created_at"] for row in newest])


def lock_of(holder: str) -> str:
    """The name of the lock that the holder of a batch keeps while it runs."""
    return f"batch of {holder}"


def _abandoned(row: Mapping[str, Any]) -> dict[str, Any]:
    left = {name: value for name, value in row.items() if name != "scored"}
    return {
        **left,
        "state": "over",
        "outcome": CheckOutcome.BLAMELESS.value,
        "reason": _DIED,
    }


def keep_evidence(
    folder: Path, key: Ed25519PrivateKey, checks: Sequence[Check]
) -> list[str]:
    """Write a signed file for each check; returns why some could not be written.

    Their verdicts are valid all the same.
    """
    lost = list[str]()
    for check in checks:
        try:
            make_folder(folder)
            evidence.write_evidence(folder / f"{check.id}.json", check.evidence(), key)
        except Exception as error:  # one check must not end the batch
            if not isinstance(error, OSError | InvalidInputError):
                log.exception("verification_evidence_not_kept", check=check.id)
            lost.append(f"The evidence of {check.id} is not kept: {error}")
    try:
        if len(lost) < len(checks):
            sync_folder(folder)
    except OSError as error:
        lost.append(f"Evidence may not survive a power cut: {error}")
    return lost


def forget_evidence(folder: Path, before: float) -> None:
    """Remove files that were written before then (UTC seconds)."""
    for path in folder.glob("*.json"):
        with suppress(FileNotFoundError):  # another server removed it
            if path.stat().st_mtime < before:
                path.unlink()


_LONGEST_REASON = 400
_KEPT_FREE = "kept free for the next check of"
_MOST_LINES = 64


def _short(text: str) -> str:
    return one_line(text)[:_LONGEST_REASON]


def _evidence_text(file: Path) -> str | None:
    with suppress(OSError, UnicodeDecodeError):
        if file.stat().st_size <= LONGEST_EVIDENCE:
            return file.read_text(encoding="utf-8")
    return None


async def leave_verdicts(
    client: "AsyncClient",
    results: Sequence[CheckResult],
    records: Iterable[ExecutorRecord],
    evidence: Path,
) -> list[str]:
    """Leave the verdicts on the instance, for people to see; returns what failed."""
    now = time.time()
    scores = {record.name: round(score(record, now), 4) for record in records}
    faults = list[str]()
    for result in results:
        trust = scores.get(result.executor)
        body = await asyncio.to_thread(result.body, trust, evidence)
        try:
            await client.call(calls.record_verification(result.check, body))
        except GpuyardError as error:
            fault = f"The instance was not told of {result.check}: {error}"
            faults.append(fault)
    return faults


async def tell_instance(
    client: "AsyncClient",
    results: Sequence[CheckResult],
    records: Iterable[ExecutorRecord],
    places: Mapping[str, str],
) -> list[str]:
    """Record the trust of all checked places in the instance; returns what failed.

    `places`: the place of each known executor. A place with several executors gets the
    values of the worst one, because a job there may run on just that one. Only a failed
    check changes a quarantine, and never shortens it: a quarantine that a person
    started or ended stays as it is when a check is passed. A place that is kept free
    for a check is free for all when this is passed.
    """
    now = time.time()
    known = {record.name: record for record in records}
    faults = list[str]()
    checked = {result.executor: result.place for result in results}
    names = {**{name: name for name in known}, **places, **checked}
    for place in dict.fromkeys(result.place for result in results):
        here = [result for result in results if result.place == place]
        found = [
            known[name] for name, at in names.items() if at == place and name in known
        ]
        try:
            before = await _recorded(client, place)
            await client.call(
                calls.record_trust(place, place_trust(here, found, before, now))
            )
        except GpuyardError as error:
            faults.append(f"The instance was not told about {place}: {error}")
    return faults


def weight(record: ExecutorRecord, now: float) -> float:
    """The score as the instance weighs it, from 0 to 1.

    An executor with the score of a newcomer counts as a place that nobody has verified;
    one that has passed more than it failed counts in full.
    """
    return min(1.0, UNVERIFIED * score(record, now) / TrustEstimate().score)


async def _recorded(client: "AsyncClient", place: str) -> InstanceTrust:
    recorded = {one.place: one for one in await client.call(calls.trust())}
    return recorded.get(place) or InstanceTrust(place=place, updated_at=0.0)


def place_trust(
    results: Sequence[CheckResult],
    records: Sequence[ExecutorRecord],
    before: InstanceTrust,
    now: float,
) -> dict[str, Any]:
    """What to record about a place, instead of `before`."""
    until = before.quarantined_until or 0.0
    reason = "verification of " + "; ".join(
        f"{result.executor}: {result.reason or 'passed'}" for result in results
    )
    is_kept_free = before.reason.startswith(_KEPT_FREE)
    if is_kept_free and before.reason in map(_kept_free, _passed(results)):
        until = 0.0
    kept = max(results, key=_kept_until)
    if any(result.bars for result in results):
        until = max([until, *(record.quarantined_until or 0.0 for record in records)])
    elif _kept_until(kept) > until and (is_kept_free or until <= now):
        until = _kept_until(kept)
        reason = _kept_free(kept.executor)
    elif until > now:
        reason = before.reason  # the quarantine continues, with its reason
    return {
        "score": round(
            min((weight(record, now) for record in records), default=0.0), 4
        ),
        "quarantined_until": until if until > now else None,
        "reason": _short(reason),
    }


def _kept_free(executor: str) -> str:
    """The reason why the place of an executor is in quarantine without any fault."""
    return _short(f"{_KEPT_FREE} {executor}")


def _kept_until(result: CheckResult) -> float:
    return result.kept_free_until or 0.0


def _passed(results: Sequence[CheckResult]) -> list[str]:
    return [one.executor for one in results if one.outcome is CheckOutcome.PASSED]
