"""Which files of a directory are left out: `.gitignore` and `.gpuyardignore`, as git reads them.

The rules of a nearer directory beat those of a farther one, a later line beats an earlier one, and a directory that is
left out is not entered, so nothing in it can be brought back. `.gpuyardignore`, wherever it stands, beats `.gitignore`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

# How pathspec's expressions end: they match what is below the path, too. Git asks about each path on its own, having
# asked about the directories above it before, and only so `!*/` and `!keep/` mean what they mean to git.
_OR_BELOW = "(?:(?P<ps_d>/)|$)"


class _Rule(NamedTuple):
    matches: re.Pattern[str]
    only_directories: bool
    leaves_out: bool


class _Level(NamedTuple):
    base: str
    rules: tuple[_Rule, ...]


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that hold in a directory. Paths are relative to one root, with slashes."""

    git: tuple[_Level, ...] = ()
    own: tuple[_Level, ...] = ()

    def entering(self, directory: Path, base: str) -> "Rules":
        """With the files in `directory` read, too; `base` is its path with a slash at its end, or empty."""
        git, own = _read(directory / ".gitignore"), _read(directory / ".gpuyardignore")
        if not git and not own:
            return self
        return replace(self, git=(_Level(base, git), *self.git), own=(_Level(base, own), *self.own))

    def leave_out(self, path: str, *, directory: bool) -> bool:
        """Is `path`, whose directory is kept, left out?"""
        for level in (*self.own, *self.git):
            below = path[len(level.base) :]
            for rule in level.rules:
                if (directory or not rule.only_directories) and rule.matches.match(below):
                    return rule.leaves_out
        return False


def rules_above(directory: Path) -> tuple[Rules, str]:
    """The rules of the repository that `directory` is in, down to the directory itself, and its path in it.

    There are none when the repository leaves it out as a whole: whoever names it means what is in it.
    """
    above = (directory, *directory.parents)
    top = next((place for place in above if (place / ".git").exists()), directory)
    rules, base = Rules(), ""
    for place, child in _steps(top, directory):
        rules = rules.entering(place, base)
        if rules.leave_out(base + child, directory=True):
            return Rules(), f"{directory.relative_to(top).as_posix()}/"
        base += f"{child}/"
    return rules, base


def _steps(top: Path, directory: Path) -> Iterator[tuple[Path, str]]:
    for name in directory.relative_to(top).parts:
        yield top, name
        top /= name


def _read(file: Path) -> tuple[_Rule, ...]:
    """The rules in `file`, the strongest first; none when there is no such file."""
    if not file.is_file():
        return ()
    text = file.read_text(encoding="utf-8-sig", errors="surrogateescape")
    rules = (_rule(line.removesuffix("\r")) for line in text.split("\n"))
    return tuple(rule for rule in rules if rule)[::-1]


def _rule(line: str) -> _Rule | None:
    text = line if line.endswith("\\ ") else line.rstrip(" ")
    only_directories = text.endswith("/")
    try:
        expression, leaves_out = GitIgnoreSpecPattern.pattern_to_regex(text.removesuffix("/"))
        if expression is None or leaves_out is None:
            return None
        return _Rule(re.compile(expression.replace(_OR_BELOW, r"\Z"), re.DOTALL), only_directories, leaves_out)
    except (ValueError, re.error):
        return None  # git does not complain of a line it cannot read either
