"""Artifacts of jobs in external queues, from folders that this host sees."""

from pathlib import Path
from typing import Any, cast

import pytest

from gpuyard.config.settings import Settings
from gpuyard.controller.left_files import LeftFiles
from gpuyard.domain.artifacts import ArtifactsSaved
from gpuyard.domain.jobconfig import JobResult, JobStatus
from gpuyard.domain.jobspec import JobSpec
from gpuyard.providers.job_folders import LeftFolder, WantedFiles
from gpuyard.storage.blobs import BlobStore

pytestmark = pytest.mark.anyio


class Stage:
    """A queue, a core and a recorder of artifacts, as far as they are asked."""

    id = "attempt_1"
    provider = provider_ref = "docker"
    settings = Settings()

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.paths: list[str] = []

    async def poll_jobs(self, references: list[str]) -> dict[str, JobResult]:
        ended = JobResult(job_id="docker", status=JobStatus.COMPLETED, started_at=1.0)
        return dict.fromkeys(references, ended)

    async def left_folder(self, _reference: str, _wanted: WantedFiles) -> LeftFolder:
        return LeftFolder(self.folder)

    def saved(self, _attempt: object, message: ArtifactsSaved) -> None:
        self.paths += [file.path for file in message.files]

    async def committed(self) -> None:
        pass


async def test_a_link_of_a_container_leads_to_no_file_of_this_host(tmp_path: Path):
    job = tmp_path / "job"
    host = tmp_path / "host"
    for folder in (job / "out", host):
        folder.mkdir(parents=True)
        (folder / "file").write_text("content")
    (job / "linked").symlink_to(host)
    stage = cast("Any", Stage(job))
    files = LeftFiles(stage, stage, BlobStore(tmp_path / "blobs"), tmp_path)
    wanted = {"command": ["true"], "artifacts": ["out/*", "linked/*"]}
    spec = JobSpec.model_validate(wanted)
    assert await files.save(stage, spec, stage, str)
    assert stage.paths == ["out/file"]


async def test_a_workdir_in_the_home_shows_nothing_of_gpuyard(tmp_path: Path):
    """On the nodes of a queue, the same path may be a folder of the job's."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "ledger.db").write_text("of everybody")
    stage = cast("Any", Stage(home))
    files = LeftFiles(stage, stage, BlobStore(tmp_path / "blobs"), home)
    wanted = {"command": ["true"], "artifacts": ["*"], "workdir": str(home)}
    assert await files.save(stage, JobSpec.model_validate(wanted), stage, str)
    assert not stage.paths
