"""Which strategies answer as the reference does, up to what rounding explains.

A layout adds the same numbers in another order, so its log-probabilities differ a
little from another layout's, and where two tokens are nearly as probable it may choose
the other one. A wrong split gives another token where the model is sure. Up to the
first token that differs both sides have read the same tokens. So the log-probabilities
there can be compared, and tell one case from the other.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gpuyard.domain.exact import first_divergence

TOLERANCE = {"fp32": 0.001, "fp16": 0.0625, "bf16": 0.5}
"""How much more probable a side's own token may be than the other side's, in nats,
where rounding explains the difference. In bf16 two logits between 16 and 32 are 0.125
apart at least, in fp16 0.0156.
"""
_LEAST_WITH_LOGPROBS = {"fp32": 1.0, "fp16": 0.95, "bf16": 0.95}
_LEAST_WITHOUT = {"fp32": 0.9, "fp16": 0.5, "bf16": 0.5}
_CHANCE = 0.01
"""A strategy is wrong if chance alone makes so few answers agree less often."""

Key = tuple[str, str]
"""A prompt's variant and id."""


class Difference(StrEnum):
    """How an answer differs from that of the reference."""

    NONE = "none"
    ROUNDING = "rounding"
    BEYOND = "beyond rounding"
    UNEXPLAINED = "unexplained"


@dataclass(frozen=True, slots=True)
class StrategyAnswer:
    """An answer, and how sure the model was of each of its tokens.

    `logprobs` are natural logarithms of the tokens' probabilities; `runner_up_ids` and
    `runner_up_logprobs` are of the most probable other token. They are empty where the
    engine does not tell. `finish_reason` is `stop`, `length`, or empty if it is not
    known.
    """

    text: str
    token_ids: Sequence[int] | None = None
    logprobs: Sequence[float] = ()
    runner_up_ids: Sequence[int] = ()
    runner_up_logprobs: Sequence[float] = ()
    finish_reason: str = ""

    def lead(self, place: int, other: int | None) -> "Lead | None":
        """How much more probable its own token is than another, at a place.

        The other is None where that side has ended there: by a token that is no more
        probable than the second most probable one.
        """
        if self.token_ids is None or place >= len(self.token_ids):
            return None
        known = (self.logprobs, self.runner_up_logprobs, self.runner_up_ids)
        if place >= min(map(len, known)):
            return None
        return Lead(
            self.logprobs[place],
            self.runner_up_logprobs[place],
            is_exact=self.runner_up_ids[place] == other,
        )


@dataclass(frozen=True, slots=True)
class Lead:
    """Log-probabilities of a side's own token and of the other side's token.

    The other is at most `other` where it is not the second most probable one.
    """

    own: float
    other: float
    is_exact: bool

    @property
    def nats(self) -> float:
        """The difference; at least that much if it is not exact."""
        return self.own - self.other

    def __str__(self) -> str:
        at_most = "" if self.is_exact else "at most "
        return f"{self.own:.3f} against {at_most}{self.other:.3f}"


