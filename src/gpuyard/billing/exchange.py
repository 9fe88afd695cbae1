"""What costs are worth in another currency, each second at the rate of its day."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
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


def rate_pieces(
    begin: float, end: float, last: float, changes: Sequence[int]
) -> Iterator[tuple[int, float, float]]:
    """The pieces from `begin` until `end` in which no rate changes: of each a UTC day
    that has its rates, its begin and its end. `changes` are the days on which rates
    change, in order. After `last` there is nothing more: so the piece of `last` goes
    until `end`.
    """
    day = day_of(begin)
    at = begin
    for following in changes[bisect_right(changes, day) :]:
        midnight = float(following * DAY_S)
        if midnight >= min(last, end):
            break
        yield day, at, midnight
        day = following
        at = midnight
    yield day, at, end


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
    changes = exchange.rates.changes(since, min(until, end))
    return exchange.sum(
        paid.currency,
        (
            (day, part(total, paid.began, paid.ran_s, first, last))
            for day, first, last in rate_pieces(since, end, until, changes)
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
