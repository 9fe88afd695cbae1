"""Folders of attempts on a volume that the cluster's pods and this host share."""

import shutil
import threading
from pathlib import Path

from gpuyard.domain.errors import GpuyardError, ProviderError
from gpuyard.domain.jobconfig import JobConfig
from gpuyard.providers.carrying import Workspaces
from gpuyard.providers.kubernetes.manifest import WORKSPACES, name_of
from gpuyard.storage.blobs import Blobs, BlobStore, BucketError
from gpuyard.storage.place import in_background
from gpuyard.storage.snapshots import take, unpack

# A job that is tried again, or one of many from the same folder, need not be copied twice.
_KEPT = 4


class Spool:
    """The folders below `root`, one for each attempt: `work`, a copy of the job's own folder, and `resume`, the
    checkpoint to go on from. Copies are made by way of `snapshots`, where equal folders are kept once."""

    def __init__(
        self, root: Path, snapshots: BlobStore, blobs: Blobs, workspaces: Workspaces, provider: str
    ) -> None:  # fmt: skip
        self._root, self._snapshots, self._blobs, self._provider = root, snapshots, blobs, provider
        self._workspaces = workspaces
        self._copying = threading.Lock()

    def work(self, job_id: str) -> Path:
        """Where a job's program runs, as this host sees it."""
        return self._root / job_id / "work"

    def lay_out(self, config: JobConfig) -> None:
        """Make the folders, unless they are there; it blocks on the disk. ProviderError says what cannot be copied,
        BucketError that the checkpoint cannot be fetched for the moment."""
        name, options = name_of(config.attempt_id or ""), config.provider_options
        work, resume = self.work(name), self._root / name / "resume"
        if work.exists():
            return  # submitted before: its program may be at work there
        try:
            resume.mkdir(parents=True, exist_ok=True)
            if options.get("resume_sha256"):
                target = resume / str(options.get("resume_name") or "checkpoint")
                directory = bool(options.get("resume_directory"))
                self._blobs.restore(str(options["resume_sha256"]), target, directory=directory)
            source = Path(str(options.get("workdir") or ""))
            if options.get("workdir") and source.is_dir():
                self._copy(source, work)
            else:
                work.mkdir()
        except (GpuyardError, OSError) as error:
            self.remove(name)
            if isinstance(error, BucketError):
                raise
            message = f"The job's folder cannot be copied for the cluster: {error}"
            raise ProviderError(message, self._provider, "BAD_FOLDER") from None

    def _copy(self, source: Path, work: Path) -> None:
        with self._copying:  # so that nobody removes what another is about to unpack
            unpack(self._snapshots, take(source, self._snapshots).sha256, work)
            self._snapshots.keep_newest(_KEPT)

    async def send_workspace(self, config: JobConfig) -> None:
        """Bring the job's workspace to the volume, where it uses one."""
        options = config.provider_options
        if options.get("workspace"):
            there = self._root / WORKSPACES / str(options["workspace"])
            await in_background(there.mkdir, parents=True, exist_ok=True)
            await self._workspaces.send(name_of(config.attempt_id or ""), Path(options["workspace_here"]), there)

    async def fetch_workspace(self, job_id: str) -> None:
        """Bring back what the job has changed in its workspace."""
        await self._workspaces.bring_back(job_id)

    async def forget(self, job_id: str) -> None:
        """Remove what is kept of an attempt, here and there."""
        await self._workspaces.forget(job_id)
        await in_background(self.remove, job_id)

    def remove(self, job_id: str) -> None:
        """Remove an attempt's folders; it blocks on the disk."""
        shutil.rmtree(self._root / job_id, ignore_errors=True)
