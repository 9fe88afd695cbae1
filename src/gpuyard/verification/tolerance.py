"""Tolerance: answers judged by their fingerprints, where rounding differs.

Two honest executors of other classes, versions or number formats differ in the last
digits, and so after some tokens in their answers. Here the trusted executor follows the
tokens of the executor, so every place is compared by itself. How much may differ was
measured between two honest executors (`tolerance_calibration.py`).
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from gpuyard.domain.errors import quoted
from gpuyard.verification.chance import surprise
from gpuyard.verification.fingerprints import (
    Fingerprint,
    FingerprintError,
    PrintDifference,
    Sampling,
    difference,
    read_fingerprints,
    total,
    wavering,
)
from gpuyard.verification.solver.engines.fingerprints import TOP, UNKNOWN

DEFAULT_TOKENS = 256
# A count fails a check if chance alone, at the limit, would bring it less often: for
# one of the many answers of a check, and for all of them together.
RAREST_ONE = 1e-6
RAREST_ALL = 1e-5
_MOST_ONE = -math.log(RAREST_ONE)
_MOST_ALL = -math.log(RAREST_ALL)
# The mean over fewer tokens says little of an answer, so their error counts as if the
# others of so many had none.
FEW_TOKENS = 32


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much the fingerprints of a class may differ from the trusted ones.

    For one answer (`…_one`) and for all of a series together (`…_all`): the share of
    tokens that are not what sampling gives, the share of the likeliest tokens that are
    not among the trusted ones, and the mean difference of log-probabilities (nats). For
    all together: the share of answers that end early with a token that sampling does
    not give, and, where the trusted engine cannot tell which it gives, with one that is
    not the likeliest.
    """

    tokens_one: float
    tokens_all: float
    ids_one: float
    ids_all: float
    logprobs_one: float
    logprobs_all: float
    false_ends_all: float
    rare_ends_all: float


