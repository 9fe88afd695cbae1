"""Lines of a log that are looked for, page by page."""

import random
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.log_query import Choice, LogPage, LogQuery
from gpuyard.insight import log_search
from gpuyard.insight.log_patterns import check_query, rare_part
from gpuyard.insight.log_search import find_lines


class Text:
    """A log in memory whose byte n was seen at the time n."""

    def __init__(self, text: str, start: int = 0) -> None:
        self._data = text.encode()
        self._start = start

    def size(self) -> int:
        return len(self._data)

    def start(self) -> int:
        return self._start

    def read(self, offset: int, limit: int) -> tuple[int, bytes]:
        first = max(offset, self._start)
        return first, self._data[first : first + limit]

    def next_with(
        self, choices: Sequence[Choice], offset: int, *, ignore_case: bool
    ) -> int:
        data = self._data.lower() if ignore_case else self._data
        places = [offset]
        for choice in choices:
            if len(choice) == 1:
                (texts,) = choice
                parts = [t.lower() if ignore_case else t for t in texts]
                found = [data.find(part, offset) for part in parts]
                places += [len(data) if place < 0 else place for place in found]
        # A log that knows its words only knows where none of the lines begins.
        return max(places) if max(places) == len(data) else min(places)


class Clock:
    def __init__(self, size: int) -> None:
        self._size = size

    def at(self, offset: int) -> float:
        return float(offset)

    def first_since(self, since: float) -> int | None:
        return int(since) if since <= self._size else None

    def end_until(self, until: float) -> int | None:
        return int(until) + 1 if until < self._size else None


def find(text: str, *, complete: bool = True, start: int = 0, **asked: Any) -> LogPage:
    log = Text(text, start)
    query = LogQuery(**asked)
    return find_lines(log, Clock(log.size()), query, is_complete=complete, within_s=60)


def texts(page: LogPage) -> list[str]:
    return [line.text for line in page.lines]


LOG = "one\ntwo error\nthree\rERROR: four\nfive"


def test_text_regex_and_level() -> None:
    assert texts(find(LOG, search="o")) == ["one", "two error", "ERROR: four"]
    assert texts(find(LOG, search="O", regex="r$")) == ["ERROR: four"]
    assert texts(find(LOG, search="error", ignore_case=True)) == [
        "two error",
        "ERROR: four",
    ]
    assert texts(find(LOG, level="warning")) == ["ERROR: four"]
    assert texts(find("a (b\\E.c\nA (B\n", search="(b\\E.")) == ["a (b\\E.c"]
    assert texts(find("a (b\nA (B\n", search="(b", ignore_case=True)) == [
        "a (b",
        "A (B",
    ]
    assert texts(find(LOG, regex="^t")) == ["two error", "three"]


def test_the_last_line_of_a_live_log_waits_until_it_is_whole() -> None:
    page = find(LOG, complete=False)
    assert texts(page)[-1] == "ERROR: four"
    assert (page.next, page.is_end) == (LOG.index("five"), True)
    assert texts(find(LOG, begin=page.next)) == ["five"]


def test_times() -> None:
    # The second line begins at the fourth byte.
    assert texts(find(LOG, since=1)) == ["two error", "three", "ERROR: four", "five"]
    assert texts(find(LOG, until=5)) == ["one", "two error"]
    assert texts(find(LOG, since=4, until=4)) == ["two error"]
    assert texts(find(LOG, since=1000)) == []


def test_pages_go_on_in_the_same_section() -> None:
    log = "epoch 3\na\nTraceback (most recent call last):\n  b\nc\nd\n"
    found: list[tuple[str, str | None]] = []
    place = 0
    section = ""
    while True:
        page = find(log, begin=place, begin_section=section, limit=1, sections=True)
        found += [(line.text, line.section) for line in page.lines]
        place = page.next
        section = page.next_section
        if page.is_end:
            break
    traceback = "epoch:3/traceback"
    assert found[:2] == [("epoch 3", "epoch:3"), ("a", "epoch:3")]
    assert [section for _, section in found[2:]] == [*[traceback] * 3, "epoch:3"]


