"""Tell a run's strategies whose answers are right from those whose answers are wrong.

The reference is one of the strategies. It is never one that others show to be wrong:
see `_reference_group`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from gpuyard.studies.agreement import (
    AgreeingGroup,
    Comparison,
    Key,
    StrategyAnswer,
    agreeing_groups,
    compare,
    compare_with_text,
    likeness,
)

_CLEARLY_MORE_ALIKE = 0.1
_LEAST_BESIDE_BASELINE = 0.5
_OTHER_PROGRAM = "bf16"
"""The precision of an endpoint is not known, so the widest tolerance counts."""


class Correctness(StrEnum):
    """What is known of a strategy's answers."""

    REFERENCE = "reference"
    RIGHT = "right"
    WRONG = "wrong"
    DISPUTED = "disputed"
    NOT_COMPARED = "not compared"
    ROUNDED = "of rounded weights"

    @property
    def can_be_best(self) -> bool:
        """Whether a strategy with such answers is ranked."""
        return self not in (
            Correctness.WRONG,
            Correctness.DISPUTED,
            Correctness.ROUNDED,
        )


@dataclass(frozen=True, slots=True)
class CheckedStrategy:
    """What was found of one strategy.

    `beside` names what its answers were compared with, `reason` says in words why it is
    wrong or disputed.
    """

    strategy_id: str
    correctness: Correctness
    beside: str = ""
    comparison: Comparison | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class RunAnswers:
    """The answers of a run, by strategy, the smallest layout first.

    `unsplit` are the strategies that run on one GPU. `baseline` has an endpoint's
    answers to the very same prompts, greedy and by the same model; `right` has texts
    that right answers resemble. `noise_floor` is the share in which a strategy's
    answers agree with its own when it repeats them, where that was measured.
    `quantized` are strategies whose weights are rounded: their answers may differ, so
    they are no reference. `baseline_floor` is the share in which the baseline repeats
    its own answers, where that was measured.
    """

    by_strategy: Mapping[str, Mapping[Key, StrategyAnswer]]
    precision: str
    unsplit: frozenset[str] = frozenset()
    baseline: Mapping[Key, StrategyAnswer] | None = None
    right: Mapping[Key, str] | None = None
    noise_floor: Mapping[str, float] | None = None
    quantized: frozenset[str] = frozenset()
    baseline_floor: float | None = None

    def exact(self) -> "RunAnswers":
        """Return the answers of the strategies whose weights are not rounded."""
        return replace(
            self,
            by_strategy={
                name: answers
                for name, answers in self.by_strategy.items()
                if name not in self.quantized
            },
            quantized=frozenset(),
        )

    def measured(self, strategy_id: str) -> float | None:
        """The noise floor of a strategy, if it was measured."""
        return (self.noise_floor or {}).get(strategy_id)


def check_answers(run: RunAnswers) -> dict[str, CheckedStrategy]:
    """Return what is known of each strategy with answers."""
    found = _check_exact(run.exact())
    reference = next(
        (
            name
            for name, one in found.items()
            if one.correctness in (Correctness.REFERENCE, Correctness.NOT_COMPARED)
        ),
        None,
    )
    for strategy_id in run.quantized & run.by_strategy.keys():
        found[strategy_id] = _rounded(run, reference, strategy_id)
    return found


def _rounded(
    run: RunAnswers, reference: str | None, strategy_id: str
) -> CheckedStrategy:
    """Say how much the answers of rounded weights are like those of the reference."""
    setting = "set report.rank_quantized to rank it nevertheless"
    if reference is None:
        reason = f"its weights are rounded, and there is no reference; {setting}"
        return CheckedStrategy(strategy_id, Correctness.ROUNDED, reason=reason)
    comparison = compare(
        run.by_strategy[reference], run.by_strategy[strategy_id], run.precision
    )
    reason = (
        f"its weights are rounded: {comparison.agreeing} of {comparison.compared}"
        f" answers agree with {reference}; {setting}"
    )
    return CheckedStrategy(
        strategy_id, Correctness.ROUNDED, reference, comparison, reason
    )


