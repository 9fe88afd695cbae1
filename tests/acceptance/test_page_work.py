"""The work under way, on the page: arrays as a whole, and GPUs with what they do."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.support.browser import shared_browser as browser
from tests.support.instance import TestInstance, make_instance
from tests.support.page_checks import check_for_all, signed_in

__all__ = ["browser"]


@pytest.fixture(scope="module")
def instance() -> Iterator[TestInstance]:
    with make_instance() as made:
        made.ok("up", "--simulate-gpus", "2x24")
        yield made


def test_an_array_is_held_changed_cancelled_and_resumed_as_a_whole(
    instance: TestInstance, browser: Browser
) -> None:
    words = ["--detach", "--hold", "--array", "0-2", "--name", "seeds", "--cpus", "0.1"]
    array = instance.ok("run", *words, "--", "true").strip()
    with signed_in(instance, browser, "/") as page:
        page.get_by_role("link", name="seeds").click()
        head = page.locator("main .head").first
        expect(head).to_contain_text("The tasks of seeds: 3 queued")
        check_for_all(page)
        page.get_by_role("button", name="Change").click()
        page.get_by_label("So many tasks at once").fill("1")
        page.get_by_label("Done by").fill("8h")
        page.get_by_label("Done by").press("Enter")
        expect(page.get_by_role("dialog")).to_have_count(0)
        shown = instance.json("show", array)
        assert shown["at_most"] == 1 and shown["spec"]["deadline"] > 0
        page.get_by_role("button", name="Cancel the array").click()
        expect(head).to_contain_text("3 cancelled")
        expect(page.get_by_role("button", name="Cancel the array")).to_have_count(0)
        page.get_by_role("button", name="Resume what did not complete").click()
        expect(head).to_contain_text("3 completed")
        with page.expect_request(re.compile(r"/jobs\?.*\bsince=\d")):
            page.get_by_label("Submitted").select_option("1h")
        expect(page.get_by_role("listitem")).to_have_count(3)
        assert "since=1h" in page.url


def test_a_gpu_says_how_far_its_job_is_and_what_is_wrong_now(
    instance: TestInstance, browser: Browser
) -> None:
    metric = "GPUYARD_METRIC " + '{"step": 1, "total": 2}'
    lasts = f"echo '{metric}'; until [ -e on ]; do sleep 0.05; done"
    gpus = {"gpus": {"count": 1}}
    job = instance.submit(["sh", "-c", lasts], name="half", resources=gpus)
    with signed_in(instance, browser, "/jobs") as page:
        page.route(
            "**/api/v1/nodes",
            lambda route: route.fulfill(
                json={"items": [{"name": "desk", "disk": {"problem": "is full"}}]}
            ),
        )
        page.get_by_role("link", name="Overview").click()
        tile = page.get_by_role("article").filter(has_text="half")
        expect(tile).to_contain_text("50 %")
        expect(page.get_by_text("desk: is full")).to_be_visible()
        (instance.work / "on").touch()
        expect(tile).to_have_count(0)
    assert instance.wait(job, "completed")


def test_a_job_gets_other_times_while_it_waits_and_when_it_is_resumed(
    instance: TestInstance, browser: Browser
) -> None:
    job = instance.submit(["true"], name="later", held=True)
    with signed_in(instance, browser, f"/jobs/{job}") as page:
        page.get_by_role("button", name="Change").click()
        page.get_by_label("End it after").fill("2h")
        page.get_by_label("Done by").fill("2098-12-01 18:00")
        page.get_by_label("Done by").press("Enter")
        expect(page.get_by_role("dialog")).to_have_count(0)
        page.get_by_role("button", name="Change").click()
        expect(page.get_by_label("End it after")).to_have_value("7200")
        expect(page.get_by_label("Done by")).to_have_value("2098-12-01 18:00")
        page.get_by_role("button", name="Close").click()
        page.get_by_role("button", name="Cancel").click()
        page.get_by_role("button", name="Resume with").click()
        page.get_by_label("End it after").fill("3h")
        page.get_by_role("button", name="Resume it").click()
        expect(page.locator("main .head .badge")).to_have_text("completed")
    assert instance.job(job).spec["timeout_s"] == 3 * 3600