@dataclass(frozen=True, slots=True)
class FirstDifference:
    """The first token in which an answer differs, and what both sides thought there.

    `place` counts tokens from 0. A token is None where that side has ended. A lead is
    None where the side's engine did not tell its log-probabilities.
    """

    key: Key
    kind: Difference
    place: int
    expected: int | None
    got: int | None
    reference_lead: Lead | None
    strategy_lead: Lead | None

    def __str__(self) -> str:
        variant, prompt_id = self.key
        parts = [
            f"prompt {prompt_id} of {variant}, token {self.place + 1}:"
            f" {_token(self.expected)} expected, {_token(self.got)} given"
        ]
        if self.reference_lead is not None:
            parts.append(f"log-probabilities of the reference {self.reference_lead}")
        if self.strategy_lead is not None:
            parts.append(f"its own {self.strategy_lead}")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class Comparison:
    """How many answers of a strategy agree with another side's.

    `first` is the gravest kind of difference, at the earliest place.
    """

    same: int
    rounding: int
    beyond: int
    unexplained: int
    first: FirstDifference | None = None

    @property
    def compared(self) -> int:
        """How many answers both sides have."""
        return self.same + self.rounding + self.beyond + self.unexplained

    @property
    def agreeing(self) -> int:
        """The answers that agree, up to rounding."""
        return self.same + self.rounding

    @property
    def share(self) -> float:
        """The share of answers that agree; 1 where none were compared."""
        return self.agreeing / self.compared if self.compared else 1.0

    def is_wrong(self, precision: str, measured: float | None = None) -> bool:
        """Whether fewer answers agree than the noise floor allows.

        `measured` is the share in which the reference agrees with itself when it is
        repeated; it can only lower the floor.
        """
        if not self.compared:
            return False
        has_evidence = self.unexplained == 0
        table = _LEAST_WITH_LOGPROBS if has_evidence else _LEAST_WITHOUT
        least = table.get(precision, 0.5)
        if measured is not None:
            least = min(least, measured)
        return self.agreeing == 0 or self._chance(least) < _CHANCE

    def _chance(self, least: float) -> float:
        """How often so few answers, or fewer, agree if a share of `least` should."""
        count = self.compared
        terms = (
            math.comb(count, agreeing)
            * least**agreeing
            * (1 - least) ** (count - agreeing)
            for agreeing in range(self.agreeing + 1)
        )
        return sum(terms)


def _pairs(
    reference: Mapping[Key, StrategyAnswer], candidate: Mapping[Key, StrategyAnswer]
) -> list[tuple[Key, StrategyAnswer, StrategyAnswer]]:
    """What both sides have answered: the key, and the answers of both."""
    return [
        (key, reference[key], answer)
        for key, answer in candidate.items()
        if key in reference
    ]


def compare(
    reference: Mapping[Key, StrategyAnswer],
    candidate: Mapping[Key, StrategyAnswer],
    precision: str,
) -> Comparison:
    """Compare the answers that both sides have, by tokens; by text without tokens."""
    found: list[FirstDifference] = []
    pairs = _pairs(reference, candidate)
    for key, expected, answer in pairs:
        difference = _difference(key, expected, answer, precision)
        if difference is not None:
            found.append(difference)
    return _comparison(len(pairs), found)


def compare_with_text(
    reference: Mapping[Key, StrategyAnswer],
    candidate: Mapping[Key, StrategyAnswer],
    precision: str,
) -> Comparison:
    """Compare with the answers of an endpoint, of which only the text is sure.

    An endpoint may stop earlier or later, so an answer that begins as the other agrees.
    """
    found: list[FirstDifference] = []
    pairs = _pairs(reference, candidate)
    for key, expected, answer in pairs:
        if _begins_alike(expected.text, answer.text):
            continue
        difference = _difference(key, expected, answer, precision)
        if difference is None:
            difference = FirstDifference(
                key, Difference.UNEXPLAINED, 0, None, None, None, None
            )
        found.append(difference)
    return _comparison(len(pairs), found)


def _comparison(count: int, found: Sequence[FirstDifference]) -> Comparison:
    kinds = [difference.kind for difference in found]
    gravity = (Difference.BEYOND, Difference.UNEXPLAINED, Difference.ROUNDING)
    first = min(
        found, key=lambda one: (gravity.index(one.kind), one.place), default=None
    )
    return Comparison(
        count - len(found),
        kinds.count(Difference.ROUNDING),
        kinds.count(Difference.BEYOND),
        kinds.count(Difference.UNEXPLAINED),
        first,
    )


def _begins_alike(one: str, other: str) -> bool:
    shorter, longer = sorted((one.strip(), other.strip()), key=len)
    return shorter == longer or (bool(shorter) and longer.startswith(shorter))


