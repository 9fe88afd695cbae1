"""The page in a browser: signed in, and looked at as axe-core does."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect

from tests.support.instance import TestInstance

# A machine that is busy with other tests takes its time.
PATIENCE_MS = 60_000
# The rules that look at colours: all others find the same in light and dark.
_OF_COLOURS = ["color-contrast", "link-in-text-block"]
_RULES: dict[str, dict[str, Any]] = {
    "light": {},
    "dark": {"runOnly": {"type": "rule", "values": _OF_COLOURS}},
}
_AXE = Path(__file__).parents[2] / "web/node_modules/axe-core/axe.min.js"


@contextmanager
def signed_in(
    instance: TestInstance, browser: Browser, path: str, token: str | None = None
) -> Iterator[Page]:
    """A screen of the page, signed in with `token`, or as the owner. What its scripts
    cannot do fails the test.
    """
    expect.set_options(timeout=PATIENCE_MS)
    context = browser.new_context()
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda said: _note_refusal(said.text, faults))
    address = instance.address()
    page.goto(f"{address.url}{path}")
    page.get_by_label("Token").fill(token or address.token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("navigation")).to_be_visible()
    try:
        yield page
    finally:
        context.close()
    assert not faults


def _note_refusal(text: str, faults: list[str]) -> None:
    if "Content Security Policy" in text:
        faults.append(text)


def check_for_all(page: Page) -> None:
    """Axe-core finds nothing serious, in light and dark."""
    faults: list[str] = []
    page.evaluate(_AXE.read_text())
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        options = {"resultTypes": ["violations"], **_RULES[theme]}
        answer = page.evaluate("options => axe.run(options)", options)
        found: list[dict[str, Any]] = answer["violations"]
        faults += [
            f"{page.url}, {theme}: {one['id']}: {node['html'][:200]} {node['failureSummary']}"
            for one in found
            if one["impact"] in ("serious", "critical")
            for node in one["nodes"]
        ]
    assert not faults, "\n".join(faults)