class Printed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The fingerprints of a check.

    `sha256`: the hash that the executor sent with that of its answers, `file`: its
    file, which came later. `trusted`: the file of the trusted executor, which followed
    the executor's tokens; `texts_sha256`: the hash of the answer file that the tokens
    make. They are None while they are missing. `accepts_unknown_draws`: the settings
    accept that the trusted engine cannot tell which token a seed gives.
    """

    limits: Limits
    accepts_unknown_draws: bool = False
    sha256: str | None = None
    file: bytes | None = None
    trusted: bytes | None = None
    texts_sha256: str | None = None


@dataclass(frozen=True, slots=True)
class PrintVerdict:
    """Whether fingerprints are right, and why.

    `ok` is None while the trusted executor has not compared them. `unknown_draws`: it
    cannot tell which token the seed gives at each place.
    """

    ok: bool | None
    reason: str
    unknown_draws: bool = False


def sampling_of(settings: Mapping[str, float]) -> Sampling:
    """How the settings of an order draw tokens."""
    return Sampling(
        settings.get("temperature", 1.0),
        settings.get("top_p", 1.0),
        int(settings.get("max_tokens", DEFAULT_TOKENS)),
    )


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


def changes_of_runtime(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """How a runtime has changed, in words; empty if not, or if one says nothing."""
    if not before or not now:
        return ""
    names = [
        name for name in sorted({*before, *now}) if before.get(name) != now.get(name)
    ]
    return " and ".join(
        f"its {name} was {quoted(before.get(name, 'unknown'))} when it was accepted and"
        f" is {quoted(now.get(name, 'unknown'))} now"
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
) -> PrintVerdict:
    """Judge the fingerprints of all answers."""
    sampling = sampling_of(settings)
    try:
        checked = checked_tokens(printed, len(series), sampling.max_tokens)
    except FingerprintError as error:
        return PrintVerdict(False, f"fingerprints: {error}")
    if printed.trusted is None:
        return PrintVerdict(
            None, "the trusted executor has not compared the fingerprints"
        )
    if printed.texts_sha256 != answers_sha256:
        return PrintVerdict(
            False, "the tokens of the fingerprints do not make the texts of the answers"
        )
    try:
        trusted = read_fingerprints(printed.trusted, len(series), sampling.max_tokens)
    except FingerprintError as error:
        return PrintVerdict(
            False, f"the trusted executor could not follow the tokens: {error}"
        )
    prompts = sorted(series)
    short = [prompts[place] for place, one in enumerate(trusted) if not one.whole]
    if short:
        return PrintVerdict(
            False,
            f"{len(short)} answers end too early, the first to {quoted(short[0])}",
        )
    pairs = zip(checked, trusted, strict=True)
    found = [difference(one, right, sampling) for one, right in pairs]
    ok, reason = _judged(found, prompts, printed.limits)
    return PrintVerdict(ok, reason, any(UNKNOWN in one.tokens for one in trusted))


def contradicts_itself(
    first: bytes, again: bytes, limits: Limits, prompts: int, max_tokens: int
) -> bool:
    """Whether two files that followed the same tokens differ by more than rounding.

    The kernels of a GPU may give other last digits each time. An answer that cannot be
    followed has no tokens in either file; that fails a check, and so does one that is
    not whole in either, whatever the digits of the others are.
    """
    if first == again:
        return False
    try:
        one = read_fingerprints(first, prompts, max_tokens, least=0)
        other = read_fingerprints(again, prompts, max_tokens, least=0)
    except FingerprintError:
        return True
    pairs = list(zip(one, other, strict=True))
    if any(_form(left) != _form(right) for left, right in pairs):
        return True
    if not all(left.whole for left in one):
        return False
    found = [wavering(left, right) for left, right in pairs]
    same = all(one_is_right(one, limits) for one in found)
    return not (same and all_are_right(total(found), limits))


def _form(one: Fingerprint) -> tuple[int, bool]:
    return len(one.tokens), one.whole


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
    words = (
        f"of {together.tokens:,} tokens {together.token_share:.2%} are not what"
        f" sampling gives (limit {limits.tokens_all:.2%}), {together.id_share:.2%} of"
        f" the likeliest are others ({limits.ids_all:.2%}), log-probabilities differ by"
        f" {together.logprob_error:.4f} ({limits.logprobs_all:.4f}),"
        f" {together.false_end_share:.2%} of the answers end where sampling does not"
        f" ({limits.false_ends_all:.2%})"
    )
    if together.rare_ends:
        words += (
            f", and {together.rare_end_share:.2%} where another token is likelier"
            f" ({limits.rare_ends_all:.2%})"
        )
    return words


def one_is_right(one: PrintDifference, limits: Limits) -> bool:
    """Whether one answer differs by no more than the limits, chance allowed for.

    The likeliest tokens of one place go together, so they count as one event. Its end
    is one of its tokens, and only all answers together show whether such ends are too
    many.
    """
    return (
        surprise(one.unlikely, one.tokens, limits.tokens_one) <= _MOST_ONE
        and surprise(one.missing / TOP, one.tokens, limits.ids_one) <= _MOST_ONE
        and error_of_one(one) <= limits.logprobs_one
    )


def error_of_one(one: PrintDifference) -> float:
    """The mean difference of one answer's log-probabilities, less for a short one.

    0 where no likeliest token is common: their number says more.
    """
    if one.missing == one.ids:
        return 0.0
    return one.logprob_error * min(1.0, one.tokens / FEW_TOKENS)


def all_are_right(together: PrintDifference, limits: Limits) -> bool:
    """Whether all answers together differ by no more than the limits.

    Chance is allowed for in counts.
    """
    counts = (
        (together.unlikely, together.tokens, limits.tokens_all),
        (together.missing / TOP, together.tokens, limits.ids_all),
        (together.false_ends, together.answers, limits.false_ends_all),
        (together.rare_ends, together.answers, limits.rare_ends_all),
    )
    by_chance = all(surprise(*count) <= _MOST_ALL for count in counts)
    return by_chance and together.logprob_error <= limits.logprobs_all
