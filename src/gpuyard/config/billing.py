"""The settings of what jobs cost."""

from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from functools import cached_property
from typing import Annotated, Any, Self, cast

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from gpuyard.config.sections import SettingsSection
from gpuyard.domain.exchange_rates import Currency, ExchangeRate, ExchangeRates
from gpuyard.domain.validation import faults_of


def _listed(rates: Any) -> Any:
    """Rates by currency, as a list of rates without dates."""
    if not isinstance(rates, Mapping):
        return rates
    by_currency = cast("Mapping[Any, Any]", rates)
    return [_without_date(name, rate) for name, rate in by_currency.items()]


def _without_date(currency: Any, rate: Any) -> ExchangeRate:
    try:
        return ExchangeRate.model_validate({"currency": currency, "rate": rate})
    except ValidationError as error:
        # There is no field of this name; the currency is the field.
        (fault, *_) = faults_of(error, ExchangeRate)
        raise ValueError(f"@{currency}@{fault.fault}; {fault.remedy}") from None


class BillingSettings(SettingsSection):
    """`local_price_per_hour`: what a job on one's own hardware costs; unset, its tier's
    list price.

    `currency` is that of bills, of `max_price`, and of budgets that name no other;
    `rates` has the value of one unit of each other currency in it, from which day on.
    """

    local_price_per_hour: Decimal | None = Field(default=None, ge=0)
    currency: Currency = "USD"
    rates: Annotated[tuple[ExchangeRate, ...], BeforeValidator(_listed)] = ()

    @model_validator(mode="after")
    def _each_day_has_one_rate(self) -> Self:
        counts = Counter((each.currency, each.date) for each in self.rates)
        for number, each in enumerate(self.rates):
            if each.currency == self.currency:
                raise ValueError(
                    f"@rates.{number}.currency@is {each.currency}, in which bills are;"
                    " leave it out: its rate is 1"
                )
            if counts[each.currency, each.date] > 1:
                day = "without a date" if each.date is None else f"from {each.date}"
                raise ValueError(
                    f"@rates.{number}@is one of two rates of {each.currency} {day};"
                    " give one"
                )
        return self

    @cached_property
    def exchange(self) -> ExchangeRates:
        """The rates by day."""
        return ExchangeRates(self.currency, self.rates)
