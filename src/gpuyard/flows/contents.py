"""What the files of a flow hold, as digests."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gpuyard.domain.errors import InvalidInputError


def files_of(folder: Path, patterns: Iterable[str], field: str) -> list[Path]:
    """The files of `folder` that these paths and patterns mean; folders mean all that
    is in them. InvalidInputError for `field` if one means nothing.
    """
    found: list[Path] = []
    for pattern in dict.fromkeys(patterns):
        try:
            paths = [*_files(folder, pattern)]
        except ValueError as error:
            fault = f"has {pattern}, which is no pattern: {error}"
            remedy = "use *, ? and [abc], and ** as the whole name of a folder"
            raise InvalidInputError.of(field, fault, remedy) from None
        if not paths:
            remedy = "check the path; it is relative to the folder of the flow"
            fault = f"has {pattern}, and there is no such file"
            raise InvalidInputError.of(field, fault, remedy)
        found += paths
    return found


def digests(folder: Path, patterns: Iterable[str], field: str) -> dict[str, str]:
    """The SHA-256 of each such file, by its path in `folder`."""
    paths = files_of(folder, patterns, field)
    return {path.relative_to(folder).as_posix(): digest_of(path) for path in paths}


def digest_of(path: Path) -> str:
    """The SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def missing(folder: Path, paths: Iterable[str]) -> list[str]:
    """Those of the paths that do not exist."""
    return [path for path in paths if not (folder / path).exists()]


def key_of(job: Mapping[str, Any], files: Mapping[str, str], where: str) -> str:
    """What a step is, as a digest: its job, the content of its inputs, and `where` it
    runs.
    """
    parts = {"job": job, "files": files, "where": where}
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def short_digest(text: str) -> str:
    """A digest for where the text itself, such as a path, would be too long."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _files(folder: Path, pattern: str) -> Iterator[Path]:
    for path in _matches(folder, pattern):
        if path.is_file():
            yield path
        elif path.is_dir():
            yield from sorted(one for one in path.rglob("*") if one.is_file())


def _matches(folder: Path, pattern: str) -> list[Path]:
    """What a pattern means. What exists means itself, also if it reads like one."""
    literal = folder / pattern
    if literal.exists():
        return [literal]
    return sorted(folder.glob(pattern))
