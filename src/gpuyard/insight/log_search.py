"""Finds lines in a log, without looking at those that the question rules out.

A page takes bounded time: who wants more asks for the next one. Blocks without a hit
are only searched, never split into lines.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Protocol

from gpuyard.domain.log_query import (
    LEVELS,
    MOST_LINES,
    MOST_TEXT,
    Choice,
    LogLine,
    LogPage,
    LogQuery,
    includes,
)
from gpuyard.insight.lines import LIMIT, clean
from gpuyard.insight.log_levels import CANDIDATES, SEVERE_CANDIDATES, level_of
from gpuyard.insight.log_patterns import Finder, finder_of_marks, finders_of, texts_of
from gpuyard.insight.log_sections import TRACEBACK_MARK, LineClassifier

_BLOCK = 1 << 20
# So much before a page is looked at to learn in which section it begins.
_AROUND = 1 << 16
# One page takes about so long at most.
PAGE_S = 0.5
_SEVERE = LEVELS.index("error")


class ReadableLog(Protocol):
    """A log that is read by offset; see storage/logfile.py."""

    def size(self) -> int:
        """The offset behind its last byte."""
        ...

    def start(self) -> int:
        """Its first offset."""
        ...

    def read(self, offset: int, limit: int) -> tuple[int, bytes]:
        """The offset of the first byte, and at most `limit` bytes."""
        ...

    def next_with(
        self, choices: Sequence[Choice], offset: int, *, ignore_case: bool
    ) -> int:
        """The first offset, at `offset` or behind it, where a line may go on that has
        one list of texts of each choice.
        """
        ...


class LineTimes(Protocol):
    """When the bytes of a log were seen; see storage/log_times.py."""

    def at(self, offset: int) -> float:
        """UTC seconds."""
        ...

    def first_since(self, since: float) -> int | None:
        """The first byte that was seen then or later."""
        ...

    def end_until(self, until: float) -> int | None:
        """The offset behind the last byte that was seen then or before."""
        ...


def find_lines(
    log: ReadableLog,
    times: LineTimes,
    query: LogQuery,
    *,
    is_complete: bool,
    within_s: float = PAGE_S,
) -> LogPage:
    """One page of the lines of a query. InvalidInputError, OSError.

    `is_complete`: nobody writes to the log any more, so its last line counts without a
    line end, too.
    """
    search = _Search(log, times, query, is_complete, time.monotonic() + within_s)
    return search.page() if query.tail is None else search.last_page(query.tail)


class _Search:
    def __init__(
        self,
        log: ReadableLog,
        times: LineTimes,
        query: LogQuery,
        is_complete: bool,
        deadline: float,
    ) -> None:
        self._log = log
        self._times = times
        self._query = query
        self._is_complete = is_complete
        self._deadline = deadline
        self._finders = finders_of(query)
        self._texts = texts_of(query)
        self._has_sections = bool(query.section or query.sections)
        self._classifies = self._has_sections or bool(query.level)
        self._size = log.size()
        self._begin, self._end = self._range()

    def _range(self) -> tuple[int, int]:
        """The bytes that may have lines of the query."""
        query = self._query
        begin = max(query.begin, self._log.start())
        if query.since is not None:
            since = self._times.first_since(query.since)
            begin = self._size if since is None else max(begin, since)
        end = self._size if query.end is None else query.end
        if query.until is not None:
            until = self._times.end_until(query.until)
            if until is not None:
                end = min(end, until)
        end = min(max(begin, end), self._size)
        if end < self._size:
            end = self._line_start(end)
        return begin, end

    # --- pages ---

    def page(self) -> LogPage:
        """The first lines from the beginning on."""
        wanted = min(self._query.limit, MOST_LINES)
        position = self._line_start(self._begin)
        classifier = self._classifier_at(position, self._query.begin_section)
        found: list[LogLine] = []
        length = 0
        while position < self._end and len(found) < wanted and length < MOST_TEXT:
            position = self._skip(position)
            (data, size) = self._block(position)
            if not size:
                # The front of a live log may go while it is searched.
                position = max(position, self._log.start())
                break
            cut = size
            for place, line in self._lines(data, size, position, classifier):
                found.append(line)
                length += len(line.text)
                if len(found) >= wanted or length >= MOST_TEXT:
                    cut = _line_end(data, place)
                    break
            position += cut
            if time.monotonic() >= self._deadline:
                break
        is_end = position >= self._end
        if not is_end and self._end - position < _BLOCK:
            is_end = not self._block(position)[1]
        section = classifier.section if classifier and self._has_sections else ""
        return LogPage(found, position, section, is_end)

    def _skip(self, position: int) -> int:
        """The start of the first line at `position` or behind it that may have the
        texts that are looked for.
        """
        if not self._texts or self._classifies:
            return position
        ignore_case = self._query.ignore_case
        place = self._log.next_with(self._texts, position, ignore_case=ignore_case)
        if place <= position:
            return position
        first = max(position, place - _AROUND)
        begin, data = self._log.read(first, place - first)
        end = _one_end(data).rfind(b"\n")
        return position if end < 0 else begin + end + 1

    def last_page(self, wanted: int) -> LogPage:
        """The last lines before the end."""
        wanted = min(wanted, MOST_LINES)
        found: list[LogLine] = []
        length = 0
        end = self._whole_end()
        reached = end
        begin = self._line_start(self._begin)
        while reached > begin and len(found) < wanted and length < MOST_TEXT:
            first = self._line_start(max(begin, reached - _BLOCK))
            if first >= reached:
                first = max(begin, reached - _BLOCK)
            base, data = self._log.read(first, reached - first)
            data = _one_end(data)
            has_all = all(finder.find(data, 0) >= 0 for finder in self._finders)
            found_here = self._lines(data, len(data), base, None) if has_all else ()
            lines = [line for _, line in found_here]
            lines = lines[-(wanted - len(found)) :]
            length += sum(len(line.text) for line in lines)
            found[:0] = lines
            reached = first
            if len(found) >= wanted:
                reached = found[0].offset
            elif time.monotonic() >= self._deadline:
                break
        previous = reached if reached > begin else None
        return LogPage(found, end, "", True, previous)

    # --- lines of a block ---

    def _lines(
        self, data: bytes, size: int, base: int, classifier: LineClassifier | None
    ) -> Iterator[tuple[int, LogLine]]:
        """The lines of a query in the first `size` bytes of a block that begins at the
        offset `base`, each with its place in the block.
        """
        if classifier is None:
            classifier = self._classifier_at(base, "")
        block = _Block(data)
        position = 0
        while position < size:
            place = self._next(block, position, classifier)
            if not 0 <= place < size:
                return
            begin = data.rfind(b"\n", 0, place) + 1
            end = _line_end(data, place)
            line = self._line(data[begin:end], base + begin, classifier)
            if line:
                yield begin, line
            position = end

    def _next(
        self, block: "_Block", position: int, classifier: LineClassifier | None
    ) -> int:
        """A place in the next line that must be looked at; -1 where none is left."""
        wanted = self._next_wanted(block, position, classifier)
        if classifier is None:
            return wanted
        mark = self._next_mark(block, position, classifier)
        return min(wanted, mark) if min(wanted, mark) >= 0 else max(wanted, mark)

    def _next_mark(
        self, block: "_Block", position: int, classifier: LineClassifier
    ) -> int:
        """A place in the next line that the classifier must see."""
        if classifier.in_traceback:
            return position
        # For levels, only tracebacks matter.
        marks = classifier.marks if self._has_sections else TRACEBACK_MARK
        return block.next(finder_of_marks(marks), position)

    def _next_wanted(
        self, block: "_Block", position: int, classifier: LineClassifier | None
    ) -> int:
        """A place in the next line that may be one of the query."""
        section = self._query.section
        if section and classifier and not includes(classifier.section, section):
            return -1
        finders = list(self._finders)
        if self._query.level:
            severe = LEVELS.index(self._query.level) >= _SEVERE
            candidates = SEVERE_CANDIDATES if severe else CANDIDATES
            finders.append(finder_of_marks(candidates))
        places = [block.next(finder, position) for finder in finders]
        # A line has all of it, so none before the last of these places does.
        return -1 if -1 in places else max(places, default=position)

    def _line(
        self, raw: bytes, offset: int, classifier: LineClassifier | None
    ) -> LogLine | None:
        """The line, if it is one of the query."""
        text = clean(raw[:LIMIT])
        level = None
        section = None
        if classifier:
            level, section = classifier.feed(text)
        if any(finder.find(raw, 0) < 0 for finder in self._finders) or not text:
            return None
        if classifier is None:
            level = level_of(text)
        if not self._has_level(level):
            return None
        if self._query.section and not includes(section or "", self._query.section):
            return None
        told = section if self._query.sections else None
        return LogLine(offset, text, self._times.at(offset), level, told)

    def _has_level(self, level: str | None) -> bool:
        if not self._query.level:
            return True
        least = LEVELS.index(self._query.level)
        return level is not None and LEVELS.index(level) >= least

    # --- where lines and sections begin ---

    def _classifier_at(self, position: int, section: str) -> LineClassifier | None:
        """One that knows what stands before a place, as far as that is near."""
        if not self._classifies:
            return None
        start = self._log.start()
        classifier = LineClassifier(section)
        if position <= start:
            return classifier
        begin = self._line_start(max(start, position - _AROUND))
        _, data = self._log.read(begin, position - begin)
        data = _one_end(data)
        block = _Block(data)
        place = self._next_mark(block, 0, classifier)
        while 0 <= place < len(data):
            line_begin = data.rfind(b"\n", 0, place) + 1
            end = _line_end(data, place)
            classifier.feed(clean(data[line_begin:end][:LIMIT]))
            place = self._next_mark(block, end, classifier)
        return classifier

    def _line_start(self, position: int) -> int:
        """The start of the first line at `position` or after it, if it is near."""
        if position <= self._log.start():
            return position
        first, data = self._log.read(position - 1, _BLOCK)
        end = _one_end(data).find(b"\n")
        return position if end < 0 else first + end + 1

    def _whole_end(self) -> int:
        """The end of the last whole line."""
        if self._is_complete or self._end < self._size:
            return self._end
        first = max(self._log.start(), self._end - _BLOCK)
        _, data = self._log.read(first, self._end - first)
        return first + _one_end(data).rfind(b"\n") + 1

    def _block(self, position: int) -> tuple[bytes, int]:
        """Lines from `position` on, and how many bytes of them are whole lines; line
        ends are line feeds. To cut the rest off would take as long as to search it.
        """
        length = min(_BLOCK, self._end - position)
        if length <= 0:
            return b"", 0
        first, data = self._log.read(position, length)
        if first != position or not data:
            return b"", 0
        data = _one_end(data)
        reaches_end = position + len(data) >= self._end
        if reaches_end and (self._is_complete or self._end < self._size):
            return data, len(data)
        if end := data.rfind(b"\n") + 1:
            return data, end
        # The last line of a live log is not whole yet; but a line may be endless.
        return data, len(data) if len(data) >= _BLOCK else 0


class _Block:
    """A block of lines that several finders go through."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._found: dict[Finder, int] = {}

    def next(self, finder: Finder, position: int) -> int:
        """The first place at `position` or after it; -1 where there is none. Positions
        only grow, so each byte is looked at once.
        """
        place = self._found.get(finder, -2)
        if place != -1 and place < position:
            place = finder.find(self._data, position)
            self._found[finder] = place
        return place


def _one_end(data: bytes) -> bytes:
    """The same with each line ended by a line feed, as progress bars end theirs by a
    carriage return.
    """
    return data.replace(b"\r", b"\n") if b"\r" in data else data


def _line_end(data: bytes, place: int) -> int:
    """The place behind the line with the byte at `place`."""
    end = data.find(b"\n", place)
    return len(data) if end < 0 else end + 1
