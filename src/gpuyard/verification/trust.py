"""Trust: how checks change an executor's score and quarantine.

The score is a Beta posterior of the chance that the next check is passed. Old evidence
fades towards the prior. What an executor can earn is limited, so that no one can save
up for a fraud, and the prior is low, so that a new name is worth little.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, takewhile
from typing import Any

from gpuyard.verification.records.batches import NEWEST_OF_EACH
from gpuyard.verification.records.executors import ExecutorRecord
from gpuyard.verification.verdict import CheckOutcome

PRIOR = (1.0, 3.0)  # an unchecked executor has the score 0.25
FAILURE = 6.0  # one failure weighs as much as six passes
# Checks in a row that came to nothing without an explanation: from here on each weighs
# a third of a failure, and from here on each brings quarantine.
UNEXPLAINED_WEIGHS = 3
UNEXPLAINED_BARS = 5
UNEXPLAINED = FAILURE / 3
# An executor says by itself that its engine is another, so a pass in between forgives
# nothing: such checks count among so many of the newest, which is a day of watching.
OTHER_ENGINE_OF = NEWEST_OF_EACH
# Checks in a row that waited behind our own jobs, were excused by those of others or
# came to nothing, from which on a place is kept free for the next check; for how many
# times the pause between two checks, and for how long at most.
WAITS_KEEP_FREE = 5
KEPT_FREE_PAUSES = 2.0
LONGEST_KEPT_FREE_S = 86400.0
# Who fails a third of the newest checks stays in quarantine, once there are a few.
HABIT_PART = 1 / 3
HABIT_FEWEST = 6
HABIT_MOST = 12
MOST_EVIDENCE = 60.0  # beyond the prior
HALF_LIFE_S = 14 * 86400.0
QUARANTINE_S = 4 * 3600.0
LONGEST_QUARANTINE_S = 30 * 86400.0
_JUDGED = (CheckOutcome.PASSED, CheckOutcome.FAILED)
_AT_WORK = (CheckOutcome.WAITED, CheckOutcome.EXCUSED)
_UNCLEAR = (CheckOutcome.UNEXPLAINED, CheckOutcome.OTHER_ENGINE)


@dataclass(frozen=True, slots=True)
class TrustEstimate:
    """What checks have shown until `at` (UTC seconds), as Beta(alpha, beta)."""

    alpha: float = PRIOR[0]
    beta: float = PRIOR[1]
    at: float = 0.0

    @property
    def score(self) -> float:
        """The expected chance, from 0 to 1, of passing the next check at time `at`."""
        return self.alpha / (self.alpha + self.beta)

    def faded(self, now: float) -> "TrustEstimate":
        """The estimate at `now`: evidence is halved every HALF_LIFE_S.

        A clock that was set back does not change it.
        """
        return self._with(
            0.5 ** (max(0.0, now - self.at) / HALF_LIFE_S), max(now, self.at)
        )

    def after(
        self, outcome: CheckOutcome, now: float, *, unexplained: int = 0
    ) -> "TrustEstimate":
        """The estimate after one more check.

        `unexplained`: how many checks count with this one as `unexplained_count` says.
        Excused, blameless, waited and unjudged checks do not change it.
        """
        old = self.faded(now)
        passed = float(outcome is CheckOutcome.PASSED)
        failed = FAILURE * (outcome is CheckOutcome.FAILED)
        if outcome in _UNCLEAR and unexplained >= UNEXPLAINED_WEIGHS:
            failed = UNEXPLAINED
        trust = TrustEstimate(old.alpha + passed, old.beta + failed, old.at)
        evidence = trust.alpha + trust.beta - sum(PRIOR)
        return (
            trust._with(min(1.0, MOST_EVIDENCE / evidence), old.at)
            if evidence > 0
            else trust
        )

    def _with(self, kept: float, at: float) -> "TrustEstimate":
        """Keep this part of the evidence beyond the prior."""
        alpha, beta = PRIOR
        return TrustEstimate(
            alpha + (self.alpha - alpha) * kept, beta + (self.beta - beta) * kept, at
        )


def quarantine_s(repeats: int) -> float:
    """Seconds of quarantine after a failure that follows `repeats` earlier ones.

    It is four hours, doubled for each repeat.
    """
    if repeats < 0:
        raise ValueError(f"repeats is {repeats}; it counts earlier failures from 0")
    return min(QUARANTINE_S * 2.0 ** min(repeats, 100), LONGEST_QUARANTINE_S)


def unexplained_count(history: Sequence[str]) -> int:
    """How many checks count together with the newest, if that came to nothing.

    Those in a row, which only a pass or a failure ends. Of checks whose engine was
    another, also all among the newest that were compared or could not be for this
    reason. `history`: outcomes, newest first.
    """
    undecided = takewhile(lambda outcome: outcome not in _JUDGED, history)
    in_row = sum(outcome in _UNCLEAR for outcome in undecided)
    if not history or history[0] != CheckOutcome.OTHER_ENGINE:
        return in_row
    compared = (*_JUDGED, CheckOutcome.OTHER_ENGINE)
    newest = [outcome for outcome in history if outcome in compared][:OTHER_ENGINE_OF]
    return max(in_row, newest.count(CheckOutcome.OTHER_ENGINE))


def _goes_on(history: Sequence[str]) -> bool:
    """Whether the newest check shows the same other engine that was barred before.

    Nobody has passed in between, so that is no repeat. `history`: newest first.
    """
    compared = (*_JUDGED, CheckOutcome.OTHER_ENGINE)
    (newest, *before) = [outcome for outcome in history if outcome in compared] or [""]
    same = newest == CheckOutcome.OTHER_ENGINE and history[0] == newest
    barred = unexplained_count(before) >= UNEXPLAINED_BARS
    return same and before[:1] == [CheckOutcome.OTHER_ENGINE] and barred


def keeps_place_free(outcome: CheckOutcome, history: Sequence[str]) -> bool:
    """Whether a check with this outcome makes us keep the place free for the next one.

    `history`: the outcomes of the executor, this one first, then the newest. Nobody is
    blamed for work, ours or that of others. But a place that is never free for a check
    must not get one job after the other.
    """
    undecided = takewhile(lambda outcome: outcome not in _JUDGED, history)
    counted = (*_AT_WORK, *_UNCLEAR)
    in_row = sum(outcome in counted for outcome in undecided)
    return outcome in _AT_WORK and in_row >= WAITS_KEEP_FREE


def kept_free_s(began: Sequence[float]) -> float:
    """For how many seconds a place is kept free.

    `began`: when the newest checks of the row began, newest first. The longest pause
    between two of them counts: two watches may check one executor at nearly the same
    time.
    """
    longest_s = max(later - earlier for later, earlier in pairwise(began))
    return min(KEPT_FREE_PAUSES * longest_s, LONGEST_KEPT_FREE_S)


def fails_habitually(history: Sequence[str]) -> bool:
    """Whether a third of the newest checks failed.

    `history`: outcomes, newest first.
    """
    judged = [outcome for outcome in history if outcome in _JUDGED][:HABIT_MOST]
    failed = judged.count(CheckOutcome.FAILED)
    return len(judged) >= HABIT_FEWEST and failed >= HABIT_PART * len(judged)


def brings_quarantine(outcome: CheckOutcome, history: Sequence[str]) -> bool:
    """Whether a check with this outcome brings quarantine.

    `history`: the outcomes of the executor, this one first, then the newest.
    """
    if outcome in _UNCLEAR:
        return unexplained_count(history) >= UNEXPLAINED_BARS
    return outcome is CheckOutcome.FAILED


def record_after(
    known: ExecutorRecord | None, check: Mapping[str, Any], history: Sequence[str]
) -> ExecutorRecord:
    """The executor's record after a check, from the check's row.

    `history`: the outcomes of the executor, this one first, then the newest. A failure
    brings quarantine, longer each time. A pass after its end makes the next one
    shorter. Whose engine still is another stays in quarantine, and loses no more.
    """
    now = time.time()
    record = known or _unknown(check["executor"], check["gpu_class"], now)
    outcome = CheckOutcome(check["outcome"])
    goes_on = _goes_on(history)
    trust = TrustEstimate(record.alpha, record.beta, record.updated_at).after(
        outcome, now, unexplained=0 if goes_on else unexplained_count(history)
    )
    record = replace(
        record,
        gpu_class=check["gpu_class"],
        alpha=trust.alpha,
        beta=trust.beta,
        updated_at=trust.at,
    )
    if goes_on:
        until = now + quarantine_s(max(0, record.repeats - 1))
        longest = max(until, record.quarantined_until or 0.0)
        return replace(record, quarantined_until=longest)
    if brings_quarantine(outcome, history):
        habit = fails_habitually(history)
        return replace(
            record,
            quarantined_until=now
            + (LONGEST_QUARANTINE_S if habit else quarantine_s(record.repeats)),
            repeats=record.repeats + 1,
        )
    if outcome is CheckOutcome.PASSED and not is_quarantined(record, now):
        return replace(
            record, quarantined_until=None, repeats=max(0, record.repeats - 1)
        )
    return record


def _unknown(name: str, gpu_class: str, now: float) -> ExecutorRecord:
    trust = TrustEstimate(at=now)
    return ExecutorRecord(name, gpu_class, trust.alpha, trust.beta, now)


def score(record: ExecutorRecord, now: float) -> float:
    """An executor's score now, from 0 to 1."""
    return TrustEstimate(record.alpha, record.beta, record.updated_at).faded(now).score


def is_quarantined(record: ExecutorRecord, now: float) -> bool:
    """Whether an executor is in quarantine now."""
    return record.quarantined_until is not None and record.quarantined_until > now
