"""In which part of a run a line of output stands: setup, an epoch, an evaluation, a
traceback.
"""

import re
from typing import NamedTuple

from gpuyard.domain.log_query import EVALUATION, SETUP, TRACEBACK
from gpuyard.insight.log_levels import level_of, without_rank

# What the lines have in common that may begin or end a section, as RE2 expressions.
TRACEBACK_MARK = r"Traceback \(most recent call last"
_MARKS = rf"{TRACEBACK_MARK}|(?i:evaluat|validat|eval_|testing|test:|running |sanity)"
_MARKS_IN_EVALUATION = rf"{_MARKS}|(?i:epoch|train)"
_EPOCH_MARK = r"""(?i:epoch)(?:\(\w{1,10}\))?["']?[\s:=#|\[(-]{0,12}"""

_EPOCH = re.compile(
    # Not `best epoch: 3`, `num_epoch=3`, and not `epochs`.
    r"(?<![A-Za-z_])(?<!best )(?<!last )(?<!per )epoch(?:\(\w{1,10}\))?"
    r"""["']?[\s:=#|\[(-]{0,12}(\d{1,9})""",
    re.IGNORECASE,
)
_EVALUATES = re.compile(
    r"[\W\d]{0,80}(?:evaluating|validating|validation|evaluation|testing|test:"
    r"|sanity checking)\b"
    r"|.{0,200}\brunning (?:evaluation|prediction|test)"
    r"""|.{0,200}["']eval_\w{1,60}["']\s?:""",
    re.IGNORECASE,
)
_TRAINS = re.compile(r"[\W\d]{0,80}train(?:ing)?\b|.{0,200}\brunning training", re.I)
_TRACEBACK = "Traceback (most recent call last)"
_CHAINED = (
    "During handling of the above exception",
    "The above exception was the direct cause",
)
_READ = 2000  # characters of a line
_MOST_RANKS = 256
_MOST_LINES = 10_000  # of one traceback
# A rank that says nothing for so many lines of others says no more of its traceback.
_QUIET_LINES = 200


class LineKind(NamedTuple):
    """What a line is: its level, if it says one, and its section, such as
    `epoch:3/traceback`.
    """

    level: str | None
    section: str


class _Traceback(NamedTuple):
    """One that is being printed: how many lines it may still have, and whether the line
    with the exception has come.
    """

    lines_left: int
    has_exception: bool = False

    def after(self, text: str) -> "_Traceback | None":
        """What it is after a line; None if the line is not of it."""
        if not self.lines_left:
            return None
        lines_left = self.lines_left - 1
        is_indented = text.startswith((" ", "\t"))
        # Groups of exceptions are drawn with bars.
        is_inside = not text or is_indented or text.startswith(("|", "+", *_CHAINED))
        if not self.has_exception:
            # The exception itself stands at the margin.
            return _Traceback(lines_left, has_exception=not is_inside)
        # Another traceback may follow, but no more lines of this one.
        is_of_next = is_inside and not is_indented
        return _Traceback(lines_left, has_exception=True) if is_of_next else None


class LineClassifier:
    """Tells of each line its level and its section; the lines come in order, without
    colours and line ends. It takes linear time, and its memory is bounded.

    `section` is that of the first line. Lines without any of `marks` may be left out,
    except in a traceback.
    """

    def __init__(self, section: str = "") -> None:
        epoch, _, inner = (section or SETUP).partition("/")
        self._epoch = epoch
        self._evaluates = inner == EVALUATION
        # By the ranks that print them.
        self._tracebacks: dict[str, _Traceback] = {}
        self._quiet_lines = 0

    @property
    def section(self) -> str:
        """The section without tracebacks: what a further classifier begins with."""
        return f"{self._epoch}/{EVALUATION}" if self._evaluates else self._epoch

    @property
    def in_traceback(self) -> bool:
        """Whether the next line may belong to a traceback."""
        return bool(self._tracebacks)

    @property
    def marks(self) -> str:
        """An RE2 expression that the lines match which it needs to see. Those that name
        the present epoch again, which may be all of them, are left out.
        """
        if self._evaluates:
            return _MARKS_IN_EVALUATION
        others = _other_numbers(self._epoch.partition(":")[2])
        return f"{_MARKS}|{_EPOCH_MARK}(?:{others})"

    def feed(self, line: str) -> LineKind:
        """What the line is."""
        if self._belongs_to_traceback(line):
            return LineKind("error", f"{self.section}/{TRACEBACK}")
        self._follow(line[:_READ])
        return LineKind(level_of(line), self.section)

    def _follow(self, line: str) -> None:
        """Enter the epoch or the evaluation that the line begins."""
        epoch = _EPOCH.search(line)
        if epoch:
            self._epoch = f"epoch:{int(epoch[1])}"
        if _EVALUATES.match(line):
            self._evaluates = True
        elif epoch or (self._evaluates and _TRAINS.match(line)):
            self._evaluates = False

    def _belongs_to_traceback(self, line: str) -> bool:
        if not self._tracebacks and _TRACEBACK not in line:
            return False
        rank, text = without_rank(line)
        traceback = self._tracebacks.get(rank)
        self._quiet_lines = 0 if traceback else self._quiet_lines + 1
        if _TRACEBACK in text:
            self._begin_traceback(rank)
            return True
        if traceback is None:
            self._end_quiet_tracebacks()
            return False
        going_on = traceback.after(text)
        if going_on is None:
            del self._tracebacks[rank]
            return False
        self._tracebacks[rank] = going_on
        return True

    def _begin_traceback(self, rank: str) -> None:
        if len(self._tracebacks) < _MOST_RANKS:
            self._tracebacks[rank] = _Traceback(_MOST_LINES)

    def _end_quiet_tracebacks(self) -> None:
        if self._quiet_lines > _QUIET_LINES:
            self._tracebacks.clear()


def _other_numbers(digits: str) -> str:
    """An RE2 expression for numbers that are not written so; for all, if empty."""
    if not digits:
        return "[0-9]"
    length = len(digits)
    choices = [rf"[0-9]{{{length + 1}}}"]
    if length > 1:
        choices.append(rf"[0-9]{{1,{length - 1}}}(?:[^0-9]|$)")
    for place, digit in enumerate(digits):
        others = "0123456789".replace(digit, "")
        rest = length - place - 1
        digits_behind = f"[0-9]{{{rest}}}" if rest else ""
        choices.append(f"{digits[:place]}[{others}]{digits_behind}")
    return "|".join(choices)
