"""Which event files in the folder of a job in an external queue are its own."""

import shutil
import time
from pathlib import Path
from typing import Any, cast

import pytest

from gpuyard.controller.logged_scalars import LoggedScalarFiles
from gpuyard.insight.scalar_files import LoggedScalars
from gpuyard.providers.job_folders import LoggingFolder

pytestmark = pytest.mark.anyio
FILE = Path(__file__).parents[1] / "insight" / "event_files" / "tensorboardX"
NOW = int(time.time())


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Stage:
    """An attempt and its provider, as far as they are asked."""

    id = provider_ref = "attempt"
    created_at = float(NOW)

    def __init__(self, folder: LoggingFolder | None) -> None:
        self.folder = folder

    async def logging_folder(
        self, _reference: str, _workdir: str | None
    ) -> LoggingFolder | None:
        return self.folder


def event_file(folder: Path, run: str, writer: str, begun: int = NOW) -> None:
    place = folder / run
    place.mkdir()
    shutil.copy(FILE, place / f"events.out.tfevents.{begun}.{writer}")


async def found_in(folder: LoggingFolder | None) -> list[str]:
    found: list[LoggedScalars] = []
    stage = cast("Any", Stage(folder))
    await LoggedScalarFiles(stage, stage, None, found.append).finish()
    return sorted({point.name for each in found for point in each.points})


async def test_where_others_work_a_file_counts_by_the_host_in_its_name(
    tmp_path: Path,
) -> None:
    event_file(tmp_path, "train", "3f0c.42.0")
    event_file(tmp_path, "other", "3f0c")
    event_file(tmp_path, "longer-name", "3f0ce.42.0")
    event_file(tmp_path, "of-others", "host.42.0")
    event_file(tmp_path, "before", "3f0c.41.0", NOW - 60)
    found = await found_in(LoggingFolder(tmp_path, "3f0c"))
    assert found == ["tensorboard/train/loss", "tensorboard/train/train/loss"]


async def test_where_jobs_share_a_host_a_file_counts_by_its_process_too(
    tmp_path: Path,
) -> None:
    event_file(tmp_path, "own", "node1.42.0")
    event_file(tmp_path, "of-another-job", "node1.43.0")
    event_file(tmp_path, "of-another-node", "node2.42.0")
    event_file(tmp_path, "of-nobody", "node1")
    found = await found_in(LoggingFolder(tmp_path, "node1", {42}))
    assert found == ["tensorboard/train/loss"]


async def test_in_a_folder_of_its_own_every_new_file_is_the_jobs(
    tmp_path: Path,
) -> None:
    event_file(tmp_path, "now", "some-pod.1.0")
    event_file(tmp_path, "copied-along", "host.42.0", NOW - 60)
    assert await found_in(LoggingFolder(tmp_path)) == ["tensorboard/train/loss"]


async def test_a_folder_that_is_not_seen_has_none(tmp_path: Path) -> None:
    assert await found_in(None) == []
    assert await found_in(LoggingFolder(tmp_path / "gone")) == []
