"""Tolerance: answers judged by their fingerprints, where rounding differs.

Two honest executors of other classes, versions or number formats differ in the last
digits, and so after some tokens in their answers. Here the trusted executor follows the
tokens of the executor, so every place is compared by itself. How much may differ was
measured between two honest executors (`tolerance_calibration.py`).
"""

import hashlib
import math
from collections.abc import Mapping, Sequence

import msgspec

from gpuyard.domain.errors import quoted
from gpuyard.verification.fingerprints import (
    Fingerprint,
    FingerprintError,
    PrintDifference,
    difference,
    read_fingerprints,
    total,
)

DEFAULT_TOKENS = 256


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much the fingerprints of a class may differ from the trusted ones.

    For one answer (`…_one`) and for all of a series together (`…_all`): the share of
    tokens that are not what sampling gives, the share of the likeliest tokens that are
    not among the trusted ones, and the mean difference of log-probabilities (nats).
    """

    tokens_one: float
    tokens_all: float
    ids_one: float
    ids_all: float
    logprobs_one: float
    logprobs_all: float


class Printed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fingerprints of a check.

    `sha256`: the hash that the executor sent with that of its answers, `file`: its
    file, which came later. `trusted`: the file of the trusted executor, which followed
    the executor's tokens; `texts_sha256`: the hash of the answer file that the tokens
    make. All but `limits` are None while they are missing.
    """

    limits: Limits
    sha256: str | None = None
    file: bytes | None = None
    trusted: bytes | None = None
    texts_sha256: str | None = None


def differences_of_runtime(
    runtime: Mapping[str, str], trusted: Mapping[str, str]
) -> str:
    """How two runtimes differ, in words; empty if not, or if one says nothing."""
    if not runtime or not trusted:
        return ""
    names = [
        name
        for name in sorted({*runtime, *trusted})
        if runtime.get(name) != trusted.get(name)
    ]
    return " and ".join(
        f"its {name} is {quoted(runtime.get(name, 'unknown'))} and that of the trusted"
        f" executor {quoted(trusted.get(name, 'unknown'))}"
        for name in names
    )


def checked_tokens(
    printed: Printed, prompts: int, max_tokens: int
) -> list[Fingerprint]:
    """The executor's fingerprints, if they are those whose hash it sent.

    Raises FingerprintError.
    """
    if printed.sha256 is None:
        raise FingerprintError("no hash of fingerprints came with that of the answers")
    if printed.file is None:
        raise FingerprintError("a hash of fingerprints came, and none followed")
    if hashlib.sha256(printed.file).hexdigest() != printed.sha256:
        raise FingerprintError("their hash is not the one that was sent before")
    return read_fingerprints(printed.file, prompts, max_tokens)


def judge_fingerprints(
    printed: Printed,
    series: Sequence[str],
    settings: Mapping[str, float],
    answers_sha256: str,
) -> tuple[bool | None, str]:
    """Judge the fingerprints of all answers; returns whether they are right, and why.

    None: the trusted executor has not compared them.
    """
    max_tokens = int(settings.get("max_tokens", DEFAULT_TOKENS))
    try:
        checked = checked_tokens(printed, len(series), max_tokens)
    except FingerprintError as error:
        return False, f"fingerprints: {error}"
    if printed.trusted is None:
        return None, "the trusted executor has not compared the fingerprints"
    if printed.texts_sha256 != answers_sha256:
        return (
            False,
            "the tokens of the fingerprints do not make the texts of the answers",
        )
    try:
        trusted = read_fingerprints(printed.trusted, len(series), max_tokens)
    except FingerprintError as error:
        return False, f"the trusted executor could not follow the tokens: {error}"
    prompts = sorted(series)
    short = [prompts[place] for place, one in enumerate(trusted) if not one.whole]
    if short:
        return (
            False,
            f"{len(short)} answers end too early, the first to {quoted(short[0])}",
        )
    sampling = (settings.get("temperature", 1.0), settings.get("top_p", 1.0))
    found = [
        difference(one, right, *sampling)
        for one, right in zip(checked, trusted, strict=True)
    ]
    return _judged(found, prompts, printed.limits)


def _judged(
    found: Sequence[PrintDifference], prompts: Sequence[str], limits: Limits
) -> tuple[bool, str]:
    together = total(found)
    words = _shown(together, limits)
    wrong = [place for place, one in enumerate(found) if not one_is_right(one, limits)]
    if wrong:
        first = found[wrong[0]]
        return False, (
            f"{len(wrong)} of {len(found)} answers differ by more than rounding, the"
            f" first to {quoted(prompts[wrong[0]])}: of its {first.tokens} tokens"
            f" {first.token_share:.1%} are not what sampling gives (limit"
            f" {limits.tokens_one:.1%}), {first.id_share:.1%} of the likeliest are"
            f" others ({limits.ids_one:.1%}), log-probabilities differ by"
            f" {first.logprob_error:.4f} ({limits.logprobs_one:.4f}); {words}"
        )
    if not all_are_right(together, limits):
        return False, f"together the answers differ by more than rounding: {words}"
    return True, f"the answers differ by no more than rounding: {words}"


def _shown(together: PrintDifference, limits: Limits) -> str:
    return (
        f"of {together.tokens:,} tokens {together.token_share:.2%} are not what"
        f" sampling gives (limit {limits.tokens_all:.2%}), {together.id_share:.2%} of"
        f" the likeliest are others ({limits.ids_all:.2%}), log-probabilities differ by"
        f" {together.logprob_error:.4f} ({limits.logprobs_all:.4f})"
    )


def one_is_right(one: PrintDifference, limits: Limits) -> bool:
    """Whether one answer differs by no more than the limits.

    Counts may exceed theirs by two standard deviations, and by one: answers can be
    short.
    """
    return (
        one.unlikely <= _with_chance(limits.tokens_one * one.tokens, 2)
        and one.missing <= _with_chance(limits.ids_one * one.ids, 2)
        and one.logprob_error <= limits.logprobs_one
    )


def all_are_right(together: PrintDifference, limits: Limits) -> bool:
    """Whether all answers together differ by no more than the limits.

    Counts may exceed theirs by four standard deviations, and by one.
    """
    return (
        together.unlikely <= _with_chance(limits.tokens_all * together.tokens, 4)
        and together.missing <= _with_chance(limits.ids_all * together.ids, 4)
        and together.logprob_error <= limits.logprobs_all
    )


def _with_chance(count: float, deviations: float) -> float:
    return count + deviations * math.sqrt(count) + 1
