"""The verdict of a check: a pure function of its evidence.

So the result is the same for us at the time and for anyone who checks it later.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from gpuyard.domain.errors import InvalidInputError, quoted
from gpuyard.domain.exact import first_divergence
from gpuyard.verification import keys, receipts
from gpuyard.verification.claims import Expected, judge_claims
from gpuyard.verification.solver.probe import nonce_of
from gpuyard.verification.tolerance import (
    Printed,
    changes_of_runtime,
    differences_of_runtime,
    judge_fingerprints,
)

IN_PIECES_S = 5.0
"""How late messages may arrive without a stream: output is passed on in chunks."""


class CheckOutcome(StrEnum):
    """How a check ended.

    Excused: receipts show that the executor worked for others. Blameless: our side or
    the trusted executor failed. Waited: we had given its place to other jobs of ours,
    so that its job did not start in time. Unjudged: the answers are right, but
    something that was asked for could not be compared with anything, so the check is
    not passed. Unexplained: it came to nothing, and nothing shows whose fault that was.
    Other engine: the executor says that its engine is of another version than the
    trusted one, and that the settings do not allow, or only what shows nothing of it.
    """

    PASSED = "passed"
    FAILED = "failed"
    EXCUSED = "excused"
    BLAMELESS = "blameless"
    WAITED = "waited"
    UNJUDGED = "unjudged"
    UNEXPLAINED = "unexplained"
    OTHER_ENGINE = "other_engine"


class Evidence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything by which one check is judged.

    Times are UTC seconds by our clock, and None for what did not happen. `settings` and
    `engine`: what the solver was to use, without secrets. `ready_at`: when its solver
    was ready. `said_s`: how long solving took, as it says; where the seed came with the
    order, that may be `solve_limit_s`. `salt`: what it was sent when its hash had come,
    at `salted_at`: no claim could be made before. `series`: the prompts that the
    executor had to answer under `seed`. `hidden`: the prompt that is compared, with
    `trusted_answer` from before and `answer_again` from after a mismatch.
    `trusted_answers`: those to every prompt, if they were asked for, and `not_compared`
    why there are none.
    `runtime` and `trusted_runtime`: what both engines said of themselves,
    `accepted_runtime`: what the trusted one said when the class was calibrated, and
    `trusted_class`: the class of the trusted executor. `printed`: the fingerprints of
    the answers, if the settings allow that these are compared instead of texts.
    `sha256`: the hash that the executor sent first, `answers`: its file as it came.
    `unread`: why a file could not be kept. `silence`: why none came. `receipts` excuse
    it at `declined_at`; `issuers` are the public keys (name → hex). `fault`: what
    failed on our side, as we can show. `waited`: that its job did not start, because we
    had given its place to other jobs. `unexplained`: what failed without such proof.
    """

    check: str
    batch: str
    executor: str
    gpu_class: str
    trusted: str
    delivery: str
    settings: dict[str, float]
    engine: dict[str, str]
    seed: int
    series: tuple[str, ...]
    hidden: str
    trusted_answer: str
    answer_again: str | None = None
    trusted_answers: dict[str, str] | None = None
    not_compared: str | None = None
    runtime: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    trusted_runtime: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    accepted_runtime: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    trusted_class: str | None = None
    printed: Printed | None = None
    deadline_s: float
    released_at: float | None = None
    hashed_at: float | None = None
    salt: str = ""
    salted_at: float | None = None
    ready_at: float | None = None
    said_s: float | None = None
    solve_limit_s: float | None = None
    claimed_at: float | None = None
    declined_at: float | None = None
    sha256: str | None = None
    answers: bytes | None = None
    unread: str | None = None
    silence: str | None = None
    expected: Expected
    claims: dict[str, Any] | None = None
    slots: int = 1
    receipts: tuple[dict[str, Any], ...] = ()
    issuers: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    fault: str | None = None
    waited: str | None = None
    unexplained: str | None = None

    @property
    def nonce(self) -> str:
        """That of its claims, which follows from the hashes; empty before these."""
        if self.sha256 is None:
            return ""
        prints = self.printed.sha256 if self.printed else None
        return nonce_of(self.check, self.seed, self.sha256, prints, self.salt)


