"""What goes along with an attempt, and what comes back: the job's folder, its workspace, its checkpoints.

A folder travels as a snapshot, which lies in the spool once however many jobs use it; each attempt holds it by a hard
link, so that what nobody holds can go.
"""

import asyncio
import json
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuyard.domain.errors import GpuyardError, ProviderError
from gpuyard.domain.jobconfig import JobConfig
from gpuyard.providers.base import SavedFile
from gpuyard.providers.carrying import Workspaces
from gpuyard.providers.folder import AttemptFolder, Laid
from gpuyard.providers.slurm.config import SlurmConfig
from gpuyard.providers.slurm.site import Site
from gpuyard.storage.blobs import Blobs, BlobStore, BucketError
from gpuyard.storage.place import in_background
from gpuyard.storage.snapshots import take

_KEPT = 4
# Gives an attempt its snapshot, and lets those go that no attempt has had for a day. Not every file system has links
# between folders.
_HOLD = """[ -f "$1" ] && touch -- "$1" && { ln -f -- "$1" "$2" 2>/dev/null || cp -- "$1" "$2"; } || exit 3
find "${1%/*}" -name '*.tar' -links 1 -mtime +0 -exec rm -f -- {} + ; true"""


class Carrier:
    """Lays out what attempts need at a site, and fetches what they leave. On this host all of that lies in a folder
    `slurm-copies` of the home, for each attempt one of its own."""

    def __init__(self, site: Site, spool: Path, settings: SlurmConfig, blobs: Blobs) -> None:
        self._site, self._spool, self._settings, self._blobs = site, spool, settings, blobs
        self._here = Path(settings.home) / "slurm-copies"
        self._snapshots = BlobStore(self._here / "snapshots")
        self._workspaces = Workspaces(site.way, self._here)
        self._taking = asyncio.Lock()

    async def lay_out(self, folder: AttemptFolder, config: JobConfig) -> Laid:
        """Have its folder, its workspace and its checkpoint there. ProviderError says what cannot be."""
        options = config.provider_options
        workdir, workspace = options.get("workdir"), options.get("workspace")
        if workdir and self._settings.copies:
            await self._send_folder(Path(workdir), folder)
            workdir = None
        where = await self._lay_workspace(folder, options) if workspace else None
        return Laid(workdir, await self._lay_checkpoint(folder, config), where)

    async def _send_folder(self, source: Path, folder: AttemptFolder) -> None:
        mine = self._here / folder.attempt_id / "work.tar"
        try:
            async with self._taking:  # so that nobody removes what another has just taken
                snapshot = await in_background(take, source, self._snapshots)
                await in_background(_link, self._snapshots.path(snapshot.sha256), mine)
                await in_background(self._snapshots.keep_newest, _KEPT)
        except (GpuyardError, OSError) as error:
            message = f"The job's folder cannot be copied for the cluster: {error}"
            raise ProviderError(message, "slurm", "BAD_FOLDER") from None
        there = self._spool / "snapshots" / f"{snapshot.sha256}.tar"
        await self._site.make(folder.path)
        hold = ("sh", "-c", _HOLD, "sh", str(there), str(folder.work))
        answer = await self._site.run(hold)
        if answer.code:  # nobody has sent it yet, or it has gone
            await self._site.make(there.parent)
            await self._site.way.bring(str(mine), self._site.way.there(there))
            answer = await self._site.run(hold)
        await in_background(mine.unlink)
        if answer.code:
            message = f"The copy of the job's folder cannot be kept in {self._spool}: {answer.err.strip()}"
            raise ProviderError(message, "slurm", "SPOOL")

    async def _lay_workspace(self, folder: AttemptFolder, options: dict[str, Any]) -> Path:
        here, there = Path(options["workspace_here"]), self._spool / "workspaces" / str(options["workspace"])
        if not self._settings.copies:
            await in_background(here.mkdir, parents=True, exist_ok=True, mode=0o700)
            return here
        await self._site.make(there)
        await self._workspaces.send(folder.attempt_id, here, there)
        return there

    async def _lay_checkpoint(self, folder: AttemptFolder, config: JobConfig) -> Path | None:
        options = config.provider_options
        if not options.get("resume_sha256"):
            return None
        name, directory = str(options.get("resume_name") or "checkpoint"), bool(options.get("resume_directory"))
        far = self._settings.host is not None
        local = (self._here / folder.attempt_id if far else folder.resume) / name
        try:
            await in_background(self._blobs.restore, options["resume_sha256"], local, directory=directory)
        except BucketError:
            raise
        except OSError as error:
            raise ProviderError(f"The checkpoint cannot be read: {error}.", "slurm", "BAD_RESUME") from None
        if far:
            await self._site.make(folder.resume)
            await self._site.way.bring(str(local), self._site.way.there(f"{folder.resume}/"))
            await in_background(_remove, local)
        return folder.resume / name

    async def bring_back(self, folder: AttemptFolder) -> None:
        """Bring its workspace up to date here."""
        await self._workspaces.bring_back(folder.attempt_id)

    async def checkpoints(self, folder: AttemptFolder) -> Sequence[SavedFile]:
        """Its checkpoints, on this host, oldest first; over ssh those that are too large stay where they are."""
        listed = await self._site.read(folder.checkpoints)
        items: list[dict[str, Any]] = json.loads(listed) if listed else []
        places = {item["file"]: folder.path / "checkpoints" / Path(item["file"]).name for item in items}
        if self._settings.host is not None:
            places = await self._fetched(folder, items)
        return [SavedFile(item["path"], item["step"], item["at"], places[item["file"]], bool(item["directory"]))
                for item in items if item["file"] in places]  # fmt: skip

    async def _fetched(self, folder: AttemptFolder, items: Sequence[dict[str, Any]]) -> dict[str, Path]:
        """Where those are that are here, after those that were not were fetched, the newest first.

        ProviderError when one that is still there cannot be fetched.
        """
        mine, found = self._here / folder.attempt_id / "checkpoints", dict[str, Path]()
        await in_background(_keep_only, mine, {Path(item["file"]).name for item in items})
        for item in reversed(items):
            here = mine / Path(item["file"]).name
            if item["size"] <= self._settings.most_checkpoint_gb * (1 << 30) and await self._fetch(folder, here):
                found[item["file"]] = here
        return found

    async def _fetch(self, folder: AttemptFolder, here: Path) -> bool:
        """Have a checkpoint here; False when the runner has let it go meanwhile."""
        if await in_background(here.exists):
            return True
        part, there = here.with_name(f".{here.name}"), folder.path / "checkpoints" / here.name
        await in_background(part.mkdir, parents=True, exist_ok=True, mode=0o700)
        try:
            await self._site.way.bring(self._site.way.there(there), f"{part}/")
        except ProviderError:
            if (await self._site.run(("test", "-e", str(there)))).code:
                return False
            raise
        await in_background((part / here.name).rename, here)
        await in_background(part.rmdir)
        return True

    async def forget(self, attempt_id: str) -> None:
        """Remove what of an attempt is kept on this host."""
        await self._workspaces.forget(attempt_id)
        await in_background(_remove, self._here / attempt_id)


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    target.unlink(missing_ok=True)
    os.link(source, target)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _keep_only(folder: Path, names: set[str]) -> None:
    """Remove what the runner has let go of."""
    with suppress(FileNotFoundError):
        for path in folder.iterdir():
            if path.name.lstrip(".") not in names:
                _remove(path)
