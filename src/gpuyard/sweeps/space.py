"""What a parameter of a sweep may be: some values, or a range.

A value is a text from the beginning to the end: as it was written, and as the program
gets it.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from gpuyard.domain.errors import InvalidInputError, quoted

_HOW = "write values (2,4,8), a range (1..10, 0..1:0.1) or log:1e-4..1e-1"
_MOST_CELLS = 100_000
# The label of a run holds a value.
_LONGEST = 200


@dataclass(frozen=True, slots=True)
class Choice:
    """One of these values."""

    values: tuple[str, ...]

    def draw(self, source: random.Random) -> str:
        """A random one."""
        return source.choice(self.values)

    def cells(self, _field: str) -> tuple[str, ...]:
        """All."""
        return self.values


@dataclass(frozen=True, slots=True)
class Range:
    """A number from `low` to `high`, both included.

    `whole`: without a fraction. `log`: its logarithm is drawn evenly. `step`: only
    `low` and what is a multiple of it away.
    """

    low: float
    high: float
    step: float | None = None
    log: bool = False
    whole: bool = False

    def draw(self, source: random.Random) -> str:
        """A random one."""
        if self.log:
            drawn = math.exp(source.uniform(math.log(self.low), math.log(self.high)))
            return self.text(min(max(drawn, self.low), self.high))
        if self.step is not None:
            return self.text(self.low + source.randint(0, self._steps()) * self.step)
        if self.whole:
            return self.text(source.randint(int(self.low), int(self.high)))
        return self.text(source.uniform(self.low, self.high))

    def cells(self, field: str) -> tuple[str, ...]:
        """All, if they can be counted; else InvalidInputError for `field`."""
        step = self.step or (1 if self.whole and not self.log else None)
        if step is None:
            remedy = "give --trials N to draw N times, or list values, such as 0.1,0.01"
            fault = "is a range without a step, which no grid can try whole"
            raise InvalidInputError.of(field, fault, remedy)
        count = self._steps() + 1
        if count > _MOST_CELLS:
            fault = f"has {count} values; a grid may have {_MOST_CELLS}"
            raise InvalidInputError.of(field, fault, "give a larger step, or --trials")
        return tuple(self.text(self.low + number * step) for number in range(count))

    def text(self, value: float) -> str:
        """The value as the program gets it."""
        if self.whole:
            return str(round(value))
        # Multiples of a step that no binary fraction can be: 0.1 three times is 0.3.
        return repr(value if self.step is None else round(value, 12))

    def number(self, text: str) -> float | int:
        """The value as a number."""
        return int(text) if self.whole else float(text)

    def _steps(self) -> int:
        return math.floor((self.high - self.low) / (self.step or 1) + 1e-9)


Parameter = Choice | Range


def parse(field: str, given: Any) -> Parameter:
    """What a flag (text) or a TOML file (text, number, list or table) gives for a
    parameter; InvalidInputError for `field`.
    """
    match given:
        case str():
            return _from_text(field, given)
        case list():
            return _choice(field, cast("list[Any]", given))
        case dict():
            return _from_table(field, cast("dict[str, Any]", given))
        case bool() | int() | float():
            return _choice(field, [given])
        case _:
            raise InvalidInputError.of(field, f"is {given!r}", _HOW)


def _from_text(field: str, text: str) -> Parameter:
    log = text.startswith("log:")
    body = text.removeprefix("log:")
    if ".." not in body:
        if log:
            raise InvalidInputError.of(field, f"is {quoted(text)}", _HOW)
        return _choice(field, [part.strip() for part in body.split(",")])
    low, _, rest = body.partition("..")
    high, _, step = rest.partition(":")
    table = {"low": low, "high": high, "log": log, **({"step": step} if step else {})}
    return _from_table(field, table)


def _from_table(field: str, table: Mapping[str, Any]) -> Range:
    known = {"low", "high", "step", "log"}
    for name in table:
        if name not in known:
            remedy = "use low, high, step and log"
            raise InvalidInputError.of(f"{field}.{name}", "is not known", remedy)
    low = _number(field, "low", table.get("low"))
    high = _number(field, "high", table.get("high"))
    step = _number(field, "step", table["step"]) if "step" in table else None
    whole = all(
        isinstance(one, int) for one in (low, high, 0 if step is None else step)
    )
    found = Range(low, high, step, bool(table.get("log", False)), whole)
    _check(field, found)
    return found


def _number(field: str, name: str, given: Any) -> float | int:
    """A whole number stays one."""
    if isinstance(given, int | float) and not isinstance(given, bool):
        number = given
    else:
        number = _parsed(str(given))
    if number is None or not math.isfinite(number):
        said = "is missing" if given is None else f"is {quoted(str(given))}"
        raise InvalidInputError.of(f"{field}: {name}", said, _HOW)
    return number


def _parsed(text: str) -> float | int | None:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


def _check(field: str, found: Range) -> None:
    """InvalidInputError for a range that has no value, or no logarithm."""
    if found.low > found.high:
        fault = f"goes from {found.low} down to {found.high}"
        raise InvalidInputError.of(field, fault, "write the lower end first")
    if found.step is not None and found.step <= 0:
        raise InvalidInputError.of(field, f"has step {found.step}", "use one above 0")
    if found.log and found.low <= 0:
        fault = f"begins at {found.low}, which has no logarithm"
        raise InvalidInputError.of(field, fault, "begin above 0")
    if found.log and found.step is not None:
        fault = "has a step and a logarithm"
        raise InvalidInputError.of(field, fault, "leave one of them out")


def _choice(field: str, values: Sequence[Any]) -> Choice:
    texts = tuple(_text(field, value) for value in values)
    if not texts or len(set(texts)) != len(texts):
        fault = "names a value twice" if texts else "names no value"
        raise InvalidInputError.of(field, fault, "name each value once")
    return Choice(texts)


def _text(field: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int | float):
        raise InvalidInputError.of(field, f"holds {value!r}", "use texts and numbers")
    text = str(value)
    if not text or len(text) > _LONGEST or not text.isprintable():
        fault = f"holds {quoted(text[:40])}"
        remedy = f"use 1 to {_LONGEST} printable characters"
        raise InvalidInputError.of(field, fault, remedy)
    return text


def grid(parameters: Mapping[str, Parameter]) -> int:
    """How many cells their grid has."""
    sizes = [len(one.cells(f"param {name}")) for name, one in parameters.items()]
    count = math.prod(sizes)
    if count > _MOST_CELLS:
        fault = f"make a grid of {count} cells; it may have {_MOST_CELLS}"
        raise InvalidInputError.of("parameters", fault, "give --trials N to draw")
    return count


def cell(parameters: Mapping[str, Parameter], number: int) -> dict[str, str]:
    """The values of a cell of their grid; the last parameter changes first."""
    found: dict[str, str] = {}
    for name in reversed([*parameters]):
        values = parameters[name].cells(name)
        number, place = divmod(number, len(values))
        found[name] = values[place]
    return {name: found[name] for name in parameters}


def drawn(
    parameters: Mapping[str, Parameter], seed: int, number: int
) -> dict[str, str]:
    """Random values: always the same for a seed and the number of a run."""
    source = random.Random(f"{seed}/{number}")
    return {name: one.draw(source) for name, one in parameters.items()}
