"""What a rented machine costs beside itself: its disk, its public address, and what it
sends to the internet.

The prices are dated data in a file; the settings may give others.
"""

import csv
from collections.abc import Iterable, Mapping
from dataclasses import replace
from decimal import Decimal
from functools import cache
from importlib.resources import files
from io import StringIO

from gpuyard.domain.bills import CostPart
from gpuyard.domain.price_parts import PricePart
from gpuyard.providers.instances.api import Market
from gpuyard.providers.instances.settings import ExtraPart, InstanceSettings

# Clouds bill a disk of a month by the hours that it was there.
_MONTH_HOURS = 730
_QUANTUM = Decimal("0.000001")
_ExtraPrice = tuple[Decimal, str]
"""A price, and its source."""


def with_extras(
    markets: Iterable[Market], provider: str, settings: InstanceSettings
) -> list[Market]:
    """The markets, each with what its machines cost besides. What the cloud's own price
    has already, and what has no known price, is left out.
    """
    return [
        replace(market, beside=tuple(_beside(market, provider, settings)))
        for market in markets
    ]


def _beside(
    market: Market, provider: str, settings: InstanceSettings
) -> Iterable[PricePart]:
    within = {one.part for one in market.within}
    for part, units in _units_per_hour(market, settings).items():
        if part in within or not units:
            continue
        found = _price(market, provider, part, settings)
        if found is not None:
            (price, source) = found
            yield PricePart(part, (price * units).quantize(_QUANTUM), source)


def _units_per_hour(
    market: Market, settings: InstanceSettings
) -> Mapping[ExtraPart, Decimal]:
    """How much of each part a machine uses in an hour."""
    disk_gb = max(settings.disk_gb, market.disk_gb)
    return {
        CostPart.DISK: Decimal(disk_gb) / _MONTH_HOURS,
        CostPart.ADDRESS: Decimal(settings.pays_for_address),
        CostPart.TRAFFIC: Decimal(str(settings.traffic_gb_per_hour)),
    }


def _price(
    market: Market, provider: str, part: ExtraPart, settings: InstanceSettings
) -> _ExtraPrice | None:
    """The price of a unit in the currency of the market; None if it is not known."""
    given = settings.extra_prices.get(part)
    if given is not None:
        return given, f"providers.{provider}.extra_prices"
    rows = _catalogue()
    for region in (market.region, ""):
        found = rows.get((provider, region, part, market.currency))
        if found is not None:
            return found
    return None


@cache
def _catalogue() -> Mapping[tuple[str, str, str, str], _ExtraPrice]:
    """By provider, region (empty: any), part and currency."""
    folder = files("gpuyard.providers.instances")
    text = folder.joinpath("extra_prices.csv").read_text()
    return {
        (row["provider"], row["region"], row["part"], row["currency"]): (
            Decimal(row["price"]),
            f"{row['source']}, {row['date']}",
        )
        for row in csv.DictReader(StringIO(text))
    }
