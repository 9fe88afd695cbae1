"""Chooses the image of a job with `image = "auto"` by what its program imports."""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import msgspec

from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.images import Image, ImageChoice, choose_image
from gpuyard.domain.jobspec import JobSpec
from gpuyard.insight.imports import imported
from gpuyard.storage.untrusted import open_regular

AUTO = "auto"
# Bytes; nobody writes a longer program by hand.
_LONGEST_PROGRAM = 1_000_000


def image_for(spec: JobSpec, catalogue: Iterable[Image]) -> ImageChoice:
    """The image for the program of a job, and the reason for it.

    A program whose source cannot be read counts as one that imports nothing.
    """
    source = sent_source(spec) or source_of(spec.command, spec.workdir)
    modules = imported(source)
    needs_gpu = spec.resources.gpus.count > 0
    return choose_image(modules, gpu=needs_gpu, catalogue=catalogue)


class _Sent(msgspec.Struct):
    """The texts of a program by path, as the page sends it on the input of a job."""

    text: dict[str, str]


def sent_source(spec: JobSpec) -> str:
    """The Python source that a command runs of the files on its input; empty if there
    are none.
    """
    try:
        sent = msgspec.json.decode(spec.stdin or "", type=_Sent)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return ""
    programs = (word for word in spec.command if word.endswith(".py"))
    return next((sent.text[word] for word in programs if word in sent.text), "")


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


def without_image(spec: JobSpec, warnings: list[str], *, is_s2: bool) -> JobSpec:
    """Drop the image and its volumes, because nothing here runs containers.

    Only an S2 JobConfig may have an image then; otherwise raises InvalidInputError.
    """
    if not is_s2:
        raise InvalidInputError.of(
            "image",
            f"is {spec.image}, and nothing here runs containers",
            "add [providers.docker] to gpuyard.toml, or leave the image out",
        )
    warnings.append(
        f"image {spec.image} was ignored: the job runs as a process on this machine"
    )
    if spec.volumes:
        warnings.append(f"volumes {', '.join(spec.volumes)} were ignored, too")
    return spec.model_copy(update={"image": None, "volumes": {}})


def refuse_volumes_without_container(spec: JobSpec) -> None:
    """InvalidInputError for volumes of a job that runs in no container."""
    if spec.volumes and not spec.image:
        raise InvalidInputError.of(
            "volumes",
            "belong to containers, and the job names no image",
            "name an image, or use the folders under their own paths",
        )
