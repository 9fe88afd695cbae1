"""What becomes of one check, as a pure function of its evidence: the same for us at the time and for anybody later."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from gpuyard.domain.errors import InvalidInputError, quoted
from gpuyard.domain.exact import first_divergence
from gpuyard.verification import keys, receipts
from gpuyard.verification.claims import Expected
from gpuyard.verification.claims import judge as judge_claims
from gpuyard.verification.trust import Outcome


class Evidence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that one check is judged by. Times are UTC seconds by our clock; None is what did not happen.

    `settings` and `engine`: what the solver was to use, without secrets. `series` are the prompts that the executor
    had to answer under `seed`, `hidden` the one that is compared, with `trusted_answer` ahead of time and
    `answer_again` when a mismatch made us ask the trusted executor once more. `answers` is the executor's file as it
    came, `sha256` what it said of it before; `unread` says why a file could not be kept (too large, a bomb), `silence`
    why nothing came. `receipts`
    excuse it at `declined_at`, with the public keys of `issuers` (name → hex). `fault`: what broke on our side.
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
    deadline_s: float
    released_at: float | None = None
    hashed_at: float | None = None
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


@dataclass(frozen=True, slots=True)
class Line:
    """One thing looked at, and why it is so. `ok` is None where there was nothing to hold it against."""

    name: str
    ok: bool | None
    reason: str


def judge(evidence: Evidence) -> tuple[Line, ...]:
    """What the executor did: hash, answers, comparison, deadline, then each finding; or its excuse."""
    if evidence.fault:
        return (Line("fault", None, f"not the executor's: {evidence.fault}"),)
    if evidence.sha256 is None and evidence.receipts:
        return (_excuse(evidence),)
    told = judge_claims(evidence.claims, evidence.expected, _elapsed(evidence.hashed_at, evidence.claimed_at))
    findings = [Line(one.name, one.ok, f"said {one.said}; expected {one.expected}") for one in told]
    return (*_answers(evidence), _deadline(evidence), *findings)


def outcome(lines: Sequence[Line]) -> Outcome:
    """What the lines come to. Nothing that could not be judged fails a check."""
    names = {line.name: line.ok for line in lines}
    if any(line.ok is False for line in lines):
        return Outcome.FAILED
    if "busy" in names:
        return Outcome.EXCUSED
    # No comparison that counts: the trusted executor does not repeat itself, or something broke on our side.
    return Outcome.PASSED if names.get("comparison") else Outcome.BLAMELESS


def _answers(evidence: Evidence) -> list[Line]:
    """Hash, form and comparison. Answers that are not those that were hashed are not looked at."""
    if evidence.sha256 is None:
        return [Line("hash", False, f"no hash of answers came{_because(evidence.silence)}")]
    if evidence.answers is None:
        return [Line("hash", False, f"a hash came, and no answers to it{_because(evidence.unread)}")]
    found = hashlib.sha256(evidence.answers).hexdigest()
    if found != evidence.sha256:
        return [Line("hash", False, f"the answers' is {found}, and {quoted(evidence.sha256)} was said")]
    hashed = Line("hash", True, "the answers are those whose hash was said")
    try:
        answers = msgspec.json.decode(evidence.answers, type=dict[str, str])
    except (ValueError, RecursionError) as error:
        return [hashed, Line("answers", False, f"are no map of prompts to texts: {error}")]
    # Who reads the evidence with another reader is to see the same answers.
    if msgspec.json.encode(answers) != evidence.answers:
        return [hashed, Line("answers", False, "are not written as solvers write them: no spaces, no key twice")]
    missing, extra = set(evidence.series) - set(answers), set(answers) - set(evidence.series)
    if missing or extra:
        return [
            hashed,
            Line("answers", False, f"lack {len(missing)} prompts and have {len(extra)} that were not asked"),
        ]
    return [hashed, Line("answers", True, f"one for each of {len(answers)} prompts"), _comparison(evidence, answers)]


def _comparison(evidence: Evidence, answers: dict[str, str]) -> Line:
    place = first_divergence(evidence.trusted_answer, answers.get(evidence.hidden, ""))
    again = evidence.answer_again
    if place is None:
        return Line("comparison", True, "the hidden prompt's answer is the trusted one, to the last character")
    differs = f"the hidden prompt's answer differs from the trusted one at character {place + 1}"
    if again is None:
        return Line("comparison", False, f"{differs}; the trusted executor was not asked again")
    if again != evidence.trusted_answer:
        return Line("comparison", None, f"{differs}, but the trusted executor itself says something else now")
    return Line("comparison", False, f"{differs}; the trusted executor, asked again, says the same as before")


def _deadline(evidence: Evidence) -> Line:
    taken = _elapsed(evidence.released_at, evidence.hashed_at)
    if taken is None:
        return Line("deadline", False, "no hash came")
    if taken < 0:
        return Line("deadline", False, f"the hash came {-taken:.3f} s before the seed was out")
    return Line("deadline", taken <= evidence.deadline_s, f"took {taken:.3f} s of {evidence.deadline_s:.3f} s")


def _excuse(evidence: Evidence) -> Line:
    try:
        issuers = {name: keys.read_public(key) for name, key in evidence.issuers.items()}
        found = receipts.excuse(
            evidence.receipts, issuers, evidence.executor, evidence.declined_at or 0.0, (),
            gpu_class=evidence.gpu_class, slots=evidence.slots,
        )  # fmt: skip
    except (receipts.ReceiptError, InvalidInputError) as error:
        return Line("busy", False, f"a receipt {error}")
    return Line("busy", True, f"at work for {', '.join(sorted({one.issuer for one in found}))} at that time")


def _because(fault: str | None) -> str:
    return f": {fault}" if fault else ""


def _elapsed(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start
