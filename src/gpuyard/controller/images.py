"""Which image a job gets that says `auto`: read off what its program imports."""

import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from gpuyard.domain.images import Choice, Image, choose_image
from gpuyard.domain.jobspec import JobSpec
from gpuyard.insight.imports import imported

AUTO = "auto"
# Nobody writes a longer program by hand.
_LONGEST = 1_000_000


def image_for(spec: JobSpec, catalogue: Iterable[Image]) -> Choice:
    """The image for a job's program, and why; one whose source cannot be read imports nothing."""
    source = source_of(spec.command, spec.workdir)
    return choose_image(imported(source), gpu=spec.resources.gpus.count > 0, catalogue=catalogue)


def source_of(command: Sequence[str], workdir: str | None) -> str:
    """The Python source that a command runs: a file of this host, or the word after `-c`; empty for neither."""
    for word, following in zip(command, [*command[1:], ""], strict=True):
        if word == "-c":
            return following
        if word.endswith(".py"):
            return _read(Path(workdir or "/", word))
    return ""


def _read(path: Path) -> str:
    """A regular file's text, as far as it is that of a program; empty for anything else, without waiting for it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return ""
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ""
        return file.read(_LONGEST).decode(errors="replace")
