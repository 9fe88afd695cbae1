"""What costs are worth in another currency, each second at the rate of its day."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from gpuyard.billing.parts import micros, part
from gpuyard.domain.exchange_rates import DAY_S, ExchangeRates, MissingRate, day_of

# Amounts have six decimal places, and rates nine.
_PLACES = 15
_LEAST = Decimal(1).scaleb(-6)


@dataclass(frozen=True, slots=True)
class Exchange:
    """The worth of all currencies in the `wanted` one."""

    rates: ExchangeRates
    wanted: str

    def dated(self, begin: float, end: float) -> list[str]:
        """The currencies whose worth changes between these times (UTC seconds)."""
        return self.rates.dated(self.wanted, begin, end)

    def worth(self, currency: str, day: int) -> Fraction | None:
        """What one unit is worth on that day; None if that is not known."""
        return self.rates.between(currency, self.wanted, day)

    def sum(self, currency: str, by_day: Iterable[tuple[int, int]]) -> Fraction | None:
        """What amounts of some days, each as a day and millionths, are worth together,
        in millionths; None if a rate is missing. What costs nothing needs no rate.
        """
        total = Fraction(0)
        for day, paid in by_day:
            if paid:
                worth = self.worth(currency, day)
                if worth is None:
                    return None
                total += paid * worth
        return total

    def missing(self, currency: str) -> MissingRate:
        """Says which rate is not known, where one of this currency is missing."""
        is_known = self.rates.rate(currency, day_of(0)) is not None
        return self.rates.missing(self.wanted if is_known else currency)


@dataclass(frozen=True, slots=True)
class Paid:
    """What an attempt cost that began at `began` (UTC seconds) and ran for `ran_s`."""

    cost: Decimal
    currency: str
    began: float
    ran_s: float


def days_between(
    begin: float, end: float, last: float
) -> Iterator[tuple[int, float, float]]:
    """The days in UTC from `begin` until `end`, each with its begin and end in there.
    After `last` there is nothing more: so the day of `last` goes until `end`.
    """
    at = begin
    while True:
        day = day_of(at)
        midnight = float((day + 1) * DAY_S)
        if midnight >= min(last, end):
            yield day, at, end
            return
        yield day, at, midnight
        at = midnight


def worth_within(
    exchange: Exchange, paid: Paid, begin: float, end: float
) -> Fraction | None:
    """What the part of a cost is worth that belongs to the time from `begin` until
    `end`, in millionths; None if a rate is missing.
    """
    since = max(paid.began, begin)
    until = paid.began + paid.ran_s
    if since >= end or until < begin:
        return Fraction(0)
    total = micros(paid.cost)
    pieces = [(day_of(since), begin, end)]
    if paid.currency in exchange.dated(since, min(until, end)):
        pieces = list(days_between(since, end, until))
    return exchange.sum(
        paid.currency,
        (
            (day, part(total, paid.began, paid.ran_s, first, last))
            for day, first, last in pieces
        ),
    )


def exact(micros: Fraction) -> Decimal:
    """Millionths as an amount, with no fewer than six places, and more where it has
    them.
    """
    scaled = micros * 10 ** (_PLACES - 6)
    amount = Decimal(scaled.numerator // scaled.denominator).scaleb(-_PLACES)
    rounded = amount.quantize(_LEAST)
    return rounded if rounded == amount else amount.normalize()
