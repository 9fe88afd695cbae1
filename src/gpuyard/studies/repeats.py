"""What a strategy's repeats tell: the noise floor of its answers, and of its speed.

The files are `outputs/shard_<rank>.jsonl` of the first pass,
`repeats/shard_<rank>.jsonl` of the others, and `passes` in each rank's metrics.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from gpuyard.studies.agreement import Key, StrategyAnswer, compare
from gpuyard.studies.left_files import (
    LeftLines,
    longest_line,
    most_lines,
    read_left_object,
)

# Student's t for an interval of 95 %, by degrees of freedom.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
_NORMAL = 1.96
_NEEDED = {"prompt_id", "variant"}
ROUNDED = 1.01
"""Sums of times may be off by so much, as a factor."""


@dataclass(frozen=True, slots=True)
class RepeatFigures:
    """What was found in the repeats of one strategy.

    `same` is the share of answers of which every token is the same as the first time,
    `agreeing` the share that agrees up to rounding. `tokens_per_s` has the throughput
    of each pass, the first one included; it is empty if a pass contradicts its answers.
    """

    repeats: int
    same: float
    agreeing: float
    tokens_per_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RepeatsAsked:
    """How many results each time has, and how often all prompts are answered."""

    results: int = 1000
    times: int = 10


_UNKNOWN = RepeatsAsked()


@dataclass(frozen=True, slots=True)
class RepeatFindings:
    """The figures, None if there are none, and in `faults` what was not read."""

    figures: RepeatFigures | None = None
    faults: tuple[str, ...] = ()


class _Pass:
    """The answers of one time that all prompts were answered.

    `is_possible` is False if one of them lacks its figures, or has some that cannot be.
    """

    def __init__(self, most_tokens: int | None) -> None:
        self.answers: dict[Key, StrategyAnswer] = {}
        self.is_possible = True
        self._most_tokens = math.inf if most_tokens is None else most_tokens
        self._tokens: dict[Key, float] = {}
        self._batches_s: dict[tuple[str, str, str], float] = {}

    def add(self, row: Mapping[str, Any]) -> None:
        """Add an answer: a row of a shard."""
        key = _key(row)
        answer = _answer(row)
        self.answers[key] = answer
        tokens = _figure(row.get("tokens_generated"))
        latency_ms = _figure(row.get("latency_ms"))
        if tokens is None or latency_ms is None or tokens > self._most_tokens:
            self.is_possible = False
            return
        if answer.token_ids is not None and len(answer.token_ids) != tokens:
            self.is_possible = False
        self._tokens[key] = tokens
        batch = (str(row.get("rank")), key[0], str(row.get("batch")))
        longest_s = self._batches_s.get(batch, 0.0)
        self._batches_s[batch] = max(longest_s, latency_ms / 1000)

    @property
    def tokens(self) -> float:
        """How many tokens its answers have."""
        return sum(self._tokens.values())

    @property
    def answers_s(self) -> float:
        """How long its answers took: a rank has one batch after the other."""
        by_rank: dict[str, float] = {}
        for (rank, _, _), taken_s in self._batches_s.items():
            by_rank[rank] = by_rank.get(rank, 0.0) + taken_s
        return max(by_rank.values(), default=0.0)


def read_repeats(
    folder: Path,
    precision: str,
    most_tokens: int | None = None,
    asked: RepeatsAsked = _UNKNOWN,
) -> RepeatFindings:
    """Read what a strategy left in its folder; no figures if it answered only once.

    `most_tokens` is what an answer may have at most; None if it is not known.
    """
    passes: dict[int, _Pass] = {}
    longest = longest_line(most_tokens)
    again = LeftLines(
        folder, "repeats", most_lines(asked.results * asked.times), longest
    )
    for row in again.rows({*_NEEDED, "repeat"}):
        if isinstance(row["repeat"], int):
            passes.setdefault(row["repeat"], _Pass(most_tokens)).add(row)
    if not passes:
        return RepeatFindings(None, tuple(again.faults))
    first = _Pass(most_tokens)
    # Their faults are those of the shards.
    once = LeftLines(folder, "outputs", most_lines(asked.results), longest)
    for row in once.rows(_NEEDED):
        first.add(row)
    figures = _figures(folder, precision, first, passes)
    return RepeatFindings(figures, tuple(again.faults))


def _figures(
    folder: Path, precision: str, first: _Pass, passes: Mapping[int, _Pass]
) -> RepeatFigures | None:
    comparisons = [
        compare(first.answers, again.answers, precision) for again in passes.values()
    ]
    compared = sum(one.compared for one in comparisons)
    if not compared:
        return None
    return RepeatFigures(
        len(passes) + 1,
        sum(one.same for one in comparisons) / compared,
        sum(one.agreeing for one in comparisons) / compared,
        _paces(folder, {**passes, 0: first}),
    )


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % interval of a mean by Student's t; None for fewer than two."""
    count = len(values)
    if count < 2:
        return None
    t = _STUDENT[count - 2] if count - 2 < len(_STUDENT) else _NORMAL
    reach = t * statistics.stdev(values) / math.sqrt(count)
    mean = statistics.fmean(values)
    return mean - reach, mean + reach


def _key(row: Mapping[str, Any]) -> Key:
    return str(row["variant"]), str(row["prompt_id"])


def _answer(row: Mapping[str, Any]) -> StrategyAnswer:
    ids = row.get("token_ids")
    return StrategyAnswer(
        str(row.get("completion") or ""),
        _numbers(ids) if isinstance(ids, list) else None,
        _numbers(row.get("logprobs")),
        _numbers(row.get("runner_up_ids")),
        _numbers(row.get("runner_up_logprobs")),
        str(row.get("finish_reason") or ""),
    )


def _numbers(value: Any) -> list[Any]:
    """The list, if it is one of numbers; else none."""
    if not isinstance(value, list):
        return []
    found = cast(list[Any], value)
    return found if all(isinstance(one, int | float) for one in found) else []


def _figure(value: Any) -> float | None:
    """A number from 0 up that is not absurdly large; None for anything else."""
    if not isinstance(value, int | float) or not 0 <= value < 2.0**63:
        return None
    return float(value)


def _paces(folder: Path, passes: Mapping[int, _Pass]) -> tuple[float, ...]:
    """Return the tokens per second of each pass, by the time of the slowest rank.

    Nothing is believed if a pass states less time than its own answers took.
    """
    paces: list[float] = []
    for number, ranks in enumerate(zip(*_stated_s(folder), strict=False)):
        one = passes.get(number)
        seconds = max(ranks)
        if one is None:
            break
        if not one.is_possible or not seconds or one.answers_s > ROUNDED * seconds:
            return ()
        paces.append(one.tokens / seconds)
    return tuple(paces)


def _stated_s(folder: Path) -> Iterator[list[float]]:
    """Yield the seconds of all passes of each rank that states some.

    Workers that an engine has started state none.
    """
    for path in sorted(folder.glob("metrics/*.json")):
        try:
            passes: Any = read_left_object(folder, path.relative_to(folder))["passes"]
            seconds = [_figure(one["seconds"]) for one in passes]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        known = [one for one in seconds if one is not None]
        if known and len(known) == len(seconds):
            yield known
