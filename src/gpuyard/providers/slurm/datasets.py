"""The datasets of Slurm jobs: copies in the spool, which all nodes see. Over ssh each
is made on this host and copied there once.
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuyard.domain.datasets import DatasetMount
from gpuyard.domain.errors import ProviderError
from gpuyard.providers.slurm.config import SlurmSettings
from gpuyard.providers.slurm.site import SlurmSite
from gpuyard.providers.spool_datasets import SpoolDatasets
from gpuyard.storage.place import in_background

_FOLDER = "datasets"
# Notes in the folder "$1" that the attempt "$2" reads the copy "$3"; fails with 3 if
# that is not there.
_USE = (
    'umask 077; mkdir -p -- "$1/users" "$1/copies" && cd -- "$1" &&'
    ' printf "%s\\n" "$3" >> "users/$2" || exit 1;'
    ' [ -d "copies/$3" ] && touch -- "copies/$3" || exit 3'
)
# Gives the copy that was sent as "$2" its name "$3".
_KEEP = (
    'cd -- "$1/copies" || exit 1; [ -d "$3" ] || mv -T -- "$2" "$3" || [ -d "$3" ];'
    ' code=$?; [ ! -d "$2" ] || { chmod -R u+w -- "$2"; rm -rf -- "$2"; }; exit $code'
)
# Removes copies that no attempt reads, the one whose use is the longest ago first,
# until all take at most "$2" kilobytes.
MAKE_ROOM = (
    'cd -- "$1/copies" || exit 1; ls -1rt | while read -r copy; do'
    ' [ "$(du -sk . | cut -f 1)" -gt "$2" ] || exit 0;'
    ' cat ../users/* 2> /dev/null | grep -qx -- "$copy" && continue;'
    ' chmod -R u+w -- "$copy"; rm -rf -- "$copy"; done'
)


class SlurmDatasets:
    """Has the datasets of attempts in the `spool` of a site."""

    def __init__(self, site: SlurmSite, spool: Path, settings: SlurmSettings) -> None:
        self._site = site
        self._is_remote = bool(site.rsync.host)
        self._root = spool / _FOLDER
        self._most_kb = int(settings.dataset_cache_gb * 1e6)
        home = Path(settings.home)
        self._here = SpoolDatasets(
            home / "slurm-copies" if self._is_remote else spool,
            _FOLDER,
            settings.dataset_cache_gb,
            home,
            settings.storage,
            "slurm",
        )
        # Of several attempts with the same, the first one sends it.
        self._lock = asyncio.Lock()

    async def have(
        self, attempt_id: str, mounts: Sequence[DatasetMount]
    ) -> Mapping[str, Path]:
        """Have the datasets of an attempt where the nodes see them: where they are, by
        variable. ProviderError; BucketError.
        """
        here = await in_background(self._here.have, attempt_id, mounts)
        if not self._is_remote:
            return here
        there: dict[str, Path] = {}
        for mount in mounts:
            async with self._lock:
                await self._send(attempt_id, mount.digest, here[mount.variable])
            there[mount.variable] = self._root / "copies" / mount.digest
        return there

    async def _send(self, attempt_id: str, digest: str, source: Path) -> None:
        use = ("sh", "-c", _USE, "sh", str(self._root), attempt_id, digest)
        answer = await self._site.run(use)
        if not answer.code:
            return
        rsync = self._site.rsync
        fresh = f"new-{attempt_id}"
        target = self._root / "copies" / fresh
        await rsync.copy(f"{source}/", rsync.remote_path(f"{target}/"))
        for script, words in ((_KEEP, (fresh, digest)), (MAKE_ROOM, (self._most_kb,))):
            text = [str(word) for word in words]
            answer = await self._site.run(
                ("sh", "-c", script, "sh", str(self._root), *text)
            )
            if answer.code:
                message = f"{self._root}: {answer.err.strip() or 'cannot be written'}"
                raise ProviderError(message, "slurm", "SPOOL")

    async def forget(self, attempt_id: str) -> None:
        """The attempt reads its datasets no longer."""
        had_some = await in_background(self._here.forget, attempt_id)
        if had_some and self._is_remote:
            note = self._root / "users" / attempt_id
            await self._site.run(("rm", "-f", "--", str(note)))
