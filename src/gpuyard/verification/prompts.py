"""Files of prompts: UTF-8, one prompt a line. Series and workloads are kept so, and people may write them so."""

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from gpuyard.domain.errors import InvalidInputError

MAX_PROMPT_BYTES = 8192
"""Of one prompt: what a model with a small context takes in, with room for its answer."""
# A line's end would make two prompts of one, and PostgreSQL keeps no NUL.
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def read_prompt_file(path: Path, count: int, field: str = "prompts") -> tuple[str, ...]:
    """The `count` prompts of a file; InvalidInputError names `field`, what is wrong with the file and what is right."""
    most = count * (MAX_PROMPT_BYTES + 2)
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise InvalidInputError.of(
            field, f"{path} cannot be read: {error.strerror}", "name a file of prompts"
        ) from None
    if len(data) > most:
        raise InvalidInputError.of(field, f"{path} has more than {most:,} bytes", f"write {count} prompts")
    return parse_prompts(data, count, field, str(path))


def parse_prompts(data: bytes, count: int, field: str = "prompts", name: str = "the file") -> tuple[str, ...]:
    """The `count` prompts of a file's bytes; InvalidInputError says the first thing that is wrong with it."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        where = f"{name} is not UTF-8 at byte {error.start} (0x{data[error.start]:02x})"
        raise InvalidInputError.of(field, where, "save it as UTF-8, e.g. with iconv -t UTF-8") from None
    lines = text.replace("\r\n", "\n").removesuffix("\n").split("\n") if text else []
    for fault, remedy in _faults(lines, count):
        raise InvalidInputError.of(field, f"{name} {fault}", remedy)
    return tuple(lines)


def _faults(lines: Sequence[str], count: int) -> Iterator[tuple[str, str]]:
    if len(lines) != count:
        amount = f"{len(lines)} {'prompt' if len(lines) == 1 else 'prompts'}"
        yield f"holds {amount}, and not {count}", "write one prompt a line"
    places: dict[str, int] = {}
    for place, prompt in enumerate(lines, 1):
        if problem := problem_of(prompt):
            yield f"holds a prompt in line {place} that {problem}", "correct the line"
        if (first := places.setdefault(prompt, place)) != place:
            yield f"holds the same prompt in lines {first} and {place}", "let no two prompts be the same"


def problem_of(prompt: str) -> str | None:
    """Why a prompt cannot be used, as the end of a sentence; None when it can."""
    if not prompt.strip():
        return "is empty"
    if _CONTROL.search(prompt):
        return "has a control character in it"
    try:
        size = len(prompt.encode())
    except UnicodeEncodeError:
        return "has half a character in it"
    return f"has {size:,} bytes, and at most {MAX_PROMPT_BYTES:,} can be used" if size > MAX_PROMPT_BYTES else None


def chosen_prompts(made: Iterable[object], count: int) -> tuple[str, ...]:
    """The first `count` prompts that are of use among those that a generator made: no two are the same.

    ValueError when there are fewer.
    """
    stripped = (prompt.strip() for prompt in made if isinstance(prompt, str))
    sound = list(dict.fromkeys(prompt for prompt in stripped if problem_of(prompt) is None))
    if len(sound) < count:
        raise ValueError(f"has {len(sound)} different prompts that can be used, and {count} are needed")
    return tuple(sound[:count])


def to_file(prompts: Iterable[str]) -> bytes:
    """The file of prompts that are sound."""
    return "".join(f"{prompt}\n" for prompt in prompts).encode()
