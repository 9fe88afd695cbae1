"""A real browser without a window: Debian's Chromium, driven by Playwright."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def _chromium() -> Iterator[Browser]:
    """Chromium; its pages ask nobody for anything but what a test opens.

    While it is there an event loop runs in this thread, and others cannot run theirs.
    """
    program = shutil.which("chromium")
    require("browser", program is not None)
    with pytest.MonkeyPatch.context() as patch, sync_playwright() as playwright:
        patch.setattr(Page, "goto", _goto_whatever_the_network_does)
        started = playwright.chromium.launch(executable_path=program, args=list(_FLAGS))
        yield started
        started.close()


@pytest.fixture
def browser() -> Iterator[Browser]:
    """A Chromium of the test's own."""
    with _chromium() as started:
        yield started


@pytest.fixture(scope="module")
def shared_browser() -> Iterator[Browser]:
    """One for a module whose tests run no event loop, and close what they open: its
    start takes a second of processor time.
    """
    with _chromium() as started:
        yield started
