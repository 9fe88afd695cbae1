"""On-demand prices: from AWS's price list, or from a catalogue in a file.

A file has a row per type and region, each with its source and date. The package has
one; `gpuyard cloud prices aws --refresh` writes one to the home, whose rows come first.
"""

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from importlib.resources import files
from io import StringIO
from pathlib import Path
from typing import Any

from gpuyard.providers.aws.bills import bill_region
from gpuyard.providers.aws.calls import AwsCalls
from gpuyard.providers.instances.api import ListPrice

_LIST = "AWS price list"
_GPU_FAMILY = "GPU instance"
# What an ordinary machine with Linux costs.
_ORDINARY = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "capacitystatus": "Used",
    "preInstalledSw": "NA",
}


class PriceBook:
    """On-demand prices by region and type, in memory."""

    def __init__(self, rows: Iterable[ListPrice] = ()) -> None:
        self._prices = {(row.region, row.type): row for row in rows}

    def update(self, rows: Iterable[ListPrice]) -> None:
        """Let these rows come before those that are known."""
        self._prices.update({(row.region, row.type): row for row in rows})

    def find(self, region: str, type_name: str) -> ListPrice | None:
        """The price of a type in a region."""
        return self._prices.get((region, type_name))

    @property
    def rows(self) -> Sequence[ListPrice]:
        """All prices, by region and type."""
        return [self._prices[key] for key in sorted(self._prices)]


def catalogue(home: str) -> PriceBook:
    """The prices of the package, and before them those of the home's file."""
    book = PriceBook(_packaged())
    path = price_file(home)
    if home and path.is_file():
        book.update(read_rows(path.read_text()))
    return book


def price_file(home: str) -> Path:
    """The file of the home whose prices come before those of the package."""
    return Path(home) / "prices" / "aws.csv"


@cache
def _packaged() -> Sequence[ListPrice]:
    return read_rows(files("gpuyard.providers.aws").joinpath("prices.csv").read_text())


def read_rows(text: str) -> Sequence[ListPrice]:
    """The rows of a file."""
    return [
        ListPrice(
            row["type"],
            row["region"],
            Decimal(row["price_per_hour"]),
            row["currency"],
            row["source"],
            row["date"],
        )
        for row in csv.DictReader(StringIO(text))
    ]


def write_rows(path: Path, rows: Iterable[ListPrice]) -> None:
    """Write a file; one that is there stays until the new one is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    with part.open("w", newline="") as stream:
        names = [field.name for field in fields(ListPrice)]
        writer = csv.DictWriter(stream, names)
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
    part.replace(path)


# --- the price list ---


async def read_price_list(
    calls: AwsCalls, region: str, types: Iterable[str]
) -> Sequence[ListPrice]:
    """The prices of a region's GPU types, and of these types."""
    found = await _products(calls, region, {"instanceFamily": _GPU_FAMILY})
    for type_name in set(types) - {row.type for row in found}:
        found += await _products(calls, region, {"instanceType": type_name})
    return found


async def _products(
    calls: AwsCalls, region: str, narrowed: Mapping[str, str]
) -> list[ListPrice]:
    wanted = {**_ORDINARY, "regionCode": region, **narrowed}
    filters = [
        {"Type": "TERM_MATCH", "Field": field, "Value": value}
        for field, value in wanted.items()
    ]
    found: list[ListPrice] = []
    page: dict[str, Any] = {}
    while True:
        answer = await calls.call(
            "pricing",
            bill_region(region),
            "GetProducts",
            ServiceCode="AmazonEC2",
            Filters=filters,
            **page,
        )
        rows = [_price(json.loads(text), region) for text in answer["PriceList"]]
        found += [row for row in rows if row is not None]
        if not answer.get("NextToken"):
            return found
        page = {"NextToken": answer["NextToken"]}


def _price(product: Mapping[str, Any], region: str) -> ListPrice | None:
    type_name = product["product"]["attributes"]["instanceType"]
    for term in product["terms"].get("OnDemand", {}).values():
        for dimension in term["priceDimensions"].values():
            for currency, amount in dimension["pricePerUnit"].items():
                price = Decimal(amount)
                if price and dimension["unit"] == "Hrs":
                    today = f"{datetime.now(UTC):%Y-%m-%d}"
                    return ListPrice(
                        type_name, region, price.normalize(), currency, _LIST, today
                    )
    return None
