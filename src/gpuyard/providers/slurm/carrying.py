"""What goes along with an attempt, and what comes back: the job's folder, its workspace, its checkpoints.

A folder travels as a snapshot, which lies in the spool once however many jobs use it; each attempt holds it by a hard
link, so that what nobody holds can go.
"""

import asyncio
import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpuyard.domain.errors import GpuyardError, ProviderError
from gpuyard.domain.jobconfig import JobConfig
from gpuyard.providers.base import SavedFile
from gpuyard.providers.folder import AttemptFolder, Laid, read_json
from gpuyard.providers.slurm.config import SlurmConfig
from gpuyard.providers.slurm.site import Site
from gpuyard.storage.blobs import Blobs, BlobStore, BucketError
from gpuyard.storage.place import in_background
from gpuyard.storage.snapshots import take

_KEPT = 4
# Links a snapshot to an attempt, and lets those go that no attempt has had for a day.
_LINK = """ln -f -- "$1" "$2" || exit 1; touch -- "$1"
find "${1%/*}" -name '*.tar' -links 1 -mtime +0 -exec rm -f -- {} + ; true"""


class Carrier:
    """Lays out what attempts need at a site, and fetches what they leave."""

    def __init__(self, site: Site, spool: Path, settings: SlurmConfig, blobs: Blobs) -> None:
        self._site, self._spool, self._settings, self._blobs = site, spool, settings, blobs
        self._here = Path(settings.home) / "slurm-copies"
        self._snapshots = BlobStore(self._here / "snapshots")
        self._taking = asyncio.Lock()

    async def lay_out(self, folder: AttemptFolder, config: JobConfig) -> Laid:
        """Have its folder, its workspace and its checkpoint there. ProviderError says what cannot be."""
        options = config.provider_options
        workdir, workspace = options.get("workdir"), options.get("workspace")
        if workdir and self._settings.copies:
            await self._send_folder(Path(workdir), folder)
            workdir = None
        where = await self._lay_workspace(str(workspace), Path(options["workspace_here"])) if workspace else None
        return Laid(workdir, await self._lay_checkpoint(folder, config), where)

    async def _send_folder(self, source: Path, folder: AttemptFolder) -> None:
        try:
            async with self._taking:  # so that nobody removes what another is about to send
                snapshot = await asyncio.to_thread(take, source, self._snapshots)
                there = self._spool / "snapshots" / f"{snapshot.sha256}.tar"
                if (await self._site.run(("test", "-f", str(there)))).code:
                    await self._site.send(self._snapshots.path(snapshot.sha256), there)
                await asyncio.to_thread(self._snapshots.keep_newest, _KEPT)
        except ProviderError:
            raise
        except (GpuyardError, OSError) as error:
            message = f"The job's folder cannot be copied for the cluster: {error}"
            raise ProviderError(message, "slurm", "BAD_FOLDER") from None
        await self._site.write({folder.path / "snapshot": snapshot.sha256.encode()})
        answer = await self._site.run(("sh", "-c", _LINK, "sh", str(there), str(folder.work)))
        if answer.code:
            raise ProviderError(f"The copy of its folder cannot be kept: {answer.err.strip()}", "slurm", "SPOOL")

    async def _lay_workspace(self, key: str, here: Path) -> Path:
        await asyncio.to_thread(here.mkdir, parents=True, exist_ok=True)
        if not self._settings.copies:
            return here
        there = self._spool / "workspaces" / key
        await self._site.send(here, there)
        return there

    async def _lay_checkpoint(self, folder: AttemptFolder, config: JobConfig) -> Path | None:
        options = config.provider_options
        if not options.get("resume_sha256"):
            return None
        name, directory = str(options.get("resume_name") or "checkpoint"), bool(options.get("resume_directory"))
        self._here.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=self._here) as scratch:
            local = Path(scratch) / name if self._settings.host else folder.resume / name
            try:
                await in_background(self._blobs.restore, options["resume_sha256"], local, directory=directory)
            except BucketError:
                raise
            except OSError as error:
                message = f"The checkpoint cannot be read: {error}."
                raise ProviderError(message, "slurm", "BAD_RESUME") from None
            if self._settings.host:
                await self._site.send(local, folder.resume / name)
        return folder.resume / name

    async def bring_back(self, folder: AttemptFolder) -> None:
        """Bring its workspace up to date here."""
        there, here = read_json(await self._site.read(folder.order)).get("workspace") or ("", "")
        if there != here:
            await self._site.fetch(Path(there), Path(here), folder=True)

    async def checkpoints(self, folder: AttemptFolder) -> Sequence[SavedFile]:
        """Its checkpoints, on this host; over ssh those that are too large stay where they are."""
        listed = await self._site.read(folder.checkpoints)
        items: list[dict[str, Any]] = json.loads(listed) if listed else []
        saved = [(item, await self._fetched(folder, item)) for item in items]
        return [SavedFile(item["path"], item["step"], item["at"], where, bool(item["directory"]))
                for item, where in saved if where]  # fmt: skip

    async def _fetched(self, folder: AttemptFolder, item: dict[str, Any]) -> Path | None:
        there = folder.path / "checkpoints" / item["file"]
        if self._settings.host is None:
            return there
        here = self._here / folder.attempt_id / item["file"]
        if here.exists():
            return here
        if item["size"] > self._settings.most_checkpoint_gb * (1 << 30):
            return None
        part = here.with_name(f".{here.name}")
        await self._site.fetch(there, part, folder=bool(item["directory"]))
        await asyncio.to_thread(part.rename, here)
        return here

    async def forget(self, attempt_id: str) -> None:
        """Remove what of an attempt is kept on this host."""
        await asyncio.to_thread(shutil.rmtree, self._here / attempt_id, ignore_errors=True)
