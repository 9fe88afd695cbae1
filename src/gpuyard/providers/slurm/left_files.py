"""What jobs have left in the copies of their folders."""

from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from gpuyard.domain.errors import ProviderError
from gpuyard.providers.attempt_folder import AttemptFolder
from gpuyard.providers.job_folders import LeftFolder, WantedFiles
from gpuyard.providers.rsync import INSIDE_ONLY
from gpuyard.providers.slurm.site import SlurmSite
from gpuyard.storage.place import in_background
from gpuyard.storage.untrusted import remove

# What the list ends with if not all could be looked at.
_FAILED = b"!"
# Tells the sizes and the names of the regular files below "$1" that were changed after
# the file "$2", if that is there.
_MOST_LISTED = 64 << 20  # bytes: a job can have made any number of files
_LIST = (
    'cd -P -- "$1" 2> /dev/null || exit 0; [ -e "$2" ] && set -- -cnewer "$2" ||'
    ' set --; { find . -type f "$@" -printf "%s %P\\0" || printf "!"; }'
    f" | head -c {_MOST_LISTED}"
)
_SHOWN = 3


class SlurmLeftFiles:
    """Finds them on the `site`; over ssh they are copied to a folder below `copies`."""

    def __init__(self, site: SlurmSite, copies: Path) -> None:
        self._site = site
        self._copies = copies

    async def fetch(self, folder: AttemptFolder, wanted: WantedFiles) -> LeftFolder:
        """Have what is wanted on this host. ProviderError."""
        work = folder.path / "work"
        if not self._site.rsync.host:
            since = await in_background(_changed_at, folder.unpacked)
            return LeftFolder(work, own=True, since=since)
        listed = await self._list(work, folder.unpacked)
        names, left_out = _chosen(list(_read(listed)), wanted)
        local = self._copies / folder.attempt_id / "work"
        await in_background(remove, local)
        await in_background(local.mkdir, parents=True, mode=0o700)
        if names:
            rsync = self._site.rsync
            await rsync.copy(
                rsync.remote_path(f"{work}/"),
                f"{local}/",
                "--from0",
                "--files-from=-",
                "--ignore-missing-args",
                f"--max-size={wanted.most_bytes}",
                *INSIDE_ONLY,
                stdin=b"".join(name + b"\0" for name in names),
            )
        problems = _problems(left_out, wanted.most_bytes)
        if len(listed) == _MOST_LISTED:
            problems.append(
                "the job has more files than gpuyard lists; some are left out"
            )
        return LeftFolder(local, own=True, since=0.0, problems=problems)

    async def _list(self, work: Path, unpacked: Path) -> bytes:
        """The size and the name of each file that the job has changed, as `_LIST` tells
        them.
        """
        words = ("sh", "-c", _LIST, "sh", str(work), str(unpacked))
        code, out, err = await self._site.output(words)
        if code or out.endswith(b"\0" + _FAILED) or out == _FAILED:
            message = f"the files of the job cannot be listed: {err.strip()}"
            raise ProviderError(message, "slurm", "SPOOL")
        return out


def _read(listed: bytes) -> Iterator[tuple[int, bytes]]:
    *whole, _cut = listed.split(b"\0")
    for line in whole:
        size, _, name = line.partition(b" ")
        if size.isdigit() and name:
            yield int(size), name


def _chosen(
    listed: Sequence[tuple[int, bytes]], wanted: WantedFiles
) -> tuple[list[bytes], list[bytes]]:
    """The names of those that may match a pattern, and of those for which there is no
    room.
    """
    names: list[bytes] = []
    left_out: list[bytes] = []
    room = wanted.most_bytes
    for size, name in sorted(listed, key=lambda item: item[1]):
        text = name.decode(errors="surrogateescape")
        if not any(_may_match(text, pattern) for pattern in wanted.patterns):
            continue
        (names if size <= room else left_out).append(name)
        room -= size if size <= room else 0
    return names, left_out


def _may_match(name: str, pattern: str) -> bool:
    """Whether the file, or a folder above it, may match. Here a star also stands for
    slashes: whoever saves the files looks closer.
    """
    pattern = pattern.removeprefix("./").rstrip("/")
    loose = [pattern, f"{pattern}/*"]
    loose += [each.replace("**/", "") for each in loose]
    return any(fnmatchcase(name, each) for each in loose)


def _problems(left_out: Sequence[bytes], most_bytes: int) -> list[str]:
    if not left_out:
        return []
    shown = ", ".join(name.decode(errors="replace") for name in left_out[:_SHOWN])
    more = f" and {len(left_out) - _SHOWN} more" if len(left_out) > _SHOWN else ""
    return [
        f"{shown}{more} left out: an attempt keeps {most_bytes / 1e9:g} GB together"
        " ([node] artifacts_gb)"
    ]


def _changed_at(path: Path) -> float | None:
    try:
        return path.stat().st_ctime
    except OSError:
        return None
