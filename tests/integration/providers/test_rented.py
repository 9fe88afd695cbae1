"""The conformance suite on rented machines, of a cloud whose machines really join."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from gpuyard.domain.errors import JobNotFoundError, ProviderError
from gpuyard.providers.conformance import Case, Subject
from tests.support.conformance import only
from tests.support.fake_cloud import FakeCloud, FakeCloudProvider, note_python
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
async def open_subject(folder: Path, **more: Any) -> AsyncGenerator[Subject]:
    """A provider, its instance and its cloud, and no machine afterwards."""
    note_python(folder / "cloud")
    settings = {"folder": str(folder / "cloud"), "poll_s": 0.2, "home": str(folder)}
    provider = FakeCloudProvider({**settings, **more})
    async with rented_subject(folder, provider, provider.cloud.close_all) as subject:
        yield subject


@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", only(DAILY), ids=str)
def test_conformance(case: Case, tmp_path: Path) -> None:
    case.run(lambda: open_subject(tmp_path))


def test_nobody_waits_for_the_output_of_a_machine_that_never_joined(
    tmp_path: Path,
) -> None:
    """Else it would be kept, and paid, until its output comes."""

    async def check() -> None:
        async with open_subject(tmp_path, boot_timeout_s=0.3) as subject:
            FakeCloud(tmp_path / "cloud").add_fault("never_boots")
            job_id = await subject.submit(subject.job("print('never')"))
            result = await subject.ended(job_id)
            assert "has not joined within" in (result.error_message or "")
            with pytest.raises(JobNotFoundError):
                await subject.provider.get_job_logs(job_id)
            pieces = subject.provider.stream_log_pieces(
                job_id, offset=0, lines=None, follow=True
            )
            with pytest.raises(JobNotFoundError):
                await anext(pieces)

    asyncio.run(asyncio.wait_for(check(), 60))


def test_without_a_server_nothing_is_rented(tmp_path: Path) -> None:
    provider = FakeCloudProvider({"folder": str(tmp_path)})
    with pytest.raises(ProviderError, match="by a gpuyard server only"):
        asyncio.run(provider.offers())
    with suppress(ProviderError):
        asyncio.run(provider.close())
