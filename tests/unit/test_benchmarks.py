"""How the benchmarks make figures of rounds, and a page of figures."""

from benchmarks.dispatch_profile import shares
from benchmarks.figures import Figure, alternate, in_rounds
from benchmarks.page import PAGE, RESULTS, page, tables


def test_ours_and_its_floor_take_turns() -> None:
    order: list[str] = []
    alternate(2, lambda: order.append("ours"), lambda: order.append("floor"))
    assert order == ["ours", "floor", "ours", "floor"]


def test_a_round_is_the_median_of_its_own_measurements() -> None:
    assert in_rounds([1, 2, 9, 4, 5, 6], 2) == [2, 5]
    assert in_rounds([1, 2, 9, 4, 5, 6], 2, max) == [9, 6]


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    """The machine was slower in the second round, where both sides took longer."""
    figure = Figure("jobs", "a", [10, 40, 12], "ms", 1.5, [10, 20, 10], "bare")
    assert (figure.value, figure.floor) == (12, 10)
    assert figure.ratio == 1.2
    assert figure.met is True
    assert figure.cells()[3:8] == [
        "12 ms",
        "10 ms, bare",
        "1.20 (1.00–2.00)",
        "3",
        "≤ 1.5 ×",
    ]


def test_an_absolute_target_bounds_the_value_whatever_its_floor() -> None:
    figure = Figure("a", "a", [12], "ms", 10, [12], "bare", absolute=True)
    assert figure.met is False
    assert figure.cells()[-2:] == ["≤ 10 ms", "MISSED"]


def test_the_page_is_what_its_command_makes_of_what_was_measured() -> None:
    assert PAGE.read_text() == page(), (
        "docs/benchmarks.md was changed by hand: change benchmarks/page.md, or measure"
        " with --write; then run python -m benchmarks.page"
    )


def test_every_result_has_a_place_in_the_page() -> None:
    for path in RESULTS.iterdir():
        place = path.name.split(".")[0]
        assert tables(place) in page(), f"benchmarks/page.md has no place for {path}"


def test_a_profile_counts_the_innermost_functions() -> None:
    stacks = "main (a.py:1);work (a.py:2) 3\nmain (a.py:1);work (a.py:9) 3\nmain (a.py:4) 2\n"
    assert shares(stacks) == [(0.75, "`work (a.py)`"), (0.25, "`main (a.py)`")]
