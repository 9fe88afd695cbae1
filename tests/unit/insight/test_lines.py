"""Cutting bytes into lines."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.insight.lines import LIMIT, LineSplitter

PIECES = [
    b"a",
    b"\r",
    b"\n",
    b"\r\n",
    b"\b",
    b"\x1b",
    b"\x1b[0m",
    b"[1;32m",
    b"]0;x\x07",
    "é━█".encode(),
    b" ",
    b"A",
]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted(place % (len(data) + 1) for place in places)
    return [
        data[start:end]
        for start, end in zip([0, *ends], [*ends, len(data)], strict=True)
    ]


def lines_of(*chunks: bytes) -> list[str]:
    splitter = LineSplitter()
    return [
        line for chunk in chunks for line in splitter.feed(chunk)
    ] + splitter.flush()


@pytest.mark.parametrize(
    ("output", "lines"),
    [
        (b"one\ntwo\r\nthree\rfour", ["one", "two", "three", "four"]),
        (b"\n\r\n  \n\t\nend  \n", ["end"]),
        (b"\x1b[1m2/2\x1b[0m \x1b[32m\xe2\x94\x81\x1b[0m", ["2/2 ━"]),
        (b"\x1b[?25l\x1b[2K\x1b[1A\x1b[38;2;98;6;224mx\x1b[?25h", ["x"]),
        (b"\x1b]0;title\x07a \x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", ["a link"]),
        (b"1/2 loss: 0.5\b\b\b\b\b\r2/2 loss: 0.4", ["1/2 loss: 0.5", "2/2 loss: 0.4"]),
        (b"bad \xff\xe2\x94 end", ["bad �� end"]),
        ("line\u2028same\x0bline".encode(), ["line\u2028same\x0bline"]),
        (b"cut \x1b[3", ["cut"]),
        (b"", []),
    ],
)
def test_lines(output: bytes, lines: list[str]) -> None:
    assert lines_of(output) == lines


def test_a_line_comes_when_it_has_ended() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"step 1") == []
    assert splitter.feed(b"0: loss 2\nstep 20") == ["step 10: loss 2"]
    assert splitter.flush() == ["step 20"]
    assert splitter.flush() == []


def test_an_escape_cut_in_two_is_dropped() -> None:
    assert lines_of(b"a\x1b", b"[3", b"1mb\x1b[", b"0m\n") == ["ab"]


def test_the_rest_of_a_huge_line_is_discarded_however_it_comes() -> None:
    splitter = LineSplitter()
    for _ in range(1600):
        assert splitter.feed(b"x" * 65536) == []
    assert len(splitter._rest) == LIMIT
    assert splitter.feed(b"y\nnext\n") == ["x" * LIMIT, "next"]
    assert lines_of(b"a\n" + b"x" * (LIMIT + 5) + b"\nnext\n") == [
        "a",
        "x" * LIMIT,
        "next",
    ]


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(PIECES) | st.binary(max_size=6)).map(b"".join),
    st.lists(st.integers(0, 10**6), max_size=12),
)
def test_lines_do_not_depend_on_the_chunks(output: bytes, places: list[int]) -> None:
    assert lines_of(*cut(output, places)) == lines_of(output)
