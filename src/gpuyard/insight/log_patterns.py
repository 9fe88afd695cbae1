"""Regular expressions that cannot hang: RE2 takes time that is linear in the text, and
bounded memory. They look at bytes, each line on its own.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.log_query import Choice, LogQuery
from gpuyard.insight.required_texts import required_texts

# Of one expression; a larger one is refused when it is read.
_MEMORY = 4 << 20
# A shorter text is found so often that looking for it first is a waste.
_LEAST_TEXT = 3
# What logs are full of, the most frequent first; letters that are not here are rare.
_FREQUENT = " 0123456789.eotasnirl-:,=/pcdumghf_bvTIEwyk[]()\"'"


class Finder(Protocol):
    """Finds places in a block of lines that end with line feeds."""

    def find(self, data: bytes, begin: int) -> int:
        """The first place at `begin` or after it; -1 where there is none."""
        ...


class PatternFinder:
    """Finds what an RE2 expression describes. InvalidInputError for what is none."""

    def __init__(self, expression: str, *, ignore_case: bool = False) -> None:
        # Imported here: most processes never look for anything.
        import re2

        module: Any = re2
        options = module.Options()
        options.log_errors = False
        options.never_nl = True
        options.never_capture = True
        options.max_mem = _MEMORY
        options.case_sensitive = not ignore_case
        try:
            self._pattern = module.compile(f"(?m){expression}", options)
        except module.error as error:
            raise _no_expression(error) from None

    def find(self, data: bytes, begin: int) -> int:
        """See Finder."""
        found = self._pattern.search(data, begin)
        return -1 if found is None else int(found.start())


class RareTextFinder:
    """Finds what an expression describes whose every match has this text: blocks
    without the text are passed over at the speed at which RE2 finds a text.
    """

    def __init__(self, expression: str, text: str) -> None:
        self._whole = PatternFinder(expression)
        self._text = PatternFinder(_literal(text))

    def find(self, data: bytes, begin: int) -> int:
        """See Finder."""
        place = self._text.find(data, begin)
        if place < 0:
            return -1
        # No line before that of the text has a match.
        line = data.rfind(b"\n", begin, place) + 1
        return self._whole.find(data, max(begin, line))


@lru_cache(64)
def finder_of_marks(expression: str) -> PatternFinder:
    """Finds one of our own expressions."""
    return PatternFinder(expression)


def finders_of(query: LogQuery) -> list[Finder]:
    """What a line must have to be among the lines of a query. InvalidInputError."""
    finders: list[Finder] = []
    if query.search:
        # RE2 finds a text in half the time of `bytes.find`, and lets other threads run.
        literal = _literal(query.search)
        rare = "" if query.ignore_case else rare_part([query.search])
        finders.append(
            RareTextFinder(literal, rare)
            if rare
            else PatternFinder(literal, ignore_case=query.ignore_case)
        )
    if query.regex:
        finders.append(_finder_of_regex(query))
    return finders


def _finder_of_regex(query: LogQuery) -> Finder:
    whole = PatternFinder(query.regex, ignore_case=query.ignore_case)
    if query.ignore_case:
        return whole
    choices = required_texts(query.regex)
    certain = [choice[0] for choice in choices if len(choice) == 1]
    rare = rare_part([text.decode() for part in certain for text in part])
    return RareTextFinder(query.regex, rare) if rare else whole


def rare_part(texts: Sequence[str]) -> str:
    """The end of one of the texts that is found the fastest; empty if all are too
    short. RE2 looks for the first byte: one that is everywhere in a log costs up to six
    times the time of one that is not there.
    """
    parts = [
        text[begin:] for text in texts for begin in range(len(text) - _LEAST_TEXT + 1)
    ]
    return max(parts, key=lambda part: (_rarity(part[0]), len(part)), default="")


def _rarity(letter: str) -> int:
    place = _FREQUENT.find(letter)
    return len(_FREQUENT) if place < 0 else place


def texts_of(query: LogQuery) -> list[Choice]:
    """The texts that each line of a query has: of each choice, one list of them."""
    found: list[Choice] = []
    if query.search:
        expression = _literal(query.search)
        found += required_texts(expression, ignore_case=query.ignore_case)
    if query.regex:
        found += required_texts(query.regex, ignore_case=query.ignore_case)
    return found


def _literal(text: str) -> str:
    """The expression for a text as it is."""
    import re2

    module: Any = re2
    return str(module.escape(text))


def check_query(query: LogQuery) -> None:
    """InvalidInputError names what cannot be meant."""
    query.check()
    if "\n" in query.search:
        raise InvalidInputError.of(
            "search", "has a line end", "look for a text within a line"
        )
    finders_of(query)


def _no_expression(error: Exception) -> InvalidInputError:
    words = error.args[0] if error.args else ""
    fault = words.decode(errors="replace") if isinstance(words, bytes) else str(words)
    return InvalidInputError.of(
        "regex",
        f"is no RE2 expression: {fault.strip() or 'unknown'}",
        "write one without look-arounds and back references, or --search",
    )
