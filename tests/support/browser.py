"""A real browser without a window: Debian's Chromium, driven by Playwright."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Error, Page, Response, sync_playwright

from tests.support.components import require

_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


_goto = Page.goto


def _goto_whatever_the_network_does(
    page: Page, url: str, **options: Any
) -> Response | None:
    """Other tests make network interfaces meanwhile, and at each one Chromium breaks
    off what it loads, also from this machine.
    """
    while True:
        try:
            return _goto(page, url, **options)
        except Error as error:
            if "ERR_NETWORK_CHANGED" not in error.message:
                raise


@pytest.fixture
def browser(monkeypatch: pytest.MonkeyPatch) -> Iterator[Browser]:
    """Chromium; its pages ask nobody for anything but what a test opens.

    A new one for each test: while it is there an event loop runs in this thread, and
    others could not run theirs.
    """
    monkeypatch.setattr(Page, "goto", _goto_whatever_the_network_does)
    program = shutil.which("chromium")
    require("browser", program is not None)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=list(_FLAGS))
        yield started
        started.close()
