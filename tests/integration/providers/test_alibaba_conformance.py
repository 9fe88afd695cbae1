"""The conformance suite on machines of Alibaba ECS, which really join."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuyard.providers.alibaba import AlibabaCloudAdapter
from gpuyard.providers.conformance import Case, Subject
from tests.integration.providers.test_rented import Instance
from tests.support.conformance import only
from tests.support.playing_ecs import playing_ecs

# What may break at Alibaba alone; all else is the same at every cloud.
DAILY = {"lost_reply", "unknown_id"}


@asynccontextmanager
async def open_subject(folder: Path) -> AsyncIterator[Subject]:
    """A provider, its instance and its cloud, and no machine afterwards."""
    instance = Instance(folder)
    with playing_ecs(folder / "cloud") as (ecs, _):
        ecs.prices = {"ecs.g7.large": 0.8}
        settings = {**ecs.settings(types=["ecs.g7.large"]), "poll_s": 0.2}
        provider = AlibabaCloudAdapter({**settings, "home": str(folder)})
        provider.attach(instance)
        # Whose attribute is that of another cloud.
        played: Any = provider
        instance.provider = played
        sink: Any = None
        await instance.door.open()
        await provider.start(sink)
        try:
            yield Subject(provider, pause_s=0.1)
        finally:
            await provider.close()
            await instance.door.close()


@pytest.mark.parametrize("case", only(DAILY), ids=str)
def test_conformance(case: Case, tmp_path: Path) -> None:
    case.run(lambda: open_subject(tmp_path))
