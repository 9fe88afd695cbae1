"""Fingerprints of answers: read strictly, and compared with trusted ones.

What a file of them holds is in `solver/engines/fingerprints.py`.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gpuyard.verification.solver.engines.fingerprints import HEADER, TOKEN, TOP, UNKNOWN


class FingerprintError(Exception):
    """A file of fingerprints is not what it should be; the text says why."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The fingerprint of one answer; at each place the likeliest tokens come first."""

    tokens: tuple[int, ...]
    ids: tuple[tuple[int, ...], ...]
    logprobs: tuple[tuple[float, ...], ...]
    whole: bool


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn, as in the settings of an order."""

    temperature: float
    top_p: float
    max_tokens: int


@dataclass(frozen=True, slots=True)
class PrintDifference:
    """How far the fingerprints of some answers are from the trusted ones.

    `tokens`: how many tokens the answers have, of which `unlikely` are not what
    sampling gives. `ids`: how many of the likeliest tokens were compared, of which
    `missing` are not among the trusted ones. `error`: the sum of the differences
    between log-probabilities of those that both have. Of the `answers`, `false_ends`
    end early with a token that is not what sampling gives. Where it is not known what
    the seed gives, `rare_ends` end early with a token that is not the likeliest.
    """

    tokens: int = 0
    unlikely: int = 0
    ids: int = 0
    missing: int = 0
    error: float = 0.0
    answers: int = 1
    false_ends: int = 0
    rare_ends: int = 0

    @property
    def token_share(self) -> float:
        """The share of tokens that are not what sampling gives."""
        return self.unlikely / self.tokens if self.tokens else 0.0

    @property
    def id_share(self) -> float:
        """The share of likeliest tokens that are not among the trusted ones."""
        return self.missing / self.ids if self.ids else 0.0

    @property
    def logprob_error(self) -> float:
        """The mean difference of log-probabilities (nats); infinite without any."""
        common = self.ids - self.missing
        return self.error / common if common else math.inf

    @property
    def false_end_share(self) -> float:
        """The share of answers that end early where sampling does not."""
        return self.false_ends / self.answers if self.answers else 0.0

    @property
    def rare_end_share(self) -> float:
        """The share of answers that end early though another token is likelier."""
        return self.rare_ends / self.answers if self.answers else 0.0


def most_bytes(prompts: int, max_tokens: int) -> int:
    """The size of the largest file for so many prompts."""
    return prompts * (HEADER.size + max_tokens * TOKEN.size)


def read_fingerprints(
    data: bytes, prompts: int, max_tokens: int, least: int = 1
) -> list[Fingerprint]:
    """The fingerprint of each answer, in the order of sorted prompts.

    Raises FingerprintError when there are not so many, one has fewer tokens than
    `least` or too many, or log-probabilities are none.
    """
    found: list[Fingerprint] = []
    place = 0
    while place < len(data) and len(found) < prompts:
        if place + HEADER.size > len(data):
            raise FingerprintError("the file ends in its middle")
        count, whole = HEADER.unpack_from(data, place)
        end = place + HEADER.size + count * TOKEN.size
        if not least <= count <= max_tokens:
            raise FingerprintError(
                f"answer {len(found) + 1} has {count} tokens; must be {least} to"
                f" {max_tokens}"
            )
        if end > len(data):
            raise FingerprintError("the file ends in its middle")
        found.append(_one(data[place + HEADER.size : end], len(found) + 1, whole))
        place = end
    if len(found) != prompts or place != len(data):
        raise FingerprintError(
            f"there are {len(found)} and {len(data) - place} bytes more; must be"
            f" {prompts}"
        )
    return found


def _one(data: bytes, number: int, whole: bool) -> Fingerprint:
    rows = list(TOKEN.iter_unpack(data))
    ids = tuple(row[1 : 1 + TOP] for row in rows)
    logprobs = tuple(row[1 + TOP :] for row in rows)
    if any(len(set(one)) != TOP for one in ids):
        raise FingerprintError(
            f"answer {number} names one of its likeliest tokens twice"
        )
    if not all(_are_logprobs(one) for one in logprobs):
        raise FingerprintError(
            f"answer {number} has log-probabilities that are none: they must fall, and"
            " all together be a chance"
        )
    return Fingerprint(tuple(row[0] for row in rows), ids, logprobs, whole)


def _are_logprobs(values: Sequence[float]) -> bool:
    """Whether they are finite, fall, and are chances of 1.01 together, rounded."""
    finite = all(math.isfinite(value) and value <= 0.01 for value in values)
    falls = all(left >= right for left, right in pairwise(values))
    return finite and falls and sum(map(math.exp, values)) <= 1.01


def difference(
    checked: Fingerprint, trusted: Fingerprint, sampling: Sampling
) -> PrintDifference:
    """Compare two fingerprints of one answer, the trusted one with the same tokens.

    `trusted.tokens` are those that sampling gives after the tokens before. Where its
    engine cannot tell, a token must be among the likeliest that `top_p` keeps.
    """
    count = len(checked.tokens)
    if count != len(trusted.tokens):
        return PrintDifference(count, count, TOP * count, TOP * count, false_ends=1)
    wrong = [
        not _is_drawn(token, trusted, place, sampling)
        for place, token in enumerate(checked.tokens)
    ]
    ends = trusted.whole and count < sampling.max_tokens
    unknown = ends and trusted.tokens[-1] == UNKNOWN
    rare = unknown and checked.tokens[-1] != trusted.ids[-1][0]
    missing, error = _of_likeliest(checked, trusted)
    return PrintDifference(
        count,
        sum(wrong),
        TOP * count,
        missing,
        error,
        false_ends=int(ends and wrong[-1]),
        rare_ends=int(rare),
    )


def wavering(first: Fingerprint, again: Fingerprint) -> PrintDifference:
    """Compare two fingerprints that the trusted executor made after the same tokens.

    Of its tokens, those are `unlikely` that it draws in one of them only.
    """
    count = len(first.tokens)
    pairs = zip(first.tokens, again.tokens, strict=True)
    unlikely = sum(token != other for token, other in pairs)
    return PrintDifference(count, unlikely, TOP * count, *_of_likeliest(first, again))


def _of_likeliest(one: Fingerprint, trusted: Fingerprint) -> tuple[int, float]:
    """How many of the likeliest tokens are missing, and the error of the others."""
    missing = 0
    error = 0.0
    for place, ids in enumerate(one.ids):
        theirs = dict(zip(trusted.ids[place], trusted.logprobs[place], strict=True))
        for token_id, logprob in zip(ids, one.logprobs[place], strict=True):
            if token_id in theirs:
                error += abs(logprob - theirs[token_id])
            else:
                missing += 1
    return missing, error


def _is_drawn(token: int, trusted: Fingerprint, place: int, sampling: Sampling) -> bool:
    """Whether a token is what sampling gives, as far as the trusted engine can tell."""
    drawn = trusted.tokens[place]
    if drawn != UNKNOWN:
        return token == drawn
    theirs = dict(zip(trusted.ids[place], trusted.logprobs[place], strict=True))
    return token in _nucleus(theirs, sampling.temperature, sampling.top_p)


def _nucleus(likeliest: dict[int, float], temperature: float, top_p: float) -> set[int]:
    """The fewest of the likeliest tokens that together have `top_p`.

    What all other tokens have is little at low temperatures, and counts as nothing.
    """
    if temperature <= 0:
        return {max(likeliest, key=likeliest.__getitem__)}
    best = max(likeliest.values())
    shares = {
        token: math.exp((logprob - best) / temperature)
        for token, logprob in likeliest.items()
    }
    left = top_p * sum(shares.values())
    kept = set[int]()
    for token in sorted(shares, key=shares.__getitem__, reverse=True):
        if left <= 0:
            break
        kept.add(token)
        left -= shares[token]
    return kept


def total(differences: Iterable[PrintDifference]) -> PrintDifference:
    """The difference of many answers together."""
    rows = list(differences)
    return PrintDifference(
        sum(one.tokens for one in rows),
        sum(one.unlikely for one in rows),
        sum(one.ids for one in rows),
        sum(one.missing for one in rows),
        sum(one.error for one in rows),
        sum(one.answers for one in rows),
        sum(one.false_ends for one in rows),
        sum(one.rare_ends for one in rows),
    )
