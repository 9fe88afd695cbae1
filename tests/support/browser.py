"""A real browser without a window: Debian's Chromium, driven by Playwright."""

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

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


@pytest.fixture
def browser() -> Iterator[Browser]:
    """Chromium; its pages ask nobody for anything but what a test opens.

    A new one for each test: while it is there an event loop runs in this thread, and
    others could not run theirs.
    """
    program = shutil.which("chromium")
    require("browser", program is not None)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=list(_FLAGS))
        yield started
        started.close()