def _check_exact(run: RunAnswers) -> dict[str, CheckedStrategy]:
    floor = run.noise_floor or {}
    groups = agreeing_groups(run.by_strategy, run.precision, floor)
    if not groups:
        return {}
    chosen, is_sure = _reference_group(run, groups)
    reference = chosen.leader
    if len(run.by_strategy) == 1 and not run.baseline:
        return {reference: CheckedStrategy(reference, Correctness.NOT_COMPARED)}
    found: dict[str, CheckedStrategy] = {}
    for strategy_id, answers in run.by_strategy.items():
        wrong = _wrong_beside_baseline(run, strategy_id, answers)
        if wrong is not None:
            found[strategy_id] = wrong
        elif is_sure:
            found[strategy_id] = _beside_reference(run, reference, strategy_id)
        else:
            found[strategy_id] = _disputed(groups, strategy_id)
    return found


def _reference_group(
    run: RunAnswers, groups: Sequence[AgreeingGroup]
) -> tuple[AgreeingGroup, bool]:
    """Choose the group that the reference is of, and tell whether that is sure.

    The first of these rules that tells the groups apart counts: the answers are clearly
    more like the right ones; a layout is not split, so no split can be wrong; most
    strategies agree.
    """
    if len(groups) == 1:
        return groups[0], True
    if run.right:
        alike = {
            group.leader: likeness(run.by_strategy[group.leader], run.right) or 0.0
            for group in groups
        }
        first, second, *_ = sorted(
            groups, key=lambda group: alike[group.leader], reverse=True
        )
        if alike[first.leader] - alike[second.leader] > _CLEARLY_MORE_ALIKE:
            return first, True
    whole = [group for group in groups if run.unsplit & set(group.members)]
    if len(whole) == 1:
        return whole[0], True
    first, second, *_ = sorted(
        groups, key=lambda group: len(group.members), reverse=True
    )
    return first, len(first.members) > len(second.members)


def _wrong_beside_baseline(
    run: RunAnswers, strategy_id: str, answers: Mapping[Key, StrategyAnswer]
) -> CheckedStrategy | None:
    if not run.baseline:
        return None
    comparison = compare_with_text(run.baseline, answers, run.precision)
    least = _LEAST_BESIDE_BASELINE
    if run.baseline_floor is not None:
        least = min(least, run.baseline_floor)
    if not comparison.is_wrong(_OTHER_PROGRAM, least):
        return None
    return CheckedStrategy(
        strategy_id,
        Correctness.WRONG,
        "the baseline",
        comparison,
        _words(comparison, "the baseline"),
    )


def _beside_reference(
    run: RunAnswers, reference: str, strategy_id: str
) -> CheckedStrategy:
    if strategy_id == reference:
        return CheckedStrategy(strategy_id, Correctness.REFERENCE)
    comparison = compare(
        run.by_strategy[reference], run.by_strategy[strategy_id], run.precision
    )
    if not comparison.compared:
        return CheckedStrategy(strategy_id, Correctness.NOT_COMPARED)
    if not comparison.is_wrong(run.precision, run.measured(reference)):
        return CheckedStrategy(strategy_id, Correctness.RIGHT, reference, comparison)
    return CheckedStrategy(
        strategy_id,
        Correctness.WRONG,
        reference,
        comparison,
        _words(comparison, reference),
    )


def _disputed(groups: Sequence[AgreeingGroup], strategy_id: str) -> CheckedStrategy:
    """Say which strategies contradict this one."""
    others = [group.leader for group in groups if strategy_id not in group.members]
    reason = (
        f"its answers differ from those of {', '.join(others[:3])} beyond rounding, and"
        " nothing tells which are right; add a [baseline], prompts.truth or a layout of"
        " one GPU"
    )
    return CheckedStrategy(strategy_id, Correctness.DISPUTED, reason=reason)


def _words(comparison: Comparison, beside: str) -> str:
    different = comparison.compared - comparison.agreeing
    return (
        f"{different} of {comparison.compared} answers differ from {beside} by more"
        f" than rounding; first {comparison.first}"
    )
