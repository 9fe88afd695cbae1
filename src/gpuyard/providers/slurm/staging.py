"""Copies the job's folder, workspace and checkpoints to the cluster and back.

A folder is sent as a snapshot, which the spool keeps once for all jobs that use it.
Each attempt has a hard link to it. A snapshot that no attempt links to can be removed.
"""

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gpuyard.domain.attempt_order import AttemptOrder, ResumePoint
from gpuyard.domain.errors import GpuyardError, ProviderError
from gpuyard.providers.attempt_folder import AttemptFolder, StagedInput
from gpuyard.providers.base import SavedFile
from gpuyard.providers.rsync import INSIDE_ONLY, WorkspaceSync
from gpuyard.providers.runner_files import SavedCheckpoint, read_checkpoints
from gpuyard.providers.slurm.config import SlurmSettings
from gpuyard.providers.slurm.datasets import SlurmDatasets
from gpuyard.providers.slurm.site import SlurmSite
from gpuyard.providers.slurm.spool_files import link_snapshot, restore_checkpoint
from gpuyard.storage.blobs import Blobs, BlobStore, BucketError
from gpuyard.storage.place import in_background
from gpuyard.storage.snapshots import take
from gpuyard.storage.untrusted import remove

# How many snapshots this host keeps.
_KEPT_SNAPSHOTS = 4
# Links an attempt to its snapshot, and removes snapshots without a link that are older
# than a day. Not every file system has links between folders.
_LINK_SNAPSHOT = """[ -f "$1" ] && touch -- "$1" &&
{ ln -f -- "$1" "$2" 2>/dev/null || cp -- "$1" "$2"; } || exit 3
find "${1%/*}" -name '*.tar' -links 1 -mtime +0 -exec rm -f -- {} + ; true"""


