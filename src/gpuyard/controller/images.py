"""Which image a job gets that says `auto`: read off what its program imports."""

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
            path = Path(workdir or "/", word)
            try:
                with path.open(encoding="utf-8", errors="replace") as file:
                    return file.read(_LONGEST)
            except OSError:
                return ""
    return ""
