"""A real browser without a window: Debian's Chromium, driven by Playwright."""

import os
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

NEEDED = "Chromium is not installed: apt-get install chromium"
_FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
          "--disable-component-update", "--disable-sync")  # fmt: skip


@pytest.fixture
def browser() -> Iterator[Browser]:
    """Chromium; its pages ask nobody for anything but what a test opens.

    A new one for each test: while it is there an event loop runs in this thread, and others could not run theirs.
    """
    program = shutil.which("chromium")
    if program is None:
        if os.environ.get("CI") == "true":
            pytest.fail(NEEDED)
        pytest.skip(NEEDED)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=list(_FLAGS))
        yield started
        started.close()
