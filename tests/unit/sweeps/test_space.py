"""What may be written for a parameter, and which values that means."""

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.domain.errors import InvalidInputError
from gpuyard.sweeps.space import Choice, Range, cell, drawn, grid, parse


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2,4,8", Choice(("2", "4", "8"))),
        ("adam, sgd", Choice(("adam", "sgd"))),
        ("0.10", Choice(("0.10",))),
        ("1..10", Range(1, 10, whole=True)),
        ("1..10:3", Range(1, 10, 3, whole=True)),
        ("0..1:0.25", Range(0, 1, 0.25)),
        ("0.1..1", Range(0.1, 1)),
        ("-1e-3..1", Range(-1e-3, 1)),
        ("log:1e-4..1e-1", Range(1e-4, 1e-1, log=True)),
        ("log:1..1024", Range(1, 1024, log=True, whole=True)),
    ],
)
def test_a_flag_says_values_or_a_range(text: str, expected: Any) -> None:
    assert parse("lr", text) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (["a", 1, 0.5, True], Choice(("a", "1", "0.5", "true"))),
        (4, Choice(("4",))),
        ({"low": 0.1, "high": 1, "log": True}, Range(0.1, 1, log=True)),
        ("1..3", Range(1, 3, whole=True)),
    ],
)
def test_a_file_says_them_as_toml(value: Any, expected: Any) -> None:
    assert parse("lr", value) == expected


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("10..1", "goes from 10 down to 1"),
        ("log:0..1", "no logarithm"),
        ("log:1..9:2", "a step and a logarithm"),
        ("0..1:0", "has step 0"),
        ("1..x", "high is 'x'"),
        ("..5", "low is ''"),
        ("nan..5", "low is 'nan'"),
        ("log:3", "is 'log:3'"),
        ("a,a", "twice"),
        ("a,,b", "holds ''"),
        ("x" * 201, "holds"),
        ([], "names no value"),
        ([[1]], "holds [1]"),
        ({"low": 1}, "high is missing"),
        ({"low": 1, "high": 2, "up": 3}, "up"),
        (None, "is None"),
    ],
)
def test_what_makes_no_sense_is_one_error_that_names_the_parameter(
    value: Any, said: str
) -> None:
    with pytest.raises(InvalidInputError) as raised:
        parse("lr", value)
    assert said.split()[-1] in str(raised.value)
    assert str(raised.value).startswith("lr")


def test_a_grid_has_each_combination_once_and_the_last_parameter_changes_first() -> (
    None
):
    space = {"a": parse("a", "1..2"), "b": parse("b", "x,y,z")}
    assert grid(space) == 6
    cells = [cell(space, number) for number in range(6)]
    assert cells[0] == {"a": "1", "b": "x"}
    assert cells[1] == {"a": "1", "b": "y"}
    assert len({tuple(one.items()) for one in cells}) == 6


def test_steps_are_written_as_people_write_them() -> None:
    assert parse("x", "0..0.4:0.1") == Range(0, 0.4, 0.1)
    cells = parse("x", "0..0.4:0.1").cells("x")
    assert [float(text) for text in cells] == [0, 0.1, 0.2, 0.3, 0.4]


def test_a_grid_that_cannot_be_tried_whole_says_what_to_do() -> None:
    with pytest.raises(InvalidInputError, match="--trials N"):
        grid({"lr": parse("lr", "0.1..1")})
    with pytest.raises(InvalidInputError, match="grid of 1000000 cells"):
        grid({"a": parse("a", "1..1000"), "b": parse("b", "1..1000")})


@given(
    low=st.floats(1e-6, 1e3),
    width=st.floats(0, 1e3),
    log=st.booleans(),
    seed=st.integers(),
)
def test_what_is_drawn_lies_within_the_range(
    low: float, width: float, log: bool, seed: int
) -> None:
    one = Range(low, low + width, log=log)
    assert low <= float(one.draw(random.Random(seed))) <= low + width


def test_what_is_drawn_depends_on_the_seed_and_the_number_alone() -> None:
    space = {"lr": parse("lr", "0.1..1"), "n": parse("n", "1..9:2")}
    assert drawn(space, 1, 7) == drawn(space, 1, 7)
    assert drawn(space, 1, 7) != drawn(space, 2, 7)
    assert int(drawn(space, 1, 7)["n"]) in (1, 3, 5, 7, 9)
