"""What the answer of Docker's daemon says of the use of a container."""

from typing import Any

import pytest

from gpuyard.providers.docker.container import use_in
from gpuyard.providers.program_use import ProgramUse

MIB = 1 << 20
CPU = {"cpu_usage": {"total_usage": 2_500_000_000}}


@pytest.mark.parametrize(
    ("stats", "expected"),
    [
        (
            {"usage": 30 * MIB, "stats": {"inactive_file": 10 * MIB}},
            ProgramUse(2.5, 20.0),
        ),
        (
            {
                "usage": 30 * MIB,
                "stats": {"inactive_file": 1, "total_inactive_file": 10 * MIB},
            },
            ProgramUse(2.5, 20.0),
        ),
        ({"usage": 30 * MIB}, ProgramUse(2.5, 30.0)),
        ({}, None),
    ],
    ids=["groups of version 2", "groups of version 1", "no details", "it has ended"],
)
def test_caches_are_no_memory_of_a_program(
    stats: dict[str, Any], expected: ProgramUse | None
) -> None:
    assert use_in({"memory_stats": stats, "cpu_stats": CPU}) == expected
    assert use_in({"memory_stats": stats, "cpu_stats": {}}) is None
