"""The files that match the artifact patterns of a job that has ended.

A folder that matches stands for all files in it. No link is followed, and what is no
regular file is left out: another program reads them, which may read more than the job.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from gpuyard.storage.matches import Matches
from gpuyard.storage.untrusted import Entry, entries, folder_beneath, inside, walk

# So many names are looked at, however many match.
_MOST_SEEN = 200_000
# A file system's clock may lag the system's by a tick.
_CLOCK_LAG_NS = 20_000_000
_SHOWN = 3


@dataclass(frozen=True, slots=True)
class ArtifactFile:
    """A file: `path` is relative to the job's folder. It lies at `name` below `folder`,
    through no link.
    """

    path: str
    folder: Path
    name: str
    size: int


@dataclass(slots=True)
class FoundFiles:
    """What is to be saved, by path; `problems` say, for people, what is not."""

    files: list[ArtifactFile] = field(default_factory=list[ArtifactFile])
    problems: list[str] = field(default_factory=list[str])


class _TooManyError(Exception):
    """There are more names than anybody looks at."""


class ArtifactFinder:
    """Finds what matches `patterns` in `folder` and was written at or after `since`
    (UTC seconds). `linked_folders` and `owner` are as for `Matches`.
    """

    def __init__(
        self,
        folder: Path,
        patterns: Sequence[str],
        since: float,
        *,
        linked_folders: bool = False,
        owner: int | None = None,
    ) -> None:
        self._patterns = {
            pattern: Matches(
                folder, pattern, since, linked_folders=linked_folders, owner=owner
            )
            for pattern in patterns
        }
        self._since_ns = int(since * 1e9) - _CLOCK_LAG_NS
        self._owner = owner
        self._seen = 0

    def find(self, most_files: int, most_bytes: int) -> FoundFiles:
        """The files, of at most so many bytes together. Blocks on the disk."""
        found = FoundFiles()
        by_path: dict[str, ArtifactFile] = {}
        try:
            for pattern, matches in self._patterns.items():
                own = {file.path: file for file in self._files_of(matches)}
                if not own:
                    found.problems.append(f"{pattern} matches no file that it wrote")
                by_path.update(own)
        except _TooManyError:
            found.problems.append(
                f"its patterns match more than {_MOST_SEEN} names: the rest is left out"
            )
        _limit(found, sorted(by_path.items()), most_files, most_bytes)
        return found

    def _files_of(self, matches: Matches) -> Iterator[ArtifactFile]:
        for name in matches.names():
            folder, inner = matches.place(name)
            base = name.removesuffix(inner)
            # What the job has just removed, or made unreadable, is no artifact.
            with suppress(OSError):
                for path, size in self._below(folder, inner):
                    yield ArtifactFile(f"{base}{path}", folder, path, size)

    def _below(self, top: Path, name: str) -> Iterator[tuple[str, int]]:
        """The path and the size of the file `name`, or of each file in that folder."""
        *folders, last = PurePath(name).parts
        with folder_beneath(top, folders) as above:
            base = "".join(f"{step}/" for step in folders)
            for entry in entries(above, base, [last]):
                if entry.is_folder:
                    with inside(entry) as folder:
                        yield from self._own(
                            walk(folder, f"{entry.path}/", owner=self._owner)
                        )
                else:
                    yield from self._own(iter([entry]))

    def _own(self, found: Iterator[Entry]) -> Iterator[tuple[str, int]]:
        for entry in found:
            self._seen += 1
            if self._seen > _MOST_SEEN:
                raise _TooManyError
            status = entry.status
            is_own = self._owner is None or status.st_uid == self._owner
            # Not the time of its content, which programs such as tar set.
            if entry.is_file and is_own and status.st_ctime_ns >= self._since_ns:
                yield entry.path, status.st_size


def _limit(
    found: FoundFiles,
    files: Sequence[tuple[str, ArtifactFile]],
    most_files: int,
    most_bytes: int,
) -> None:
    """Take the files that are within the limits, and say which are not."""
    size = 0
    left_out: list[str] = []
    for path, file in files:
        if len(found.files) < most_files and size + file.size <= most_bytes:
            found.files.append(file)
            size += file.size
        else:
            left_out.append(path)
    if left_out:
        shown = ", ".join(left_out[:_SHOWN])
        more = f" and {len(left_out) - _SHOWN} more" if len(left_out) > _SHOWN else ""
        found.problems.append(
            f"{shown}{more} left out: an attempt keeps {most_files} files of"
            f" {most_bytes / 1e9:g} GB together ([node] artifact_files, artifacts_gb)"
        )