@dataclass(frozen=True, slots=True)
class VerdictLine:
    """One thing that was judged, and why. `ok` is None when it could not be judged."""

    name: str
    ok: bool | None
    reason: str


def judge(evidence: Evidence) -> tuple[VerdictLine, ...]:
    """Judge what the executor did.

    The lines are: hash, answers, comparison, deadline, then each claim; or its excuse.
    Where something else stopped the check, claims that came are judged all the same.
    """
    if evidence.fault:
        line = VerdictLine("fault", None, f"not the executor's: {evidence.fault}")
        return (line, *_claims_that_came(evidence))
    if evidence.waited:
        reason = f"other jobs of ours come first: {evidence.waited}"
        return (VerdictLine("waited", None, reason),)
    if evidence.unexplained:
        reason = f"nothing shows whose fault it was: {evidence.unexplained}"
        line = VerdictLine("unexplained", None, reason)
        return (line, *_claims_that_came(evidence))
    if evidence.sha256 is None and evidence.receipts:
        return (_excuse(evidence),)
    return (
        *_answers(evidence),
        _deadline(evidence),
        *_solving(evidence),
        *_claims(evidence),
    )


def _claims(evidence: Evidence) -> list[VerdictLine]:
    """Judge each claim that was asked for."""
    found = judge_claims(
        evidence.claims,
        evidence.expected,
        _elapsed(evidence.salted_at or evidence.hashed_at, evidence.claimed_at),
        evidence.nonce,
    )
    return [
        VerdictLine(one.name, one.ok, f"said {one.said}; expected {one.expected}")
        for one in found
    ]


def _claims_that_came(evidence: Evidence) -> list[VerdictLine]:
    """Judge the claims, unless the check was stopped before they came."""
    return [] if evidence.claims is None else _claims(evidence)


def outcome(lines: Sequence[VerdictLine]) -> CheckOutcome:
    """The outcome of the lines.

    What could not be judged does not fail a check, and does not let it pass either.
    """
    names = {line.name: line.ok for line in lines}
    if any(line.ok is False for line in lines):
        return CheckOutcome.FAILED
    if "busy" in names:
        return CheckOutcome.EXCUSED
    if "waited" in names:
        return CheckOutcome.WAITED
    if "unexplained" in names:
        return CheckOutcome.UNEXPLAINED
    if "other_engine" in names:
        return CheckOutcome.OTHER_ENGINE
    # Without a valid comparison the trusted executor contradicted itself, or something
    # failed on our side.
    if not names.get("comparison"):
        return CheckOutcome.BLAMELESS
    unjudged = any(line.ok is None for line in lines)
    return CheckOutcome.UNJUDGED if unjudged else CheckOutcome.PASSED


def _answers(evidence: Evidence) -> list[VerdictLine]:
    """Judge hash, form and hidden answer. A file with a wrong hash is not read."""
    hashed = _hash(evidence)
    if evidence.answers is None or not hashed.ok:
        return [hashed]
    answers, fault = _parsed(evidence.answers, evidence.series)
    if fault:
        return [hashed, VerdictLine("answers", False, fault)]
    complete = f"one for each of {len(answers)} prompts"
    return [
        hashed,
        VerdictLine("answers", True, complete),
        *_compared(evidence, answers),
    ]


def _hash(evidence: Evidence) -> VerdictLine:
    """Whether the answers have the hash that was sent before them."""
    if evidence.sha256 is None:
        reason = f"no hash of answers came{_because(evidence.silence)}"
        return VerdictLine("hash", False, reason)
    if evidence.answers is None:
        reason = f"a hash came, and no answers to it{_because(evidence.unread)}"
        return VerdictLine("hash", False, reason)
    found = hashlib.sha256(evidence.answers).hexdigest()
    if found != evidence.sha256:
        reason = f"the answers' is {found}, and {quoted(evidence.sha256)} was said"
        return VerdictLine("hash", False, reason)
    return VerdictLine("hash", True, "the answers are those whose hash was said")


