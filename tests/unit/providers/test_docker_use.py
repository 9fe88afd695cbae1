"""What the answer of Docker's daemon says of the use of a container."""

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from gpuyard.domain.errors import ProviderError
from gpuyard.providers.docker.container import use_in
from gpuyard.providers.docker.daemon import DockerDaemon
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


def test_a_daemon_that_hangs_takes_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The threads are those of the whole server."""
    asked_now: list[int] = []
    most: list[int] = []

    def stats(**_: Any) -> dict[str, Any]:
        asked_now.append(1)
        most.append(len(asked_now))
        time.sleep(0.02)
        asked_now.pop()
        return {"memory_stats": {"usage": MIB}, "cpu_stats": CPU}

    def found(_: str) -> Any:
        return SimpleNamespace(stats=stats)

    async def ask() -> list[ProgramUse | None]:
        daemon = DockerDaemon(None)
        client = SimpleNamespace(containers=SimpleNamespace(get=found))
        monkeypatch.setattr(daemon, "_client", client)
        return await asyncio.gather(*(daemon.use_of("job") for _ in range(4)))

    assert asyncio.run(ask()) == [ProgramUse(2.5, 1.0)] * 4
    assert most == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("fault", "is_away"),
    [
        (requests.exceptions.ReadTimeout("60 seconds"), False),
        (requests.exceptions.ConnectionError("refused"), True),
    ],
    ids=["it is slow", "it is gone"],
)
@pytest.mark.parametrize("at", ["finding", "measuring"])
def test_a_daemon_that_measures_too_slowly_is_not_away(
    monkeypatch: pytest.MonkeyPatch, fault: Exception, at: str, *, is_away: bool
) -> None:
    """Containers that are killed while it is away count as preempted."""

    def fail(*_: Any, **__: Any) -> Any:
        raise fault

    def found(_: str) -> Any:
        return SimpleNamespace(stats=fail)

    daemon = DockerDaemon(None)
    get = fail if at == "finding" else found
    client = SimpleNamespace(containers=SimpleNamespace(get=get))
    monkeypatch.setattr(daemon, "_client", client)
    with pytest.raises(ProviderError, match="Docker"):
        asyncio.run(daemon.use_of("job"))
    assert daemon.was_away is is_away
