"""Curves drawn as letters and as a page."""

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from gpuyard.client.curves import Curve, drawn, page


def test_each_job_is_a_letter_and_the_corners_are_the_ends() -> None:
    falls = Curve("A", "falls", "job_a", [0, 10], [1, 0])
    rises = Curve("B", "rises", "job_b", [0, 10], [0, 1])
    lines = drawn([falls, rises])
    assert lines[0].startswith("1 │A")
    assert lines[0].endswith("B")
    assert lines[15].startswith("0 │B")
    assert lines[15].endswith("A")
    assert lines[-2].split() == ["0", "10"]
    assert lines[-1].split() == ["A", "falls", "B", "rises"]
    columns = {line.index("A") for line in lines[:16] if "A" in line}
    assert len(columns) == 16, "the points between are drawn, too"


def test_points_without_steps_are_counted() -> None:
    points = [{"step": None, "value": 3.0}, {"step": 7, "value": 2.0}]
    assert Curve.of("A", "x", "job", points).steps == [0.0, 1.0]
    stepped = [{"step": 5, "value": 3.0}, {"step": 7, "value": 2.0}]
    assert Curve.of("A", "x", "job", stepped).steps == [5.0, 7.0]


@given(
    st.lists(
        st.tuples(
            st.integers(-(10**9), 10**9),
            st.floats(allow_nan=False, allow_infinity=False),
        ),
        min_size=1,
        max_size=30,
    )
)
def test_every_finite_curve_can_be_drawn(points: list[tuple[int, float]]) -> None:
    steps = [float(step) for step, _ in points]
    curve = Curve("A", "any", "job", steps, [value for _, value in points])
    lines = drawn([curve])
    assert len(lines) == 19
    assert any("A" in line for line in lines[:16])
    assert "nan" not in page({"loss": [curve]})


def test_the_page_shows_names_as_text() -> None:
    curve = Curve("A", "<script>alert(1)</script>", "job", [0, 1], [1, 2])
    html = page({"a<b": [curve]})
    tags: list[str] = []

    class Tags(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            tags.append(tag)

    Tags().feed(html)
    assert "script" not in tags
    assert tags.count("polyline") == 1
    assert "a&lt;b" in html
    assert "http" not in html, "it needs nothing from elsewhere"
