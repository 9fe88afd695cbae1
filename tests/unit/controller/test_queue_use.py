"""What an attempt in an external queue uses, as points of its curves."""

from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuyard.controller.queue_use import QueueUse
from gpuyard.domain import wire
from gpuyard.domain.errors import ProviderError
from gpuyard.domain.shape import Placement
from gpuyard.providers.program_use import ProgramUse

pytestmark = pytest.mark.anyio
AWAY = ProviderError("The daemon does not answer.", "docker", "NOT_CONNECTED")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Queue:
    """A provider that gives these answers, and then knows nothing."""

    def __init__(self, *answers: ProgramUse | ProviderError | None) -> None:
        self._answers = iter(answers)

    async def use_of(self, reference: str) -> ProgramUse | None:
        assert reference == "container"
        answer = next(self._answers, None)
        if isinstance(answer, ProviderError):
            raise answer
        return answer


async def followed(
    *answers: ProgramUse | ProviderError | None,
    started_at: float = 101.0,
) -> tuple[list[Any], dict[str, float]]:
    """The points of an attempt on GPU-a, asked every two seconds, and its totals."""
    seconds: Iterator[int] = count(102, 2)
    told: list[wire.SeriesPoint] = []
    gpu = SimpleNamespace(
        uuid="GPU-a", memory_mb=1000, free_mb=400, utilization=0.5, problem=None
    )
    attempt = SimpleNamespace(
        id="att_1",
        provider_ref="container",
        created_at=100.0,
        started_at=started_at,
        placements=(Placement("node_1", ("GPU-a",)),),
    )
    use = QueueUse(
        cast("Any", Queue(*answers)),
        cast("Any", attempt),
        lambda: {"GPU-a": cast("Any", gpu)},
        0.001,
        lambda: float(next(seconds)),
        told.extend,
    )
    await use.follow()
    return [(point.name, point.value) for point in told], use.totals()


async def test_processors_memory_and_gpus_are_curves_of_the_job() -> None:
    of_gpu = [("system/gpu0_memory_mb", 600.0), ("system/gpu0_utilization", 0.5)]
    found, totals = await followed(ProgramUse(10.0, 60.0), ProgramUse(13.0, 50.0))
    assert found == [
        ("system/memory_mb", 60.0),
        *of_gpu,
        ("system/memory_mb", 50.0),
        ("system/cpu_cores", 1.5),
        *of_gpu,
    ]
    assert totals == {
        "cpu_s": 13.0,
        "peak_mb": 60.0,
        wire.GPU_UTILIZATION: 0.5,
        wire.GPU_MEMORY_MB: 600.0,
    }


async def test_what_was_used_before_a_server_looked_is_not_known() -> None:
    found, totals = await followed(ProgramUse(900.0, 60.0), started_at=1.0)
    assert ("system/memory_mb", 60.0) in found
    assert totals == {}


async def test_a_daemon_that_is_away_for_a_moment_is_asked_again() -> None:
    away = [AWAY] * 5
    found, _ = await followed(None, *away, ProgramUse(1.0, 50.0), *away, None, None)
    assert [value for name, value in found if name == "system/memory_mb"] == [50.0]


async def test_a_provider_that_knows_nothing_is_not_asked_for_ever() -> None:
    assert await followed(None, None, None, ProgramUse(1.0, 50.0)) == ([], {})
