"""The page with a long queue: what it shows and does, not how fast.

`make soak` runs it with 100,000 jobs.
"""

import json
import os
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.support.browser import browser
from tests.support.instance import TestInstance, make_instance
from tests.support.page_checks import signed_in
from tests.support.wait import wait_until

__all__ = ["browser"]

JOBS = int(os.environ.get("GPUYARD_SOAK_PAGE_JOBS", "0"))
_AT_ONCE = 5_000
# So many lines of the list may be in the document.
_MOST_LINES = 100
# Scrolls to the end of what is loaded, again and again, until the newest line is there.
_TO_THE_END = """
(name) => new Promise((resolve) => {
  const box = document.querySelector(".list .body");
  const step = () => {
    box.scrollTop = box.scrollHeight;
    const links = [...box.querySelectorAll("a")];
    if (links.some((link) => link.textContent === name)) resolve(links.length);
    else setTimeout(step, 20);
  };
  step();
})
"""
pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.skipif(JOBS == 0, reason="`make soak` runs it"),
]


@pytest.fixture
def instance() -> Iterator[TestInstance]:
    """All jobs wait: none fits on a host with one simulated GPU."""
    with make_instance(GPUYARD_SERVER__MAX_BODY_MB="256") as made:
        made.ok("up", "--simulate-gpus", "1x24")
        submit_all(made)
        yield made


def submit_all(instance: TestInstance) -> None:
    address = instance.address()
    headers = {"Authorization": f"Bearer {address.token}"}
    # The first one holds the GPU, so that the others wait for it.
    bodies = [
        {
            "name": f"waiting-{number:06}",
            "command": ["sleep", "100000"],
            "workdir": "/tmp",
            "resources": {"gpus": 1, "cpus": 0.1},
        }
        for number in range(JOBS)
    ]
    with httpx.Client(base_url=address.url, headers=headers, timeout=600) as web:
        for first in range(0, JOBS, _AT_ONCE):
            part = json.dumps(bodies[first : first + _AT_ONCE])
            answer = web.post("/api/v1/jobs", content=part)
            assert answer.status_code in (200, 201), answer.text[:1000]

        def are_there() -> bool:
            return sum(web.get("/api/v1/server").json()["jobs"].values()) == JOBS

        wait_until(are_there, 600, "all jobs to be in the queue")


def test_a_long_queue_is_scrolled_filtered_and_changed(
    instance: TestInstance, browser: Browser
) -> None:
    with signed_in(instance, browser, "/jobs") as page:
        page.set_default_timeout(600_000)
        lines = page.get_by_role("listitem")
        expect(lines.first).to_contain_text(f"waiting-{JOBS - 1:06}")
        shown = page.evaluate(_TO_THE_END, f"waiting-{0:06}")
        assert shown <= _MOST_LINES, "only what is in sight is in the document"
        page.get_by_role("searchbox", name="name").fill(f"waiting-{JOBS // 2:06}")
        expect(lines).to_have_count(1)
        page.get_by_label(f"Choose waiting-{JOBS // 2:06}").check()
        page.get_by_role("button", name="Cancel").click()
        expect(lines.first).to_contain_text("cancelled")
        page.get_by_label("State").select_option("queued")
        expect(page.get_by_text("No job is like that.")).to_be_visible()
        page.get_by_role("link", name="Overview").click()
        queued = page.get_by_role("link", name="queued")
        expect(queued).to_contain_text(f"{JOBS - 2:,}")
