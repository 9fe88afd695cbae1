"""The named sizes of S4, as dated data that a file may override."""

from decimal import Decimal

import pytest

from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.tiers import Tier, Tiers


@pytest.mark.parametrize(
    (
        "tier_id",
        "cpu",
        "memory_gb",
        "gpus",
        "gpu_memory_gb",
        "max_runtime_s",
        "price",
        "instance",
    ),
    [
        ("CPU_SMALL", 0.5, 0.5, 0, 0, 30, "0.02", None),
        ("CPU_LARGE", 2, 4, 0, 0, 600, "0.0416", "t3.medium"),
        ("GPU_SMALL", 4, 16, 1, 16, 7200, "0.526", "g4dn.xlarge"),
        ("GPU_MEDIUM", 8, 32, 1, 16, 28800, "0.752", "g4dn.2xlarge"),
        ("GPU_LARGE", 8, 32, 1, 24, 86400, "2.012", "g5.2xlarge"),
    ],
)
def test_the_built_in_tiers(
    tier_id, cpu, memory_gb, gpus, gpu_memory_gb, max_runtime_s, price, instance
):
    tier = Tiers().get(tier_id)
    assert (tier.cpu, tier.memory_gb, tier.gpu_count, tier.gpu_memory_gb) == (
        cpu,
        memory_gb,
        gpus,
        gpu_memory_gb,
    )
    assert (tier.max_runtime_s, tier.cost_per_hour, tier.instance) == (
        max_runtime_s,
        Decimal(price),
        instance,
    )
    assert tier.source
    assert tier.date


@pytest.mark.parametrize("name", ["GPU_SMALL", "gpu_small", "gpu-small", " Gpu_Small "])
def test_a_tier_is_found_however_it_is_written(name):
    assert Tiers().get(name).id == "GPU_SMALL"


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("GPU_SMAL", "GPU_SMALL"),
        ("gpu", "GPU_"),
        ("%%", "CPU_SMALL, CPU_LARGE, GPU_SMALL"),
    ],
)
def test_an_unknown_tier_gets_the_nearest(name, near):
    with pytest.raises(InvalidInputError) as caught:
        Tiers().get(name)
    (fault,) = caught.value.faults
    assert fault.field == "tier"
    assert near in fault.remedy


@pytest.mark.parametrize(
    ("needs", "expected"),
    [
        ((0.5, 0.5, 0, 0), "CPU_SMALL"),
        ((1, 0, 0, 0), "CPU_LARGE"),
        (
            (64, 512, 0, 0),
            "CPU_LARGE",
        ),  # more than any tier holds: the largest of its kind
        ((1, 0, 1, 0), "GPU_SMALL"),
        ((4, 16, 1, 16), "GPU_SMALL"),
        ((5, 16, 1, 16), "GPU_MEDIUM"),
        ((8, 32, 2, 16), "GPU_SMALL"),  # two GPUs, so half of the rest for each
        ((1, 1, 1, 24), "GPU_LARGE"),
        ((1, 1, 1, 80), "GPU_LARGE"),
    ],
)
def test_covering_is_the_cheapest_that_is_large_enough(needs, expected):
    assert Tiers().covering(*needs).id == expected


def test_an_override_replaces_the_built_in_row_and_may_add_one():
    mine = {
        "name": "x",
        "description": "x",
        "cpu": 1,
        "memory_gb": 1,
        "max_runtime_s": 60,
        "cost_per_hour": "0.5",
    }
    tiers = Tiers([Tier(id="CPU_SMALL", **mine), Tier(id="MINE", **mine)])
    assert tiers.get("cpu_small").cost_per_hour == Decimal("0.5")
    assert tiers.get("mine").currency == "USD"
    assert [tier.id for tier in tiers] == [
        "CPU_SMALL",
        "CPU_LARGE",
        "GPU_SMALL",
        "GPU_MEDIUM",
        "GPU_LARGE",
        "MINE",
    ]


def test_an_override_is_found_whatever_the_case_of_its_id():
    mine = {
        "name": "x",
        "description": "x",
        "cpu": 1,
        "memory_gb": 1,
        "max_runtime_s": 60,
        "cost_per_hour": 1,
    }
    assert Tiers([Tier(id="my-box", **mine)]).get("my-box").cpu == 1
