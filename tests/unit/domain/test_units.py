"""Sizes and durations as people write them."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.domain.units import format_duration, format_gb, memory_gb, seconds


@pytest.mark.parametrize(
    ("text", "gigabytes"),
    [
        (16, 16),
        (0.5, 0.5),
        ("16", 16),
        ("16GB", 16),
        ("16 GiB", 16),
        ("16g", 16),
        (" 1.5tb ", 1536),
        ("512Mi", 0.5),
        ("512 MB", 0.5),
    ],
)
def test_sizes(text, gigabytes):
    assert memory_gb(text) == gigabytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (90, 90),
        (0.25, 0.25),
        ("90", 90),
        ("90s", 90),
        ("90 sec", 90),
        ("15m", 900),
        ("15min", 900),
        ("2h", 7200),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("1d", 86400),
        ("1.5h", 5400),
    ],
)
def test_durations(text, expected):
    assert seconds(text) == expected


BAD = [
    True,
    False,
    None,
    [],
    {},
    "",
    " ",
    "x",
    "-1",
    "-5s",
    "5 bananas",
    "1..5",
    "1.2.3",
    "GB",
    "1h!",
    math.nan,
    math.inf,
    -math.inf,
    10**400,
    "nan",
    "inf",
    "0x10",
    "1e3",
]


@pytest.mark.parametrize("value", [*BAD, "16s", "1GB2GB"])
def test_bad_sizes_are_refused_with_an_example(value):
    with pytest.raises(ValueError, match=r"is not a size; write .* such as 16GB"):
        memory_gb(value)


@pytest.mark.parametrize("value", [*BAD, "16GB", "1h30", "1 2", "90 90s"])
def test_bad_durations_are_refused_with_an_example(value):
    with pytest.raises(
        ValueError, match=r"is not a duration; write .* such as 90s, 15m or 2h"
    ):
        seconds(value)


@pytest.mark.parametrize("read", [memory_gb, seconds])
def test_a_huge_text_is_refused_at_once_and_not_repeated(read):
    with pytest.raises(ValueError, match="is not a") as caught:
        read("1" + " " * 500_000 + "!")
    assert len(str(caught.value)) < 200


@given(st.text() | st.floats() | st.integers() | st.none() | st.booleans())
def test_whatever_comes_is_read_or_refused(value):
    for read in (memory_gb, seconds):
        try:
            number = read(value)
        except ValueError:
            continue
        assert isinstance(number, float)
        assert not math.isnan(number)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (math.inf, "-"),
        (0, "0s"),
        (42, "42s"),
        (59.6, "1m00s"),
        (190, "3m10s"),
        (7500, "2h05m"),
        (3 * 86400 + 4 * 3600, "3d4h"),
    ],
)
def test_durations_for_people(value, text):
    assert format_duration(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.5, "512 MB"), (16, "16 GB"), (14.5, "14.5 GB"), (1536, "1.5 TB")],
)
def test_sizes_for_people(value, text):
    assert format_gb(value) == text
