"""The conformance suite on machines of Alibaba ECS, which really join."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpuyard.providers.alibaba import AlibabaCloudAdapter
from gpuyard.providers.conformance import Case, Subject
from tests.support.conformance import only
from tests.support.playing_ecs import playing_ecs
from tests.support.rented_subject import rented_subject

# What may break at Alibaba alone; all else is the same at every cloud.
DAILY = {"lost_reply", "unknown_id"}


@asynccontextmanager
async def open_subject(folder: Path) -> AsyncGenerator[Subject]:
    with playing_ecs(folder / "cloud") as (ecs, players):
        ecs.prices = {"ecs.g7.large": 0.8}
        settings = {**ecs.settings(types=["ecs.g7.large"]), "poll_s": 0.2}
        provider = AlibabaCloudAdapter({**settings, "home": str(folder)})
        async with rented_subject(folder, provider, players.cloud.close_all) as subject:
            yield subject


@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", only(DAILY), ids=str)
def test_conformance(case: Case, tmp_path: Path) -> None:
    case.run(lambda: open_subject(tmp_path))
