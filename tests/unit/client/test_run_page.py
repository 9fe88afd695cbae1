"""The report of a run: one page, in which everything of others is text."""

from html.parser import HTMLParser

from gpuyard.client.curves import Curve
from gpuyard.client.run_page import run_page

EVIL = "<script src='http://evil'>alert(1)</script>"


def test_everything_in_the_report_is_text_and_nothing_is_elsewhere() -> None:
    curve = Curve("A", EVIL, "job", [0, 1], [1, 2])
    html = run_page(
        EVIL,
        {"command": EVIL, EVIL: "x", "reason": ""},
        {"Packages": EVIL, "Difference to git": ""},
        [(f"out/{EVIL}", "3 B", "ab" * 32)],
        {EVIL: [curve]},
    )
    tags: list[str] = []
    links: list[str] = []

    class Tags(HTMLParser):
        def handle_starttag(
            self, tag: str, attrs: list[tuple[str, str | None]]
        ) -> None:
            tags.append(tag)
            links.extend(name for name, _ in attrs if name in ("src", "href"))

    Tags().feed(html)
    assert not {"script", "link", "img", "iframe"} & set(tags)
    assert not links
    assert tags.count("polyline") == 1
    assert "&lt;script" in html
    assert "ab" * 32 in html
    for empty in ("reason", "Difference to git"):
        assert empty not in html
