"""Decides which files of a directory are left out, from `.gitignore` and
`.gpuyardignore`, as git reads them.

The rules of a nearer directory beat those of a farther one, and a later line beats an
earlier one. A directory that is left out is not entered, so nothing in it can be
brought back. `.gpuyardignore`, in whichever directory, beats `.gitignore`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

# The end of pathspec's expressions, by which they also match paths below. Git checks
# each path on its own, after the directories above it, and only then do `!*/` and
# `!keep/` mean what they mean to git.
_OR_BELOW = "(?:(?P<ps_d>/)|$)"


class _IgnoreRule(NamedTuple):
    matches: re.Pattern[str]
    only_directories: bool
    leaves_out: bool


class _Level(NamedTuple):
    base: str
    rules: tuple[_IgnoreRule, ...]


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that apply in a directory.

    Paths are relative to one root, with slashes.
    """

    git: tuple[_Level, ...] = ()
    own: tuple[_Level, ...] = ()

    def entering(self, directory: Path, base: str) -> "Rules":
        """These rules and those of the files in `directory`. `base` is its path, which
        is empty or ends with a slash.
        """
        git = _read(directory / ".gitignore")
        own = _read(directory / ".gpuyardignore")
        if not git and not own:
            return self
        return replace(
            self, git=(_Level(base, git), *self.git), own=(_Level(base, own), *self.own)
        )

    def leave_out(self, path: str, *, directory: bool) -> bool:
        """True when `path` is left out. Its directory must be kept."""
        for level in (*self.own, *self.git):
            below = path[len(level.base) :]
            for rule in level.rules:
                applies = directory or not rule.only_directories
                if applies and rule.matches.match(below):
                    return rule.leaves_out
        return False


def rules_above(directory: Path) -> tuple[Rules, str]:
    """The rules of the repository that contains `directory`, down to that directory,
    and its path in the repository.

    There are no rules when the repository leaves the directory out as a whole: if
    someone names it, they mean its content.
    """
    top = directory
    for candidate in (directory, *directory.parents):
        if (candidate / ".git").exists():
            top = candidate
            break
    rules = Rules()
    base = ""
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


def _read(file: Path) -> tuple[_IgnoreRule, ...]:
    """The rules in `file`, the strongest (last) first; none when there is no such
    file.
    """
    if not file.is_file():
        return ()
    text = file.read_text(encoding="utf-8-sig", errors="surrogateescape")
    rules = [_rule(line.removesuffix("\r")) for line in text.split("\n")]
    return tuple(rule for rule in reversed(rules) if rule)


def _rule(line: str) -> _IgnoreRule | None:
    # Late: a server seldom reads such a file, and this takes 20 ms and a megabyte.
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

    text = line if line.endswith("\\ ") else line.rstrip(" ")
    only_directories = text.endswith("/")
    try:
        expression, leaves_out = GitIgnoreSpecPattern.pattern_to_regex(
            text.removesuffix("/")
        )
        if expression is None or leaves_out is None:
            return None
        return _IgnoreRule(
            re.compile(expression.replace(_OR_BELOW, r"\Z"), re.DOTALL),
            only_directories,
            leaves_out,
        )
    except (ValueError, re.error):
        return None  # git ignores a line that it cannot read, too