def _parsed(data: bytes, series: Sequence[str]) -> tuple[dict[str, str], str]:
    """The answers in a file, and what is wrong with it, if anything."""
    try:
        answers = msgspec.json.decode(data, type=dict[str, str])
    except (ValueError, RecursionError) as error:
        return {}, f"are no map of prompts to texts: {error}"
    # Another JSON reader must find the same answers in the evidence.
    if msgspec.json.encode(answers) != data:
        return {}, "are not written as solvers write them: no spaces, no key twice"
    missing = set(series) - set(answers)
    extra = set(answers) - set(series)
    if missing or extra:
        fault = f"lack {len(missing)} prompts and have {len(extra)} that were not asked"
        return {}, fault
    return answers, ""


def rounding(evidence: Evidence) -> str:
    """Why honest answers may differ from the trusted ones; empty if they may not.

    That is another class, or another version or number format of the engine.
    """
    trusted = evidence.trusted_class
    if trusted and trusted != evidence.gpu_class:
        return (
            f"its class is {evidence.gpu_class} and that of the trusted one {trusted}"
        )
    return differences_of_runtime(evidence.runtime, evidence.trusted_runtime)


def _compared(evidence: Evidence, answers: dict[str, str]) -> list[VerdictLine]:
    """Compare the answers: exactly where both sides are equal, else if that is allowed
    by their fingerprints.
    """
    why = rounding(evidence)
    if not why:
        return [_comparison(evidence, answers), *_every_prompt(evidence, answers)]
    if changed := _trusted_changed(evidence):
        return [VerdictLine("comparison", None, changed)]
    if evidence.printed is None:
        return _not_comparable(evidence, why)
    judged = judge_fingerprints(
        evidence.printed, evidence.series, evidence.settings, evidence.sha256 or ""
    )
    lines = [VerdictLine("comparison", judged.ok, f"{why}; {judged.reason}")]
    if judged.ok and judged.unknown_draws:
        draws = _draws(evidence.gpu_class, evidence.printed)
        lines.append(draws)
        # Who says for ever that its engine is another must not stay unjudged for ever.
        # Where the class of the trusted one is another, it has no choice.
        same_class = evidence.trusted_class in (None, evidence.gpu_class)
        if draws.ok is None and same_class:
            lines += _other_engine(evidence)
    return lines


def _trusted_changed(evidence: Evidence) -> str:
    """Why nothing can be compared any more on our side; empty if something can.

    That is where the trusted executor is not as it was when the class was calibrated,
    so limits and older answers do not hold, or this executor still is as it was.
    """
    now = evidence.trusted_runtime
    accepted = evidence.accepted_runtime
    changed = changes_of_runtime(accepted, now)
    as_accepted = evidence.runtime == accepted
    if not changed or not (evidence.printed or as_accepted):
        return ""
    return (
        f"the trusted executor has changed: {changed}, so nothing can be compared with"
        " it until the class is calibrated again"
    )


def _not_comparable(evidence: Evidence, why: str) -> list[VerdictLine]:
    """The lines where rounding makes honest answers differ, and no limits are set."""
    remedy = (
        "make both equal, or set [verification.tolerances."
        f'"{evidence.gpu_class}"] and calibrate it'
    )
    reason = f"{why}, so answers cannot be compared exactly: {remedy}"
    return [VerdictLine("comparison", None, reason), *_other_engine(evidence)]


def _other_engine(evidence: Evidence) -> list[VerdictLine]:
    """The line that counts against an executor whose engine is of another version."""
    if not differences_of_runtime(evidence.runtime, evidence.trusted_runtime):
        return []
    told = "only the executor says of what version its engine is"
    return [VerdictLine("other_engine", None, told)]


