"""The conformance suite on rented machines, of a cloud whose machines really join."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from gpuyard.domain.errors import ProviderError
from gpuyard.providers.conformance import Case, Subject
from tests.support.conformance import only
from tests.support.fake_cloud import FakeCloudProvider, note_python
from tests.support.rented_subject import rented_subject

# What may break on a rented machine alone; all that comes from the agent's link is the
# same as on other nodes.
DAILY = {
    "completes",
    "cancel_right_after_submit",
    "cancel_while_running",
    "same_attempt_once",
    "lost_reply",
    "too_much",
    "unknown_id",
    "cost",
    "available_gpus",
    "health",
}


@asynccontextmanager
async def open_subject(folder: Path) -> AsyncGenerator[Subject]:
    """A provider, its instance and its cloud, and no machine afterwards."""
    note_python(folder / "cloud")
    settings = {"folder": str(folder / "cloud"), "poll_s": 0.2}
    provider = FakeCloudProvider({**settings, "home": str(folder)})
    async with rented_subject(folder, provider, provider.cloud.close_all) as subject:
        yield subject


@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", only(DAILY), ids=str)
def test_conformance(case: Case, tmp_path: Path) -> None:
    case.run(lambda: open_subject(tmp_path))


def test_without_a_server_nothing_is_rented(tmp_path: Path) -> None:
    provider = FakeCloudProvider({"folder": str(tmp_path)})
    with pytest.raises(ProviderError, match="by a gpuyard server only"):
        asyncio.run(provider.offers())
    with suppress(ProviderError):
        asyncio.run(provider.close())
