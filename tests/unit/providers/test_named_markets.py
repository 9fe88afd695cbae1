"""Which markets the settings of a cloud let through."""

from decimal import Decimal
from typing import Any

import pytest

from gpuyard.providers.instances.api import MachineType, Market
from gpuyard.providers.instances.markets import is_offered
from gpuyard.providers.instances.settings import InstanceSettings


def market(gpu: str = "", memory_gb: float = 0.0, **fields: Any) -> Market:
    kind = MachineType("big.one", gpu, int(bool(gpu)), memory_gb)
    given: dict[str, Any] = {
        "type": kind,
        "region": "here-1",
        "zone": "here-1a",
        "spot": False,
        "price_per_hour": Decimal(2),
        "currency": "USD",
        "price_source": "a test",
        **fields,
    }
    return Market(**given)


@pytest.mark.parametrize(
    ("gpu", "memory_gb", "names", "is_named"),
    [
        ("A100", 80, ["a100-80gb"], True),
        ("A100", 80, ["A100"], True),
        ("A100", 40, ["a100-80gb"], False),
        ("T4", 16, ["a100", "t4"], True),
        ("H200", 141, ["big.one"], True),
        ("", 0, ["t4"], False),
        ("", 0, ["big.one"], True),
        ("Unheard Of", 10, ["t4"], False),
        ("Unheard Of", 10, [], True),
    ],
)
def test_types_are_named_by_type_or_by_class_of_gpu(
    gpu: str, memory_gb: float, names: list[str], is_named: bool
) -> None:
    settings = InstanceSettings(home="/", types=tuple(names))
    assert is_offered(market(gpu, memory_gb), settings) is is_named


def test_what_costs_too_much_or_is_spot_is_left_out() -> None:
    settings = InstanceSettings(home="/", max_price=Decimal(2), spot=False)
    assert is_offered(market(), settings)
    assert not is_offered(market(price_per_hour=Decimal("2.01")), settings)
    assert not is_offered(market(price_per_hour=None), settings)
    assert not is_offered(market(spot=True), settings)
