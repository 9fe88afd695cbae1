"""Machines that SkyPilot rents. A stand-in plays SkyPilot's Python API, and its machines
really join; the process that speaks to it is the real one.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpuyard.domain.errors import ProviderError
from gpuyard.providers.conformance import Case, Subject
from gpuyard.providers.instances.api import (
    SETTING,
    Instance,
    InstanceOrder,
    InstanceState,
)
from gpuyard.providers.skypilot.api import SkyPilotApi
from gpuyard.providers.skypilot.config import SkyPilotConfig
from gpuyard.providers.skypilot.machines import REGION
from gpuyard.providers.skypilot.provider import SkyPilotProvider
from tests.support.conformance import only
from tests.support.playing_skypilot import PlayedSkyPilot, playing_skypilot
from tests.support.rented_subject import rented_subject

LAB = "lab"
# What all clouds share is tested with others each day; `make soak` tests all here.
DAILY: set[str] = set()
_USER_DATA = f"https://127.0.0.1:1 {'0' * 64}.{'c' * 20}"


@pytest.fixture
def played(tmp_path: Path) -> Iterator[PlayedSkyPilot]:
    with playing_skypilot(tmp_path / "cloud") as played:
        yield played


@asynccontextmanager
async def open_api(
    played: PlayedSkyPilot, **settings: str
) -> AsyncGenerator[SkyPilotApi]:
    given = {"home": str(played.cloud.folder), **settings}
    api = SkyPilotApi(SkyPilotConfig.read(played.settings(**given)))
    try:
        yield api
    finally:
        await api.close()


def order(owner: str, *, spot: bool = False) -> InstanceOrder:
    return InstanceOrder(
        owner=owner,
        installation=LAB,
        name="skypilot-1",
        type="gpu.one",
        region="here-1",
        zone="aws/here-1",
        spot=spot,
        user_data=_USER_DATA,
        disk_gb=100,
    )


async def until(api: SkyPilotApi, owner: str, state: InstanceState) -> Instance:
    """The machine, as soon as it is in this state."""
    while True:
        found = await api.find(owner, LAB)
        if found is not None and found.state is state:
            return found
        await asyncio.sleep(0.02)


@asynccontextmanager
async def open_subject(folder: Path) -> AsyncGenerator[Subject]:
    with playing_skypilot(folder / "cloud") as played:
        settings = played.settings(types=["cpu.small"], home=str(folder))
        provider = SkyPilotProvider(settings)
        async with rented_subject(folder, provider, played.cloud.close_all) as subject:
            yield subject


@pytest.mark.parametrize("case", only(DAILY), ids=str)
def test_conformance(case: Case, tmp_path: Path) -> None:
    case.run(lambda: open_subject(tmp_path))


def test_what_fails_at_first_ends_with_nothing_left(played: PlayedSkyPilot) -> None:
    """A zone without machines, a repeated order, a machine taken back, one that stopped."""

    async def check() -> None:
        async with open_api(played) as api:
            markets = await api.markets()
            assert {(one.zone, one.type.gpu, one.spot) for one in markets} == {
                ("aws/here-1", gpu, spot)
                for gpu in ("NVIDIA GeForce RTX 3090", "")
                for spot in (False, True)
            }
            played.cloud.add_fault("capacity")
            launched = await api.launch(order("attempt_1"))
            assert (launched.region, launched.state) == (REGION, InstanceState.PENDING)
            failed = await until(api, "attempt_1", InstanceState.GONE)
            assert "capacity" in failed.why
            problems = {
                market.problem
                for market in await api.markets()
                if (market.type.name, market.spot) == ("gpu.one", False)
            }
            assert problems == {"capacity in aws/here-1"}

            await api.launch(order("attempt_2", spot=True))
            await until(api, "attempt_2", InstanceState.RUNNING)
            again = await api.launch(order("attempt_2", spot=True))
            assert again.launched_at
            (row,) = played.cloud.live()
            played.cloud.take_back(row["id"])
            gone = await until(api, "attempt_2", InstanceState.GONE)
            assert gone.interrupted

            await api.launch(order("attempt_3"))
            await until(api, "attempt_3", InstanceState.RUNNING)
            (row,) = played.cloud.live()
            played.stop(row["id"])
            ended = await until(api, "attempt_3", InstanceState.GONE)
            assert not ended.interrupted
            assert not played.cloud.live()

    asyncio.run(asyncio.wait_for(check(), 60))


def test_another_installation_does_not_see_it(played: PlayedSkyPilot) -> None:
    async def check() -> None:
        async with open_api(played) as api:
            await api.launch(order("attempt_1"))
            await until(api, "attempt_1", InstanceState.RUNNING)
        async with open_api(played) as other:
            assert await other.instances("elsewhere") == []

    asyncio.run(asyncio.wait_for(check(), 60))


def test_what_is_not_set_up_is_named(played: PlayedSkyPilot, tmp_path: Path) -> None:
    async def check() -> None:
        async with open_api(played, clouds=("gcp", "aws")) as api:
            (missing,) = await api.missing_rights()
            assert missing.action == "sky check gcp"
        for python in (tmp_path / "none", Path("/bin/false")):
            async with open_api(played, python=str(python)) as api:
                with pytest.raises(ProviderError) as caught:
                    await api.markets()
            assert caught.value.error_code == SETTING
            assert "providers.skypilot.python" in str(caught.value)

    asyncio.run(asyncio.wait_for(check(), 60))