class SlurmStaging:
    """Copies what attempts need to a site, and their results back.

    On this host each attempt has a folder in `slurm-copies` of gpuyard's home.
    """

    def __init__(
        self, site: SlurmSite, spool: Path, settings: SlurmSettings, blobs: Blobs
    ) -> None:
        self._site = site
        self._spool = spool
        self._settings = settings
        self._is_remote = settings.host is not None
        self._blobs = blobs
        self._copies = Path(settings.home) / "slurm-copies"
        self._snapshots = BlobStore(self._copies / "snapshots")
        self._workspaces = WorkspaceSync(site.rsync, self._copies)
        self._datasets = SlurmDatasets(site, spool, settings)
        self._snapshot_lock = asyncio.Lock()

    async def stage_in(self, folder: AttemptFolder, order: AttemptOrder) -> StagedInput:
        """Copy the attempt's folder, workspace and checkpoint to the site.

        ProviderError says what cannot be copied.
        """
        workdir = order.workdir
        if workdir and self._settings.copies:
            await self._send_folder(folder, order)
            workdir = None
        workspace = None
        if order.workspace:
            workspace = await self._send_workspace(folder, order)
        resume_from = None
        if order.resume_from:
            resume_from = await self._send_checkpoint(folder, order.resume_from)
        datasets = await self._datasets.have(folder.attempt_id, order.datasets)
        return StagedInput(workdir, resume_from, workspace, datasets)

    async def _send_folder(self, folder: AttemptFolder, order: AttemptOrder) -> None:
        source = Path(order.workdir or "")
        is_public = bool(order.user)
        local_copy = self._copies / folder.attempt_id / "work.tar"
        snapshots = self._snapshots
        try:
            # Otherwise one submission could remove the snapshot that another has taken.
            async with self._snapshot_lock:
                snapshot = await in_background(
                    take, source, snapshots, is_public=is_public
                )
                sha256 = snapshot.sha256
                if self._is_remote:
                    await in_background(_link, snapshots.path(sha256), local_copy)
                else:
                    await in_background(link_snapshot, snapshots, sha256, folder)
                await in_background(snapshots.keep_newest, _KEPT_SNAPSHOTS)
        except (GpuyardError, OSError) as error:
            message = f"The job's folder cannot be copied for the cluster: {error}"
            raise ProviderError(message, "slurm", "BAD_FOLDER") from None
        if self._is_remote:
            await self._send_snapshot(folder, sha256, local_copy)

    async def _send_snapshot(
        self, folder: AttemptFolder, sha256: str, local_copy: Path
    ) -> None:
        remote_copy = self._spool / "snapshots" / f"{sha256}.tar"
        await self._site.make_folder(folder.path)
        link = ("sh", "-c", _LINK_SNAPSHOT, "sh", str(remote_copy), str(folder.work))
        answer = await self._site.run(link)
        is_missing = bool(answer.code)
        if is_missing:
            await self._site.make_folder(remote_copy.parent)
            await self._upload(local_copy, str(remote_copy))
            answer = await self._site.run(link)
        await in_background(local_copy.unlink)
        if answer.code:
            message = (
                f"The copy of the job's folder cannot be kept in {self._spool}:"
                f" {answer.err.strip()}"
            )
            raise ProviderError(message, "slurm", "SPOOL")

    async def _upload(self, source: Path, target: str) -> None:
        rsync = self._site.rsync
        await rsync.copy(str(source), rsync.remote_path(target))

    async def _send_workspace(self, folder: AttemptFolder, order: AttemptOrder) -> Path:
        """Returns the workspace's folder as the cluster's nodes see it."""
        local = Path(order.workspace_folder)
        if not self._settings.copies:
            await in_background(local.mkdir, parents=True, exist_ok=True, mode=0o700)
            return local
        remote = self._spool / "workspaces" / order.workspace
        await self._site.make_folder(remote)
        await self._workspaces.send(folder.attempt_id, local, remote)
        return remote

    async def _send_checkpoint(
        self, folder: AttemptFolder, resume: ResumePoint
    ) -> Path:
        """Returns the checkpoint's path as the cluster's nodes see it."""
        local = self._copies / folder.attempt_id / resume.name
        try:
            if self._is_remote:
                await in_background(
                    self._blobs.restore,
                    resume.sha256,
                    local,
                    directory=resume.directory,
                )
            else:
                await in_background(restore_checkpoint, self._blobs, folder, resume)
        except BucketError:
            raise
        except OSError as error:
            raise ProviderError(
                f"The checkpoint cannot be read: {error}.", "slurm", "BAD_RESUME"
            ) from None
        if self._is_remote:
            await self._site.make_folder(folder.resume)
            await self._upload(local, f"{folder.resume}/")
            await in_background(remove, local)
        return folder.resume / resume.name

    async def bring_back(self, folder: AttemptFolder) -> None:
        """Copy the changes in its workspace back to this host."""
        await self._workspaces.bring_back(folder.attempt_id)

    async def checkpoints(self, folder: AttemptFolder) -> Sequence[SavedFile]:
        """Its checkpoints on this host, oldest first.

        Over ssh, checkpoints that are too large are not fetched.
        """
        files = await self._site.read_all([folder.checkpoints])
        items = read_checkpoints(files.get(folder.checkpoints))
        top = self._spool
        if not self._is_remote:
            shared = folder.path / "checkpoints"
            paths = {item.file: shared / item.file for item in items}
        else:
            top = self._copies
            paths = await self._fetch_all(folder, items)
        saved: list[SavedFile] = []
        for item in items:
            where = paths.get(item.file)
            if where:
                saved.append(
                    SavedFile(
                        item.path,
                        item.step,
                        item.at,
                        where,
                        item.directory,
                        beneath=top,
                    )
                )
        return saved

    async def _fetch_all(
        self, folder: AttemptFolder, items: Sequence[SavedCheckpoint]
    ) -> dict[str, Path]:
        """The paths of the checkpoints on this host; missing ones are fetched.

        The newest is fetched first. ProviderError when one that still exists cannot be
        fetched.
        """
        local_folder = self._copies / folder.attempt_id / "checkpoints"
        names = {item.file for item in items}
        await in_background(_keep_only, local_folder, names)
        max_bytes = int(self._settings.most_checkpoint_gb * (1 << 30))
        found = dict[str, Path]()
        for item in reversed(items):
            local = local_folder / item.file
            if item.size <= max_bytes and await self._fetch(folder, local, max_bytes):
                found[item.file] = local
        return found

    async def _fetch(self, folder: AttemptFolder, local: Path, max_bytes: int) -> bool:
        """Copy a checkpoint to this host, unless it is here. What the job says about
        its size may be wrong, so no file of more than `max_bytes` is copied.

        False when the runner has removed it meanwhile, or when it was left out.
        """
        if await in_background(local.exists):
            return True
        partial = local.with_name(f".{local.name}")
        remote = folder.path / "checkpoints" / local.name
        await in_background(partial.mkdir, parents=True, exist_ok=True, mode=0o700)
        rsync = self._site.rsync
        try:
            options = (*INSIDE_ONLY, f"--max-size={max_bytes}")
            await rsync.copy(rsync.remote_path(remote), f"{partial}/", *options)
        except ProviderError:
            answer = await self._site.run(("test", "-e", str(remote)))
            if answer.code:
                return False
            raise
        copied = partial / local.name
        is_here = await in_background(os.path.lexists, copied)
        if is_here:
            await in_background(copied.rename, local)
        await in_background(partial.rmdir)
        return is_here

    async def forget(self, attempt_id: str) -> None:
        """Remove what this host keeps of an attempt."""
        await self._workspaces.forget(attempt_id)
        await self._datasets.forget(attempt_id)
        await in_background(remove, self._copies / attempt_id)


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    target.unlink(missing_ok=True)
    os.link(source, target)


def _keep_only(folder: Path, names: set[str]) -> None:
    """Remove the checkpoints that the runner has removed."""
    with suppress(FileNotFoundError):
        for path in folder.iterdir():
            if path.name.lstrip(".") not in names:
                remove(path)
