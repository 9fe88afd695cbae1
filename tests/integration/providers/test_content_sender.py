"""What jobs took along from their submission is sent to agents that ask for it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gpuyard.domain import wire
from gpuyard.domain.contents import PART_BYTES, ContentKind
from gpuyard.domain.errors import ProviderError
from gpuyard.domain.jobconfig import GpuSpec, JobConfig
from gpuyard.storage.contents import FolderContents
from tests.support.node import Recorder
from tests.support.peer import Door, hello, open_door
from tests.support.wait import eventually

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    async with open_door(tmp_path / "agent.sock", Recorder()) as opened:
        yield opened


class Endless(FolderContents):
    """A content that does not end; `read` counts its parts."""

    read = 0

    def parts(self, digest: str) -> Iterator[bytes]:
        while True:
            self.read += 1
            yield bytes(PART_BYTES)


async def test_an_agent_that_does_not_read_costs_a_few_parts_and_is_given_up(
    door: Door, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuyard.providers.content_sender._STALLED_S", 0.2)
    endless = Endless(tmp_path)
    door.provider.hand_out(lambda _: endless)
    peer = await door.dial()
    peer.send(wire.FetchContents(ContentKind.FILE, ["0" * 64]))
    await eventually(lambda: endless.read > 0, "the first part to be read")
    other = await door.joined()
    other.send(wire.Beat())
    await other.receive(wire.Beat)
    await eventually(
        lambda: len(door.provider.agents._serving) == 1, "it to be given up"
    )
    assert endless.read < 10


@pytest.mark.parametrize("option", ["code", "carried_environment"])
async def test_an_agent_that_cannot_fetch_gets_no_job_that_took_something_along(
    door: Door, option: str
) -> None:
    await door.joined(hello(name="gpu7", version="0.0.9"))
    config = JobConfig(
        name="j",
        command=("true",),
        gpu_spec=GpuSpec(gpu_count=0),
        provider_options={option: "0" * 64},
    )
    with pytest.raises(ProviderError, match=r"gpu7 is of version 0\.0\.9.*gpuyard up"):
        await door.provider.submit_job(config)
    peer = await door.joined(hello(fetches=True))
    await door.provider.submit_job(config)
    assert "0" * 64 in repr(await peer.receive(wire.StartAttempt))