def _draws(gpu_class: str, printed: Printed) -> VerdictLine:
    """Whether it counts that the trusted engine does not know what a seed draws."""
    reason = "the trusted engine cannot tell which tokens the seed gives"
    if printed.accepts_unknown_draws:
        return VerdictLine("draws", True, f"{reason}, which the settings accept")
    return VerdictLine(
        "draws",
        None,
        f"{reason}, so a small model may have written what the right one reads: neither"
        " seed nor deadline proves anything; use the engine transformers, or set"
        f' accept_unknown_draws = true in [verification.tolerances."{gpu_class}"]',
    )


def _comparison(evidence: Evidence, answers: dict[str, str]) -> VerdictLine:
    place = first_divergence(evidence.trusted_answer, answers.get(evidence.hidden, ""))
    again = evidence.answer_again
    if place is None:
        return VerdictLine(
            "comparison",
            True,
            "the hidden prompt's answer is the trusted one, to the last character",
        )
    differs = (
        "the hidden prompt's answer differs from the trusted one at character"
        f" {place + 1}"
    )
    if again is None:
        return VerdictLine(
            "comparison", False, f"{differs}; the trusted executor was not asked again"
        )
    if again != evidence.trusted_answer:
        return VerdictLine(
            "comparison",
            None,
            f"{differs}, but the trusted executor itself says something else now",
        )
    return VerdictLine(
        "comparison",
        False,
        f"{differs}; the trusted executor, asked again, says the same as before",
    )


def _every_prompt(evidence: Evidence, answers: dict[str, str]) -> list[VerdictLine]:
    """Compare all answers, if that was asked for."""
    if evidence.not_compared:
        return [VerdictLine("every_prompt", None, evidence.not_compared)]
    right = evidence.trusted_answers
    if right is None:
        return []
    differ = [one for one in evidence.series if answers[one] != right.get(one)]
    if not differ:
        reason = f"all {len(answers)} answers are the trusted ones"
        return [VerdictLine("every_prompt", True, reason)]
    reason = (
        f"{len(differ)} of {len(answers)} answers differ from the trusted ones, the"
        f" first to {quoted(differ[0])}"
    )
    return [VerdictLine("every_prompt", False, reason)]


def _deadline(evidence: Evidence) -> VerdictLine:
    taken = _elapsed(evidence.released_at, evidence.hashed_at)
    if taken is None:
        return VerdictLine("deadline", False, "no hash came")
    if taken < 0:
        return VerdictLine(
            "deadline", False, f"the hash came {-taken:.3f} s before the seed was out"
        )
    return VerdictLine(
        "deadline",
        taken <= evidence.deadline_s,
        f"took {taken:.3f} s of {evidence.deadline_s:.3f} s",
    )


def _solving(evidence: Evidence) -> list[VerdictLine]:
    """Judge how long solving took where the seed came with the order.

    The time from ready to the hash, as their lines arrived, and what the solver itself
    says must both be short enough.
    """
    limit_s = evidence.solve_limit_s
    taken = _elapsed(evidence.ready_at, evidence.hashed_at)
    if limit_s is None or taken is None:
        return []
    said = evidence.said_s or 0.0
    reason = f"took {taken:.3f} s of {limit_s + IN_PIECES_S:.3f} s by our clock"
    reason += f", and {said:.3f} s of {limit_s:.3f} s by its own"
    in_time = taken <= limit_s + IN_PIECES_S and said <= limit_s
    return [VerdictLine("solving", in_time, reason)]


def _excuse(evidence: Evidence) -> VerdictLine:
    try:
        issuers = {
            name: keys.read_public(key) for name, key in evidence.issuers.items()
        }
        found = receipts.excuse(
            evidence.receipts,
            issuers,
            evidence.executor,
            evidence.declined_at or 0.0,
            (),
            gpu_class=evidence.gpu_class,
            slots=evidence.slots,
        )
    except (receipts.ReceiptError, InvalidInputError) as error:
        return VerdictLine("busy", False, f"a receipt {error}")
    return VerdictLine(
        "busy",
        True,
        f"at work for {', '.join(sorted({one.issuer for one in found}))} at that time",
    )


def _because(fault: str | None) -> str:
    return f": {fault}" if fault else ""


def _elapsed(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start
