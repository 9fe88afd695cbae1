"""The page, signed in, and what tests of its screens do again and again."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.instance import TestInstance
from tests.support.page_checks import signed_in

# What scrolls sideways, but for tabs and links.
TOO_WIDE = """
[document.documentElement, ...document.querySelectorAll(".scrolls, .card")]
  .filter((element) => element.scrollWidth > element.clientWidth + 1)
  .map((element) => element.outerHTML.slice(0, 300))
"""


@pytest.fixture
def page(instance: TestInstance, browser: Browser) -> Iterator[Page]:
    """The page, signed in as the owner. What its scripts cannot do fails the test."""
    with signed_in(instance, browser, "/") as made:
        yield made


def submit(instance: TestInstance, *command: str, name: str) -> str:
    words = ["--detach", "--live", "--cpus", "0.1", "--name", name]
    return instance.ok("run", *words, "--", *command).strip()


def show(page: Page, instance: TestInstance, path: str) -> None:
    page.goto(f"{instance.client().address.url}{path}")
    expect(page.get_by_role("heading", level=1)).to_be_visible()


def badge(page: Page, state: str) -> None:
    """Wait until the job that is shown is in this state."""
    expect(page.locator(".head .badge")).to_have_text(state)
