"""Chooses the image of a job with `image = "auto"` by what its program imports."""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from gpuyard.domain.images import Choice, Image, choose_image
from gpuyard.domain.jobspec import JobSpec
from gpuyard.insight.imports import imported
from gpuyard.storage.untrusted import open_regular

AUTO = "auto"
# Bytes; nobody writes a longer program by hand.
_LONGEST_PROGRAM = 1_000_000


def image_for(spec: JobSpec, catalogue: Iterable[Image]) -> Choice:
    """The image for the program of a job, and the reason for it.

    A program whose source cannot be read counts as one that imports nothing.
    """
    modules = imported(source_of(spec.command, spec.workdir))
    needs_gpu = spec.resources.gpus.count > 0
    return choose_image(modules, gpu=needs_gpu, catalogue=catalogue)


def source_of(command: Sequence[str], workdir: str | None) -> str:
    """The Python source that a command runs: a file of this host, or the argument after
    `-c`; empty if there is neither.
    """
    for word, following in zip(command, [*command[1:], ""], strict=True):
        if word == "-c":
            return following
        if word.endswith(".py"):
            path = Path(workdir or "/", word)
            with suppress(OSError):
                seen = path.stat()
                return _read(path, seen.st_mtime_ns, seen.st_size)
    return ""


@lru_cache(maxsize=64)
def _read(path: Path, _mtime_ns: int, _size: int) -> str:
    """The text of a regular file, at most the length of a program; empty for anything
    else. Of thousands of jobs with one program, the first reads it.
    """
    try:
        # The program of a job may be a link: its owner, and not the job, has named it.
        descriptor = open_regular(path.resolve())
    except OSError:
        return ""
    with os.fdopen(descriptor, "rb") as file:
        return file.read(_LONGEST_PROGRAM).decode(errors="replace")
