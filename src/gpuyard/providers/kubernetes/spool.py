"""The folders of attempts on a volume that the cluster's pods and this host share."""

import threading
from pathlib import Path

from gpuyard.domain.attempt_order import AttemptOrder
from gpuyard.domain.errors import GpuyardError, ProviderError
from gpuyard.providers.kubernetes.manifest import WORKSPACES, name_of
from gpuyard.providers.rsync import WorkspaceSync
from gpuyard.providers.spool_datasets import SpoolDatasets
from gpuyard.storage.blobs import Blobs, BlobStore, BucketError
from gpuyard.storage.place import in_background
from gpuyard.storage.snapshots import take, unpack
from gpuyard.storage.untrusted import remove_tree

# How many snapshots are kept: a retried job, or another job from the same folder, need
# not be copied again.
_KEPT_SNAPSHOTS = 4


class KubernetesSpool:
    """A folder below `root` for each attempt.

    It has `work`, a copy of the job's own folder, and `resume`, the checkpoint to
    continue from. Copies come from `snapshots`, which keeps equal folders once.
    """

    def __init__(
        self,
        root: Path,
        snapshots: BlobStore,
        blobs: Blobs,
        workspaces: WorkspaceSync,
        datasets: SpoolDatasets,
        provider: str,
    ) -> None:
        self._root = root
        self._snapshots = snapshots
        self._blobs = blobs
        self._provider = provider
        self._workspaces = workspaces
        self._datasets = datasets
        self._snapshot_lock = threading.Lock()

    def work(self, job_id: str) -> Path:
        """The folder in which a job's program runs, as this host sees it."""
        return self._root / job_id / "work"

    def stage_in(self, order: AttemptOrder) -> None:
        """Make the attempt's folders, unless they exist; blocks on the disk.

        ProviderError says what cannot be copied. BucketError: the checkpoint cannot be
        fetched at the moment.
        """
        name = name_of(order.attempt_id)
        work = self.work(name)
        resume = self._root / name / "resume"
        if work.exists():
            return  # submitted before: its program may be running there
        self._datasets.have(name, order.datasets)
        try:
            resume.mkdir(parents=True, exist_ok=True)
            if point := order.resume_from:
                target = resume / point.name
                self._blobs.restore(point.sha256, target, directory=point.directory)
            if order.workdir and Path(order.workdir).is_dir():
                self._copy(Path(order.workdir), work)
            else:
                work.mkdir()
        except (GpuyardError, OSError) as error:
            self.remove(name)
            if isinstance(error, BucketError):
                raise
            message = f"The job's folder cannot be copied for the cluster: {error}"
            raise ProviderError(message, self._provider, "BAD_FOLDER") from None

    def _copy(self, source: Path, work: Path) -> None:
        # Otherwise one submission could remove the snapshot that another unpacks.
        with self._snapshot_lock:
            snapshot = take(source, self._snapshots)
            unpack(self._snapshots, snapshot.sha256, work)
            self._snapshots.keep_newest(_KEPT_SNAPSHOTS)

    async def send_workspace(self, order: AttemptOrder) -> None:
        """Copy the job's workspace to the volume, if it uses one."""
        if order.workspace:
            remote = self._root / WORKSPACES / order.workspace
            await in_background(remote.mkdir, parents=True, exist_ok=True)
            local = Path(order.workspace_folder)
            await self._workspaces.send(name_of(order.attempt_id), local, remote)

    async def fetch_workspace(self, job_id: str) -> None:
        """Copy the job's changes in its workspace back."""
        await self._workspaces.bring_back(job_id)

    async def forget(self, job_id: str) -> None:
        """Remove what is kept of an attempt, on this host and on the volume."""
        await self._workspaces.forget(job_id)
        await in_background(self.remove, job_id)

    def remove(self, job_id: str) -> None:
        """Remove an attempt's folders; it blocks on the disk."""
        self._datasets.forget(job_id)
        remove_tree(self._root / job_id)
