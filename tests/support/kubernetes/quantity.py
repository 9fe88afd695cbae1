"""Quantities: `500m`, `2Gi`, `1e3`."""

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation

PATTERN = r"^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$"
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL = {
    "n": -9,
    "u": -6,
    "m": -3,
    "": 0,
    "k": 3,
    "M": 6,
    "G": 9,
    "T": 12,
    "P": 15,
    "E": 18,
}


def parse(text: object) -> Decimal:
    """Its value; ValueError, worded as the server does, where it is none."""
    match = re.fullmatch(r"([+-]?[0-9.]+)(.*)", str(text))
    try:
        number = Decimal(match[1] if match else "x")
        suffix = match[2] if match else ""
        if suffix in _BINARY:
            return number * 2 ** _BINARY[suffix]
        if suffix in _DECIMAL:
            return number.scaleb(_DECIMAL[suffix])
        return Decimal(str(text))
    except InvalidOperation:
        raise ValueError(
            f"quantities must match the regular expression '{PATTERN}'"
        ) from None


def amounts(values: Mapping[str, object] | None) -> dict[str, Decimal]:
    """A whole `requests`, `limits` or `allocatable`."""
    return {name: parse(value) for name, value in (values or {}).items()}


def text(value: Decimal) -> str:
    """A plain number, in thousandths where it is no whole one."""
    return str(int(value)) if value == int(value) else f"{int(value * 1000)}m"