def _difference(
    key: Key, reference: StrategyAnswer, candidate: StrategyAnswer, precision: str
) -> FirstDifference | None:
    """Return the first token that differs, or None where the answers are the same."""
    expected_ids = reference.token_ids
    got_ids = candidate.token_ids
    if expected_ids is None or got_ids is None:
        # A server may leave out a blank at either end.
        if reference.text.strip() == candidate.text.strip():
            return None
        place = first_divergence(reference.text, candidate.text) or 0
        return FirstDifference(
            key, Difference.UNEXPLAINED, place, None, None, None, None
        )
    place = first_divergence(expected_ids, got_ids)
    if place is None:
        return None
    if _differ_by_their_end(reference, candidate, place):
        return None
    expected = _at(expected_ids, place)
    got = _at(got_ids, place)
    reference_lead = reference.lead(place, got)
    strategy_lead = candidate.lead(place, expected)
    kind = _kind([reference_lead, strategy_lead], precision)
    if _was_cut(reference, place) or _was_cut(candidate, place):
        kind = Difference.BEYOND
    return FirstDifference(
        key, kind, place, expected, got, reference_lead, strategy_lead
    )


def _differ_by_their_end(
    reference: StrategyAnswer, candidate: StrategyAnswer, place: int
) -> bool:
    """Whether both ended alike, and one side leaves out the token that ends a text.

    That token is no part of the text, so both texts are the same.
    """
    lengths = [len(one.token_ids or ()) for one in (reference, candidate)]
    have_stopped = reference.finish_reason == candidate.finish_reason == "stop"
    is_same_text = reference.text.strip() == candidate.text.strip()
    return have_stopped and is_same_text and sorted(lengths) == [place, place + 1]


def _was_cut(answer: StrategyAnswer, place: int) -> bool:
    """Whether an answer has no more tokens, though the model had not ended it."""
    has_ended = len(answer.token_ids or ()) == place
    return has_ended and answer.finish_reason == "length"


def _kind(leads: Sequence[Lead | None], precision: str) -> Difference:
    """Rounding, if all that is known of both sides is within the tolerance."""
    known = [lead for lead in leads if lead is not None]
    tolerance = TOLERANCE.get(precision, TOLERANCE["bf16"])
    if any(lead.nats > tolerance for lead in known):
        return Difference.BEYOND
    if known and all(lead.is_exact for lead in known):
        return Difference.ROUNDING
    return Difference.UNEXPLAINED


def _at(ids: Sequence[int], place: int) -> int | None:
    return int(ids[place]) if place < len(ids) else None


def _token(token: int | None) -> str:
    return "no token" if token is None else f"token {token}"


@dataclass(frozen=True, slots=True)
class AgreeingGroup:
    """Strategies whose answers agree with those of the first, `leader`."""

    leader: str
    members: tuple[str, ...]


def agreeing_groups(
    answers: Mapping[str, Mapping[Key, StrategyAnswer]],
    precision: str,
    noise_floor: Mapping[str, float],
) -> list[AgreeingGroup]:
    """Put each strategy into the first group with whose leader it agrees.

    `answers` are by strategy, the smallest layout first, and so is `noise_floor`: the
    share in which a strategy agrees with itself, where that was measured.
    """
    groups: dict[str, list[str]] = {}
    for strategy_id, mine in answers.items():
        for leader, members in groups.items():
            comparison = compare(answers[leader], mine, precision)
            measured = noise_floor.get(leader)
            is_wrong = comparison.is_wrong(precision, measured)
            if comparison.compared and not is_wrong:
                members.append(strategy_id)
                break
        else:
            groups[strategy_id] = [strategy_id]
    return [AgreeingGroup(leader, tuple(members)) for leader, members in groups.items()]


def likeness(
    answers: Mapping[Key, StrategyAnswer], right: Mapping[Key, str]
) -> float | None:
    """How much answers resemble right ones, from 0 to 1; None if there are none.

    It is the mean share of equal words, and 1 for an answer that holds the right one.
    """
    values = list(_likenesses(answers, right))
    return sum(values) / len(values) if values else None


def _likenesses(
    answers: Mapping[Key, StrategyAnswer], right: Mapping[Key, str]
) -> Iterator[float]:
    for key, answer in answers.items():
        expected = right.get(key)
        if expected is None:
            continue
        if expected.strip() and expected.strip() in answer.text:
            yield 1.0
            continue
        words = expected.split()
        said = answer.text.split()
        same = sum(one == other for one, other in zip(words, said, strict=False))
        yield same / max(len(words), len(said), 1)
