"""The settings of what jobs cost: currencies and their rates."""

from fractions import Fraction

import pytest

from gpuyard.config.paths import Home
from gpuyard.config.settings import load_settings
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.exchange_rates import ExchangeRates, day_of

NOVEMBER = day_of(1_793_491_200)  # 2026-11-01


def rates(tmp_path, text: str) -> ExchangeRates:
    home = Home(tmp_path)
    home.settings.write_text(f"[billing]\n{text}")
    return load_settings(home).billing.exchange


def test_a_rate_holds_from_its_day_until_the_next(tmp_path):
    found = rates(
        tmp_path,
        """
        currency = "EUR"
        rates = [
            {currency = "USD", date = 2026-11-03, rate = 0.93},
            {currency = "USD", date = 2026-11-01, rate = 0.92},
            {currency = "CNY", rate = 0.13},
            {currency = "CNY", date = "2026-11-02", rate = 0.12},
        ]
        """,
    )
    days = range(NOVEMBER - 1, NOVEMBER + 4)
    dollars = [found.rate("USD", day) for day in days]
    assert dollars == [
        None,
        Fraction("0.92"),
        Fraction("0.92"),
        Fraction("0.93"),
        Fraction("0.93"),
    ]
    yuan = [found.rate("CNY", day) for day in days]
    assert yuan[:3] == [Fraction("0.13"), Fraction("0.13"), Fraction("0.12")]
    assert found.rate("EUR", NOVEMBER) == 1
    assert found.rate("JPY", NOVEMBER) is None
    both = found.between("USD", "CNY", NOVEMBER + 2)
    assert both == Fraction("0.93") / Fraction("0.12")
    assert str(found.missing("USD")) == "USD before 2026-11-01"
    assert str(found.missing("JPY")) == "JPY"


def test_the_days_on_which_rates_change_in_a_time(tmp_path):
    found = rates(
        tmp_path,
        """
        rates = [
            {currency = "EUR", date = 2026-11-01, rate = 1.1},
            {currency = "EUR", date = 2026-11-03, rate = 1.2},
            {currency = "CNY", rate = 0.14},
        ]
        """,
    )
    begin = NOVEMBER * 86_400.0
    end = begin + 2 * 86_400.0
    assert found.changes(begin, end) == []
    assert found.changes(begin, end + 1) == [NOVEMBER + 2]
    assert found.changes(begin - 1, end) == [NOVEMBER]
    assert found.changes(begin - 1, end + 1) == [NOVEMBER, NOVEMBER + 2]


def test_rates_without_dates_are_named_by_currency(tmp_path):
    found = rates(tmp_path, "rates = { CNY = 0.14 }")
    assert found.rate("CNY", 0) == Fraction("0.14")


def test_rates_from_the_environment(tmp_path, monkeypatch):
    text = '[{"currency": "CNY", "date": "2026-11-01", "rate": "0.14"}]'
    monkeypatch.setenv("GPUYARD_BILLING__RATES", text)
    assert rates(tmp_path, "").rate("CNY", NOVEMBER) == Fraction("0.14")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rates = { EUR = inf }", "billing.rates.EUR: is inf"),
        ("rates = { EUR = 0 }", "billing.rates.EUR: is 0 (must be more than 0)"),
        ("rates = { euro = 1.1 }", "billing.rates.euro: is 'euro'"),
        ("rates = { USD = 1 }", "is USD, in which bills are (leave it out"),
        (
            "rates = [{currency = 'EUR', date = 2026-11-31, rate = 1}]",
            "is not valid TOML",
        ),
        (
            "rates = [{currency = 'EUR', date = 'soon', rate = 1}]",
            "billing.rates.0.date: is 'soon'",
        ),
        (
            "rates = [{currency = 'EUR', date = 2026-11-01}]",
            "billing.rates.0.rate: is missing",
        ),
        (
            "rates = [{currency = 'EUR', rate = 1}, {currency = 'EUR', rate = 2}]",
            "billing.rates.0: is one of two rates of EUR without a date (give one)",
        ),
        (
            "rates = [{currency = 'EUR', day = 2026-11-01, rate = 1}]",
            "billing.rates.0.day: is not a field",
        ),
        ("currency = 'euro'", "billing.currency: is 'euro'"),
    ],
)
def test_a_mistake_in_a_rate_is_named(tmp_path, text, said):
    with pytest.raises(InvalidInputError) as refused:
        rates(tmp_path, text)
    assert said in str(refused.value)