def test_sections() -> None:
    log = "".join(f"epoch {n} step {step}\n" for n in range(3) for step in range(2))
    assert texts(find(log, section="epoch:1")) == ["epoch 1 step 0", "epoch 1 step 1"]
    assert texts(find(log, section="epoch:1", search="step 1")) == ["epoch 1 step 1"]
    assert texts(find(log, section="traceback")) == []


def test_the_front_of_a_capped_log_is_gone() -> None:
    assert texts(find(LOG, start=LOG.index("three"))) == [
        "three",
        "ERROR: four",
        "five",
    ]
    assert texts(find(LOG, start=LOG.index("three"), tail=9))[0] == "three"


@given(
    st.lists(
        st.sampled_from(["", "a", "ab", "hit", "x hit y", "ERROR: z"]), max_size=40
    ),
    st.integers(1, 6),
    st.sampled_from(["", "hit", "E"]),
    st.sampled_from(["", "error"]),
)
def test_blocks_and_pages_change_nothing(
    lines: list[str], limit: int, search: str, level: str
) -> None:
    log = "".join(f"{line}\n" for line in lines)
    wanted = [
        line
        for line in lines
        if line and search in line and (not level or line.startswith("ERROR"))
    ]
    block = log_search._BLOCK  # pyright: ignore[reportPrivateUsage]
    log_search._BLOCK = random.Random(len(log)).randint(12, 40)  # pyright: ignore[reportPrivateUsage]
    try:
        found: list[str] = []
        place = 0
        is_end = False
        while not is_end:
            page = find(log, begin=place, limit=limit, search=search, level=level)
            found += texts(page)
            place = page.next
            is_end = page.is_end
        assert found == wanted
        last = find(log, tail=limit, search=search, level=level)
        assert texts(last) == wanted[-limit:]
    finally:
        log_search._BLOCK = block  # pyright: ignore[reportPrivateUsage]


def test_a_page_ends_in_time_and_the_next_goes_on() -> None:
    log = Text("a\n" * 2_000_000)
    query = LogQuery(regex="[b]")
    page = find_lines(log, Clock(9), query, is_complete=True, within_s=0)
    assert 0 < page.next < log.size()
    assert not page.is_end
    last = LogQuery(regex="[b]", tail=1)
    page = find_lines(log, Clock(9), last, is_complete=True, within_s=0)
    assert page.previous is not None
    assert 0 < page.previous < log.size()


def test_an_expression_that_hangs_others_ends_at_once() -> None:
    log = "a" * 60_000 + "!\n"
    assert texts(find(log, regex="(a+)+$")) == []


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"regex": "("}, "regex"),
        ({"regex": r"(?<=a)b"}, "regex"),
        ({"regex": "(a{1000}){1000}"}, "regex"),
        ({"search": "a\nb"}, "search"),
        ({"search": "a" * 1001}, "search"),
        ({"level": "loud"}, "level"),
        ({"section": "epoch"}, "section"),
        ({"section": "setup", "tail": 1}, "tail"),
        ({"since": 2.0, "until": 1.0}, "until"),
    ],
)
def test_wrong_questions_are_refused(asked: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInputError, match=field):
        check_query(LogQuery(**asked))


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (["the needle is here"], "he needle is here"),
        (["step ", "Zed", "nan"], "Zed"),
        ([" baz"], "baz"),
        (["größe"], "öße"),
        (["ab", ""], ""),
        ([], ""),
    ],
)
def test_a_text_is_looked_for_from_its_rarest_letter(
    given: Sequence[str], found: str
) -> None:
    assert rare_part(given) == found


def test_a_part_of_a_text_is_not_taken_for_the_text() -> None:
    log = "he needle is here\nthe needle is there\nthe needle is here\n"
    wanted = ["the needle is here"]
    assert texts(find(log, search="the needle is here")) == wanted
    assert texts(find(log, regex="the ne+dle is here")) == wanted
