"""What currencies are worth in the currency of bills, by day. Days are those of UTC,
counted from 1970.
"""

import datetime
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.types import StringConstraints

from gpuyard.domain.strict_model import StrictModel

DAY_S = 86_400
_EPOCH = datetime.date(1970, 1, 1).toordinal()
# Before all dates.
_EVER = -_EPOCH

Currency = Annotated[str, StringConstraints(pattern=r"^[A-Z]{3}$")]
Rate = Annotated[Decimal, Field(gt=0, le=Decimal("1e9"), decimal_places=9)]


class ExchangeRate(StrictModel):
    """One unit of `currency` is worth `rate` in the currency of bills, from the day
    `date` on, until the next rate of the currency; without a date, before all others.
    """

    currency: Currency
    rate: Rate
    date: datetime.date | None = None

    @property
    def day(self) -> int:
        """The first day of the rate."""
        return _EVER if self.date is None else self.date.toordinal() - _EPOCH


class MissingRate(BaseModel):
    """A currency of which no rate is known, or none `before` a day."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    currency: str
    before: datetime.date | None = None

    def __str__(self) -> str:
        """For people."""
        if self.before is None:
            return self.currency
        return f"{self.currency} before {self.before}"


def day_of(at: float) -> int:
    """The day of a time (UTC seconds)."""
    return int(at // DAY_S)


@dataclass(frozen=True, slots=True)
class _Series:
    """The rates of one currency: the first days, ascending, and the rate from each."""

    days: Sequence[int]
    rates: Sequence[Fraction]

    def on(self, day: int) -> Fraction | None:
        position = bisect_right(self.days, day)
        return self.rates[position - 1] if position else None

    def changes(self, begin: float, end: float) -> Sequence[int]:
        """The days on which a rate begins, after `begin` and before `end` (UTC
        seconds).
        """
        following = bisect_right(self.days, day_of(begin))
        after = bisect_left(self.days, end / DAY_S)
        return self.days[following:after]


class ExchangeRates:
    """The rates of all currencies in the one of bills, whose own rate is always 1."""

    def __init__(self, currency: str, rates: Iterable[ExchangeRate]) -> None:
        self.currency = currency
        by_currency: dict[str, list[ExchangeRate]] = {}
        for each in rates:
            by_currency.setdefault(each.currency, []).append(each)
        self._series = {currency: _Series([_EVER], [Fraction(1)])}
        for name, some in by_currency.items():
            ordered = sorted(some, key=lambda each: each.day)
            days = [each.day for each in ordered]
            self._series[name] = _Series(days, [Fraction(r.rate) for r in ordered])

    def rate(self, currency: str, day: int) -> Fraction | None:
        """What one unit is worth on that day; None if no rate is known."""
        series = self._series.get(currency)
        return series.on(day) if series else None

    def rate_at(self, currency: str, at: float) -> float | None:
        """The same at a time (UTC seconds)."""
        rate = self.rate(currency, day_of(at))
        return None if rate is None else float(rate)

    def between(self, currency: str, wanted: str, day: int) -> Fraction | None:
        """What one unit of `currency` is worth in `wanted` on that day."""
        if currency == wanted:
            return Fraction(1)
        from_ = self.rate(currency, day)
        into = self.rate(wanted, day)
        return None if from_ is None or into is None else from_ / into

    def changes(self, begin: float, end: float) -> list[int]:
        """The days on which a rate of any currency begins, after `begin` and before
        `end` (UTC seconds), in order.
        """
        series = self._series.values()
        return sorted({day for each in series for day in each.changes(begin, end)})

    def missing(self, currency: str) -> MissingRate:
        """Says of which days no rate of the currency is known."""
        series = self._series.get(currency)
        if series is None or series.days[0] == _EVER:
            return MissingRate(currency=currency)
        first = datetime.date.fromordinal(series.days[0] + _EPOCH)
        return MissingRate(currency=currency, before=first)
