"""Prompt files: UTF-8, one prompt a line. How to read, write and store them.

Series and workloads are stored like this, and people may add such files.
"""

import asyncio
import hashlib
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from gpuyard.domain.errors import InvalidInputError
from gpuyard.storage.blobs import Blobs
from gpuyard.storage.place import in_background
from gpuyard.verification.classes import TRAITS, Class
from gpuyard.verification.context import Context, call
from gpuyard.verification.evidence import longest_series
from gpuyard.verification.protocol import SAMPLING

MAX_PROMPT_BYTES = 8192
"""The longest prompt: it fits a small context, with room for the answer."""
# A line end would split a prompt, and PostgreSQL does not store NUL.
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def read_prompt_file(path: Path, count: int, field: str = "prompts") -> tuple[str, ...]:
    """Read a file of `count` prompts; InvalidInputError names `field`."""
    most = count * (MAX_PROMPT_BYTES + 2)
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise InvalidInputError.of(
            field, f"{path} cannot be read: {error.strerror}", "name a file of prompts"
        ) from None
    if len(data) > most:
        raise InvalidInputError.of(
            field, f"{path} has more than {most:,} bytes", f"write {count} prompts"
        )
    return parse_prompts(data, count, field, str(path))


def parse_prompts(
    data: bytes, count: int, field: str = "prompts", name: str = "the file"
) -> tuple[str, ...]:
    """Parse the bytes of a file of `count` prompts.

    Raises InvalidInputError with the first thing that is wrong.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where = f"{name} is not UTF-8 at byte {error.start} (0x{data[error.start]:02x})"
        raise InvalidInputError.of(
            field, where, "save it as UTF-8, e.g. with iconv -t UTF-8"
        ) from None
    lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n") if text else []
    for fault, remedy in _faults(lines, count):
        raise InvalidInputError.of(field, f"{name} {fault}", remedy)
    return tuple(lines)


def fault_of_series(prompts: Sequence[str]) -> str | None:
    """Why these prompts together cannot be used; None when they can.

    Evidence has a largest size, and each check of a series needs one.
    """
    most = longest_series(len(prompts), SAMPLING["max_tokens"])
    size = len(msgspec.json.encode(prompts))
    if size <= most:
        return None
    return (
        f"has {len(prompts)} prompts of {size:,} bytes together in JSON, and at most"
        f" {most:,} fit evidence beside the answers and their fingerprints"
    )


def _faults(lines: Sequence[str], count: int) -> Iterator[tuple[str, str]]:
    if len(lines) != count:
        amount = f"{len(lines)} {'prompt' if len(lines) == 1 else 'prompts'}"
        yield f"holds {amount}, and not {count}", "write one prompt a line"
    places: dict[str, int] = {}
    for place, prompt in enumerate(lines, 1):
        if problem := problem_of(prompt):
            yield f"holds a prompt in line {place} that {problem}", "correct the line"
        if (first := places.setdefault(prompt, place)) != place:
            yield (
                f"holds the same prompt in lines {first} and {place}",
                "let no two prompts be the same",
            )
    if fault := fault_of_series(lines):
        yield fault, "write shorter prompts"


def problem_of(prompt: str) -> str | None:
    """Why a prompt cannot be used, as the end of a sentence; None when it can."""
    if not prompt.strip():
        return "is empty"
    if _CONTROL.search(prompt):
        return "has a control character in it"
    # At the start of a file it would be taken for a mark of the encoding.
    if prompt.startswith("\ufeff"):
        return "begins with a byte order mark"
    try:
        size = len(prompt.encode())
    except UnicodeEncodeError:
        return "has half a character in it"
    return (
        f"has {size:,} bytes, and at most {MAX_PROMPT_BYTES:,} can be used"
        if size > MAX_PROMPT_BYTES
        else None
    )


def chosen_prompts(made: Iterable[object], count: int) -> tuple[str, ...]:
    """The first `count` different and usable prompts of those a generator made.

    Raises ValueError when there are fewer, or they are too long together.
    """
    stripped = (prompt.strip() for prompt in made if isinstance(prompt, str))
    sound = list(
        dict.fromkeys(prompt for prompt in stripped if problem_of(prompt) is None)
    )
    if len(sound) < count:
        raise ValueError(
            f"has {len(sound)} different prompts that can be used, and {count} are"
            " needed"
        )
    if fault := fault_of_series(sound[:count]):
        raise ValueError(fault)
    return tuple(sound[:count])


def to_file(prompts: Iterable[str]) -> bytes:
    """The content of a file of valid prompts."""
    return "".join(f"{prompt}\n" for prompt in prompts).encode()


class DamagedFileError(OSError):
    """A stored file differs from what was stored."""


LOST = (FileNotFoundError, DamagedFileError)
"""The errors of a file that will never be readable again."""


async def keep_files(
    context: Context, files: Sequence[Sequence[str]]
) -> list[str | OSError]:
    """Store a file for each list of prompts; returns its SHA-256, or the error.

    Each is noted as an upload until a row of the database names it.
    """
    contents = [to_file(prompts) for prompts in files]
    names = [hashlib.sha256(content).hexdigest() for content in contents]
    await call(context.records.note_uploads, names)
    puts = [in_background(_put, context.blobs, content) for content in contents]
    return [
        fault or name
        for fault, name in zip(await asyncio.gather(*puts), names, strict=True)
    ]


async def read_file(context: Context, blob: str, count: int) -> tuple[str, ...]:
    """Read the `count` prompts of a stored file; OSError, or DamagedFileError."""
    return split_file(await in_background(read_blob, context.blobs, blob, count))


def read_prompt(blobs: Blobs, blob: str, count: int, place: int) -> str:
    """Read one of the `count` prompts of a stored file, by its number from 0.

    The rest of the file is not checked, because that would take most of the time.
    Damage is found when the whole file is used.
    """
    data = _read(blobs, blob, count)
    try:
        from_start = place < count // 2
        line = (
            data.split(b"\n", place + 1)[place]
            if from_start
            else data.rsplit(b"\n", count - place + 1)[1]
        )
        if not data.endswith(b"\n"):
            raise ValueError("it is cut off")
        return line.decode()
    except (IndexError, ValueError) as error:
        raise DamagedFileError(f"the file {blob} is damaged: {error}") from None


def read_blob(blobs: Blobs, blob: str, count: int) -> bytes:
    """Read a stored file of `count` prompts; DamagedFileError when its hash differs."""
    data = _read(blobs, blob, count)
    if hashlib.sha256(data).hexdigest() != blob:
        raise DamagedFileError(f"the file {blob} is damaged")
    return data


def _read(blobs: Blobs, blob: str, count: int) -> bytes:
    return blobs.read(blob, count * (MAX_PROMPT_BYTES + 1) + 1)


def split_file(data: bytes) -> tuple[str, ...]:
    """The prompts in the content of a stored file."""
    return tuple(data.decode().removesuffix("\n").split("\n"))


def _put(blobs: Blobs, content: bytes) -> OSError | None:
    try:
        blobs.put(io.BytesIO(content))
    except OSError as error:
        return error
    return None


# The generator version of files that people add; generators count from 1.
BY_HAND = 0


@dataclass(frozen=True, slots=True)
class AddedFiles:
    """How many files became series.

    `left_out`: how many existed already, or had no room.
    """

    series: int
    left_out: int


async def add_files(context: Context, cls: Class, paths: Sequence[Path]) -> AddedFiles:
    """Make a series of each file, which has as many prompts as the class has in one.

    Raises InvalidInputError when a file cannot be used, and OSError when the storage
    fails; then nothing is added.
    """
    series = [
        await call(read_prompt_file, path, TRAITS[cls].prompts, "FILE")
        for path in paths
    ]
    for number, prompts in enumerate(series):
        if (first := series.index(prompts)) < number:
            fault = f"{paths[number]} holds what {paths[first]} holds"
            raise InvalidInputError.of("FILE", fault, "name each file once")
    stored = await keep_files(context, series)
    if fault := next((one for one in stored if isinstance(one, OSError)), None):
        raise fault
    blobs = [one for one in stored if isinstance(one, str)]
    added = await call(
        context.records.add_series, cls, blobs, BY_HAND, context.policy.max_series
    )
    return AddedFiles(added, len(paths) - added)
