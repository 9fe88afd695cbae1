"""The folders of attempts on a volume that the cluster's pods and this host share."""

import os
import threading
from pathlib import Path

from gpuyard.domain.attempt_order import AttemptOrder, ResumePoint
from gpuyard.domain.errors import GpuyardError, ProviderError
from gpuyard.providers.kubernetes.manifest import WORKSPACES, name_of
from gpuyard.providers.rsync import WorkspaceSync
from gpuyard.providers.spool_datasets import SpoolDatasets
from gpuyard.storage.blobs import Blobs, BlobStore, BucketError
from gpuyard.storage.place import in_background
from gpuyard.storage.snapshots import take, unpack_in
from gpuyard.storage.untrusted import folder_beneath, folder_in, remove_tree

# How many snapshots are kept: a retried job, or another job from the same folder, need
# not be copied again.
_KEPT_SNAPSHOTS = 4


class KubernetesSpool:
    """A folder below `root` for each attempt. Jobs may write there, so no link is
    followed.

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
        if work.exists():
            return  # submitted before: its program may be running there
        self._datasets.have(name, order.datasets)
        try:
            with folder_beneath(self._root, [name], make=0o777) as folder:
                self._restore(order.resume_from, folder)
                self._fill_work(order, folder)
        except (GpuyardError, OSError) as error:
            self.remove(name)
            if isinstance(error, BucketError):
                raise
            message = f"The job's folder cannot be copied for the cluster: {error}"
            raise ProviderError(message, self._provider, "BAD_FOLDER") from None

    def _restore(self, point: ResumePoint | None, folder: int) -> None:
        """Make `resume` in the attempt's folder, with its checkpoint if it has one."""
        with folder_in(folder, ["resume"], make=0o777) as resume:
            if point:
                self._blobs.restore_in(
                    point.sha256, resume, point.name, directory=point.directory
                )

    def _fill_work(self, order: AttemptOrder, folder: int) -> None:
        """Make `work` in the attempt's folder, last of all: what has it is complete."""
        if order.workdir and Path(order.workdir).is_dir():
            self._copy(Path(order.workdir), folder, is_public=bool(order.user))
        else:
            os.mkdir("work", dir_fd=folder)

    def _copy(self, source: Path, folder: int, *, is_public: bool) -> None:
        # Otherwise one submission could remove the snapshot that another unpacks.
        with self._snapshot_lock:
            snapshot = take(source, self._snapshots, is_public=is_public)
            unpack_in(self._snapshots, snapshot.sha256, folder, "work")
            self._snapshots.keep_newest(_KEPT_SNAPSHOTS)

    async def send_workspace(self, order: AttemptOrder) -> None:
        """Copy the job's workspace to the volume, if it uses one."""
        if order.workspace:
            remote = self._root / WORKSPACES / order.workspace
            await in_background(self._make_folder, remote)
            local = Path(order.workspace_folder)
            await self._workspaces.send(name_of(order.attempt_id), local, remote)

    def _make_folder(self, path: Path) -> None:
        steps = path.relative_to(self._root).parts
        with folder_beneath(self._root, steps, make=0o777):
            return

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
