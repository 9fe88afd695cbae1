"""Finds the commands in a shell script, as `bash run.sh` runs them, without running
any of it.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_SHELLS = ("bash", "sh", "zsh", "dash", "sbatch")
_ENDINGS = (".sh", ".bash", ".slurm", ".sbatch")
_LONGEST = 100_000
_MOST_LINES = 2_000
_LONGEST_LINE = 20_000
_DEEPEST = 3
_ASSIGNMENT = re.compile(r"^(?:export\s+|local\s+|readonly\s+)?([A-Za-z_]\w*)=(.*)$")
_ARRAY = re.compile(r"^([A-Za-z_]\w*)=\(([^()]{0,10000})\)[ \t]*$", re.MULTILINE)
_HERE_TEXT = re.compile(
    r"^read\b[^\n]{0,100}\s(\w+)\s*<<-?\s*['\"]?(\w+)['\"]?\n(.{0,10000}?)\n\2$",
    re.MULTILINE | re.DOTALL,
)
_VARIABLE = re.compile(
    r"\$(?:\{(?P<long>\w+)(?:\[[@*]\])?(?::?-(?P<default>[^{}]*))?\}|(?P<short>\w+))"
)
# What another command prints, which nobody knows.
_RESULT = re.compile(r"\$\([^()]{0,1000}\)")
_BETWEEN = re.compile(r"\s(?:&&|\|\|)\s|;\s")
# Nothing behind one of these is an argument.
_ENDS = re.compile(r"\s(?:&>|\d?>|\||&(?=\s|$))")
_COMMENT = re.compile(r"(?:^|\s)#.*$")


def script_of(words: Sequence[str], folder: Path) -> Path | None:
    """The shell script that the words of a command run; None if they run none."""
    rest = list(words)
    if rest and Path(rest[0]).name in _SHELLS:
        rest = [word for word in rest[1:] if not word.startswith("-")]
    if not rest or not rest[0].endswith(_ENDINGS):
        return None
    path = folder / rest[0]
    try:
        return path if path.is_file() else None
    except (OSError, ValueError):
        return None


def commands_in(script: Path, words: Sequence[str]) -> Iterator[list[str]]:
    """The words of each command of a script, in their order; none of one that cannot
    be read. `words` are the command that runs it.
    """
    try:
        if script.stat().st_size > _LONGEST:
            return
        text = script.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return
    names = _arguments(script, words)
    plain = "\n".join(_COMMENT.sub("", line) for line in text.splitlines())
    joined = re.sub(r"\\[ \t]*\n", " ", plain)
    lines = _without_lists(joined, names).splitlines()
    for line in lines[:_MOST_LINES]:
        for part in _BETWEEN.split(_RESULT.sub("", line)):
            found = _words_of(part, names)
            if found:
                yield found


def _arguments(script: Path, words: Sequence[str]) -> dict[str, str]:
    """What `$1`, `$2`, … mean."""
    places = [at for at, word in enumerate(words) if Path(word).name == script.name]
    rest = list(words[places[0] + 1 :]) if places else list[str]()
    names = {str(at): word for at, word in enumerate(rest, 1)}
    return {**names, "@": " ".join(rest)}


def _without_lists(text: str, names: dict[str, str]) -> str:
    """The text without its arrays and here-documents, whose words are noted under
    their names.
    """

    def note(found: re.Match[str]) -> str:
        names[found[1]] = " ".join(found[found.re.groups].splitlines())
        return ""

    return _ARRAY.sub(note, _HERE_TEXT.sub(note, text))


def _words_of(line: str, names: dict[str, str]) -> list[str] | None:
    """The words of a command; None for a line that is none. What the line gives a name
    is noted.
    """
    line = line.strip()
    if not line or line.startswith("#") or len(line) > _LONGEST_LINE:
        return None
    given = _ASSIGNMENT.match(line)
    if given is not None and _is_value(given[2]):
        names[given[1]] = _expanded(_plain(given[2]), names)
        return None
    line = _ENDS.split(_expanded(line, names), maxsplit=1)[0]
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        return None
    while words and _ASSIGNMENT.match(words[0]):
        words = words[1:]  # the environment of the command
    return words


def _is_value(text: str) -> bool:
    """Whether it is all of the line: `A=1 python train.py` is a command."""
    try:
        return len(shlex.split(text, comments=True)) <= 1
    except ValueError:
        return False


def _plain(text: str) -> str:
    try:
        return " ".join(shlex.split(text, comments=True))
    except ValueError:
        return text


def _expanded(text: str, names: Mapping[str, str]) -> str:
    """The text with the variables that are known; others are empty."""

    def value(found: re.Match[str]) -> str:
        name = found["long"] or found["short"]
        return names.get(name) or found["default"] or ""

    text = _RESULT.sub("", text.replace("$@", names.get("@", "")))
    for _ in range(_DEEPEST):  # the value of one can name others
        if "$" in text:
            text = _VARIABLE.sub(value, text)[:_LONGEST_LINE]
    return text
