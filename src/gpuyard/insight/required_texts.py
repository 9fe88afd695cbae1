"""Which texts every match of an RE2 expression has, read off the expression.

A log that has an index of its words need not be read where these are missing. What is
not understood requires nothing: too few texts only cost time, and one too many would
hide a line.
"""

import re
from collections.abc import Sequence

from gpuyard.domain.log_query import Choice, Texts

_DEEPEST = 40
_REPEAT = re.compile(r"([*+?]|\{(\d+)(?:,\d*)?\})\??")
_GROUP = re.compile(r"\((?:\?:|\?P?<\w+>)?")
_CLASS_NAME = re.compile(r"\[:\^?\w+:\]")
# Escapes that stand for a place or for one of many characters.
_ESCAPE = re.compile(
    r"\\(?:[dDsSwWbBAztnrfva]|[pP](?:\{\^?\w+\}|\w)|x(?:\{\w+\}|[0-9A-Fa-f]{2}))"
)
_OF_MEANING = frozenset("^$.")
# Besides their other case, these letters are also found as signs that are not ASCII.
_FOLDED = frozenset("kKsS")


def required_texts(expression: str, *, ignore_case: bool = False) -> list[Choice]:
    """What a match has: of each choice, at least one list of texts. Empty if nothing is
    known. With `ignore_case`, upper and lower case are the same.
    """
    reader = _Reader(expression, ignore_case)
    try:
        found = reader.alternatives(0)
    except _NotUnderstoodError:
        return []
    return found if reader.at == len(expression) else []


class _NotUnderstoodError(Exception):
    pass


class _Reader:
    """Reads an expression from left to right; `at` is where it is."""

    def __init__(self, expression: str, ignore_case: bool) -> None:
        self.at = 0
        self._expression = expression
        self._ignore_case = ignore_case

    def alternatives(self, depth: int) -> list[Choice]:
        """What all alternatives require together, up to a bracket or the end."""
        if depth > _DEEPEST:
            raise _NotUnderstoodError
        found = [self._sequence(depth)]
        while self._next() == "|":
            self.at += 1
            found.append(self._sequence(depth))
        return found[0] if len(found) == 1 else _either(found)

    def _sequence(self, depth: int) -> list[Choice]:
        found: list[Choice] = []
        run = ""
        while self._next() not in ("", "|", ")"):
            choices, letter = self._atom(depth)
            least, is_repeated = self._repeat()
            if letter and least and not is_repeated:
                run += letter
                continue
            # `ne+d` has `ne` and `ed`.
            kept = letter if least else ""
            _add(found, run + kept)
            found += choices if least else []
            run = kept
        _add(found, run)
        return found

    def _atom(self, depth: int) -> tuple[list[Choice], str]:
        """What the next part requires: a group, or the letter that it is."""
        letter = self._next()
        if letter == "(":
            return self._group(depth), ""
        if letter == "[":
            self._skip_class()
            return [], ""
        if letter == "\\":
            return [], self._escaped()
        self.at += 1
        return [], self._plain(letter)

    def _plain(self, letter: str) -> str:
        """The letter, if it stands for itself alone."""
        has_others = self._ignore_case and (letter in _FOLDED or not letter.isascii())
        return "" if letter in _OF_MEANING or has_others else letter

    def _group(self, depth: int) -> list[Choice]:
        found = _GROUP.match(self._expression, self.at)
        assert found is not None
        self.at = found.end()
        if self._next() == "?":
            # Flags, which change the meaning of what follows.
            raise _NotUnderstoodError
        choices = self.alternatives(depth + 1)
        self._expect(")")
        return choices

    def _skip_class(self) -> None:
        """Go behind a class of characters, of which its first one may be a bracket."""
        self.at += 1
        if self._next() == "^":
            self.at += 1
        is_first = True
        while is_first or self._next() != "]":
            is_first = False
            if self._next() == "":
                raise _NotUnderstoodError
            if self._next() == "\\":
                self._escaped()
            elif name := _CLASS_NAME.match(self._expression, self.at):
                self.at = name.end()
            else:
                self.at += 1
        self.at += 1

    def _escaped(self) -> str:
        """The letter that an escape stands for; empty if it is no certain one."""
        if found := _ESCAPE.match(self._expression, self.at):
            self.at = found.end()
            return ""
        letter = self._expression[self.at + 1 : self.at + 2]
        if not letter or letter.isalnum():
            raise _NotUnderstoodError
        self.at += 2
        return self._plain_escaped(letter)

    def _plain_escaped(self, letter: str) -> str:
        return "" if self._ignore_case and not letter.isascii() else letter

    def _repeat(self) -> tuple[int, bool]:
        """How often the last part is there at least, and whether that was said."""
        found = _REPEAT.match(self._expression, self.at)
        if found is None:
            return 1, False
        self.at = found.end()
        if found[2] is not None:
            return int(found[2]), True
        return (1 if found[1] == "+" else 0), True

    def _expect(self, letter: str) -> None:
        if self._next() != letter:
            raise _NotUnderstoodError
        self.at += 1

    def _next(self) -> str:
        return self._expression[self.at : self.at + 1]


def _add(found: list[Choice], text: str) -> None:
    if text:
        found.append(((text.encode(),),))


def _either(alternatives: Sequence[Sequence[Choice]]) -> list[Choice]:
    """What one of these alternatives requires."""
    lists: list[Texts] = []
    for choices in alternatives:
        certain = [choice[0] for choice in choices if len(choice) == 1]
        texts = tuple(text for part in certain for text in part)
        if not texts:
            return []
        lists.append(texts)
    return [tuple(lists)]
