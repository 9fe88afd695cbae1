"""The `#SBATCH` lines of a batch script, as options with their lines."""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from gpuyard.foreign_files.sbatch_options import (
    FLAGS,
    KNOWN,
    OPTIONAL_VALUES,
    SHORT_NAMES,
)
from gpuyard.foreign_files.translation import refused

_MARK = "#SBATCH"
_LINE = re.compile(r"^#SBATCH(?=\s)", re.MULTILINE)
_FIRST_BYTES = 64_000


@dataclass(frozen=True, slots=True)
class SbatchOption:
    """An option by its long name; `value` is empty for a flag. `place` names its line
    in errors and notes.
    """

    name: str
    value: str
    place: str


def is_batch_script(text: str) -> bool:
    """Whether a text is a script with options for `sbatch`."""
    head = text[:_FIRST_BYTES]
    return head.startswith("#!") and _LINE.search(head) is not None


def read_options(text: str, label: str) -> tuple[list[SbatchOption], list[str]]:
    """The options of a script, in their order; and notes about lines that `sbatch`
    would not read either. `label` names the script. InvalidInputError.
    """
    options: list[SbatchOption] = []
    notes: list[str] = []
    in_head = True
    for number, line in enumerate(text.splitlines(), 1):
        place = f"{label}, line {number}"
        if line.startswith(_MARK) and line[len(_MARK) :][:1].isspace():
            if in_head:
                options += _options_of(_words(line[len(_MARK) :], place), place)
            else:
                notes.append(
                    f"{place}: stands behind the first command, where sbatch does not"
                    " read it either"
                )
        elif line.strip() and not line.startswith("#"):
            in_head = False
    return options, notes


def _words(text: str, place: str) -> list[str]:
    try:
        return shlex.split(text, comments=True)
    except ValueError as error:
        fault = f"is no list of options: {error}"
        raise refused(place, fault, "close each quote") from None


def _options_of(words: Sequence[str], place: str) -> Iterator[SbatchOption]:
    """The options that the words of a line say."""
    left = list(words)
    while left:
        word = left.pop(0)
        (name, value) = _split(word, place)
        if value is None:
            takes_value = name not in FLAGS and name not in OPTIONAL_VALUES
            if takes_value and not left:
                remedy = f"write --{name}=VALUE"
                raise refused(f"{place}: {word}", "has no value", remedy)
            value = left.pop(0) if takes_value else ""
        elif name in FLAGS:
            fault = f"has a value, {value!r}, and takes none"
            raise refused(f"{place}: --{name}", fault, f"write --{name}")
        yield SbatchOption(name, value, f"{place}: --{name}")


def _split(word: str, place: str) -> tuple[str, str | None]:
    """The long name of an option, and its value if that stands in the same word."""
    if word.startswith("--") and len(word) > 2:
        (name, has_value, value) = word[2:].partition("=")
        if name not in KNOWN:
            raise _unknown(f"--{name}", place)
        return name, value if has_value else None
    if word.startswith("-") and len(word) > 1:
        long_name = SHORT_NAMES.get(word[1])
        if long_name is None:
            raise _unknown(word[:2], place)
        return long_name, word[2:].removeprefix("=") or None
    fault = f"has the word {word!r}, which is no option"
    raise refused(place, fault, "write --NAME=VALUE, or -N VALUE for a short option")


def _unknown(option: str, place: str) -> Exception:
    near = get_close_matches(option[2:], KNOWN, n=1, cutoff=0.7)
    meant = f"did you mean --{near[0]}? Otherwise remove it" if near else "remove it"
    fault = "is an option that gpuyard does not know"
    return refused(f"{place}: {option}", fault, meant)
