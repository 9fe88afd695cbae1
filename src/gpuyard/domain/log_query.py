"""What can be asked of a log, and the lines that answer it. Times are UTC seconds,
offsets are bytes from the beginning of an attempt's output.
"""

import re
from typing import Annotated

import msgspec
from msgspec import Meta

from gpuyard.domain.errors import InvalidInputError, quoted

LEVELS = ("debug", "info", "warning", "error", "critical")
SETUP = "setup"
EVALUATION = "evaluation"
TRACEBACK = "traceback"
# The most lines of one answer, and the most bytes of their text.
MOST_LINES = 10_000
MOST_TEXT = 1 << 20
# Longer patterns are a mistake; what they may cost is bounded besides.
_LONGEST = 1000
_SECTION = re.compile(rf"{SETUP}|{EVALUATION}|{TRACEBACK}|epoch:\d{{1,9}}")
Texts = tuple[bytes, ...]
Choice = tuple[Texts, ...]
"""Lists of texts; a line has one of the lists, all of it."""
_Text = Annotated[str, Meta(max_length=_LONGEST)]
_Place = Annotated[int, Meta(ge=0)]


class LogQuery(msgspec.Struct, frozen=True, omit_defaults=True):
    """Lines of a log from the offset `begin` on, and before `end` if that is given.

    All conditions must hold: `search` is text and `regex` an RE2 expression that the
    line contains; `level` is the least level; `section` is `setup`, `epoch:N`,
    `evaluation` or `traceback`; `since` and `until` are when gpuyard saw the line.
    `tail`: only the last so many of them; otherwise the first `limit`. `sections`: say
    of each line in which section it stands, which takes longer to find out.
    `begin_section` is the section of the line at `begin`, where that is known.
    """

    begin: _Place = 0
    end: _Place | None = None
    search: _Text = ""
    regex: _Text = ""
    ignore_case: bool = False
    level: str = ""
    section: str = ""
    since: float | None = None
    until: float | None = None
    tail: _Place | None = None
    limit: _Place = 1000
    sections: bool = False
    begin_section: str = ""

    def check(self) -> None:
        """InvalidInputError names what cannot be meant; the expression is not looked
        at.
        """
        for name in ("search", "regex"):
            if len(getattr(self, name)) > _LONGEST:
                fault = f"has more than {_LONGEST} characters"
                raise InvalidInputError.of(name, fault, "make it shorter")
        if self.level and self.level not in LEVELS:
            fault = f"is {quoted(self.level)}"
            raise InvalidInputError.of("level", fault, f"write {', '.join(LEVELS)}")
        if self.section and not _SECTION.fullmatch(self.section):
            fault = f"is {quoted(self.section)}"
            remedy = "write setup, epoch:3, evaluation or traceback"
            raise InvalidInputError.of("section", fault, remedy)
        if self.tail is not None and self.section:
            remedy = "leave one of them out"
            raise InvalidInputError.of("tail", "does not go with section", remedy)
        until = self.until
        if self.since is not None and until is not None and until < self.since:
            raise InvalidInputError.of("until", "is before since", "swap them")


class LogLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line: its first byte, its text without colours and line end, and when gpuyard
    saw it. `section` has an epoch and what goes on in it, such as `epoch:3/evaluation`.
    """

    offset: int
    text: str
    time: float | None = None
    level: str | None = None
    section: str | None = None


class LogPage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Lines, oldest first.

    `next` is the offset at which the next page begins, in `next_section`; `is_end`: the
    log has no more whole lines now. `previous`: lines before this offset were not
    looked at; None where all were.
    """

    lines: list[LogLine]
    next: int
    next_section: str = ""
    is_end: bool = False
    previous: int | None = None


def includes(section: str, wanted: str) -> bool:
    """Whether `section`, such as `epoch:3/evaluation`, is or lies in the wanted one."""
    return wanted in section.split("/")
