"""Sweeps, flows, studies, checks, the audit and tools of jobs on the page."""

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Route, expect

from tests.support.board import LOGS, with_board
from tests.support.browser import shared_browser as browser
from tests.support.instance import TestInstance, make_instance
from tests.support.page_checks import check_for_all, signed_in
from tests.support.ports import free_port
from tests.support.wait import wait_until
from tests.support.web import http

__all__ = ["browser"]

__all__ = ["browser"]


# No browser may take a name for anything but text.
EVIL = "<img src=x onerror=alert(1)> \N{HEBREW LETTER ALEF}"


FLOW = f"""
name = '{EVIL}'

[steps.clean]
command = ["true"]

[steps.train]
command = ["echo", "loss"]
needs = ["clean"]

[steps.report]
command = ["false"]
needs = ["clean", "train"]
"""


@pytest.fixture(scope="module")
def instance() -> Iterator[TestInstance]:
    tools = f"127.0.0.1:{free_port()}"
    with make_instance(GPUYARD_SERVER__TOOLS_LISTEN=tools) as made:
        made.ok("up", "--simulate-gpus", "2x24")
        yield made


def test_a_sweep_is_drawn_and_its_best_run_found(
    instance: TestInstance, browser: Browser
) -> None:
    words = ["--param", "x=3,1,2", "--metric", "loss", "--name", "search"]
    instance.ok("sweep", *words, "--parallel", "3", "--", "echo", "step 1 loss {x}")
    with signed_in(instance, browser, "/sweeps") as page:
        page.get_by_role("link", name="search").click()
        drawing = page.get_by_role("img", name=re.compile("best is 1 with x 1"))
        expect(drawing.locator("polyline")).to_have_count(3)
        best = page.get_by_role("region", name="Runs").get_by_role("link").first
        expect(best).to_have_text("search-1")
        check_for_all(page)


def test_a_sweep_is_drawn_though_the_server_fails_at_first(
    instance: TestInstance, browser: Browser
) -> None:
    words = ["--param", "x=3,1", "--metric", "loss", "--name", "bumpy"]
    words += ["--take", "best", "--"]
    instance.ok("sweep", *words, "echo", "step 1 loss {x}")
    failed: set[str] = set()

    def fail_once(route: Route) -> None:
        path = route.request.url.partition("?")[0]
        if path in failed:
            route.continue_()
        else:
            failed.add(path)
            route.fulfill(status=503, body="{}")

    with signed_in(instance, browser, "/sweeps") as page:
        # The gate, the list of the runs, and the curve of each.
        asked = r"/api/v1/jobs(\?.*part%3Drun.*|/[^/?]+(/metrics\?.*)?)$"
        page.route(re.compile(asked), fail_once)
        page.get_by_role("link", name="bumpy").click()
        for row in ("bumpy-0 completed 3 3", "bumpy-1 completed 1 1"):
            expect(page.get_by_role("row", name=re.compile(row))).to_be_visible()
        # The page's requests come while the test waits for something of it.
        wait_until(
            lambda: page.evaluate("1") and len(failed) == 4, what="all four questions"
        )


def test_a_flow_is_drawn_with_what_needs_what(
    instance: TestInstance, browser: Browser
) -> None:
    (instance.work / "flow.toml").write_text(FLOW)
    done = instance.run("flow", "run", "flow.toml")
    assert "report: failed" in done.stdout, done.stderr
    with signed_in(instance, browser, "/sweeps") as page:
        page.get_by_role("link", name=EVIL).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(EVIL)
        steps = page.get_by_role("group", name=f"Steps of {EVIL}")
        expect(steps.locator("svg path")).to_have_count(3)
        expect(steps.locator(".node", has_text="report")).to_contain_text("failed")
        expect(steps.get_by_text("It needs clean, train.")).to_be_attached()
        check_for_all(page)


def test_studies_show_what_became_of_each_strategy(
    instance: TestInstance, browser: Browser
) -> None:
    labels = {"study": "run_20261129T090000", "study-part": "strategy"}
    job = instance.submit(["false"], name="tp4_pp1", labels=labels)
    instance.wait(job)
    with signed_in(instance, browser, "/studies") as page:
        run = page.get_by_role("region", name="run_20261129T090000")
        expect(run.get_by_role("row", name=re.compile("tp4_pp1"))).to_contain_text(
            "failed"
        )
        check_for_all(page)


STRATEGY = {"strategy": "hybrid", "status": "COMPLETED", "agreement": 1.0}


RESULT = {
    "study": EVIL,
    "model": "tiny/Llama",
    "objective": "cheapest",
    "best": "tp8",
    "reason": "tp8 needs least",
    "at": 1_800_000_000.0,
    "strategies": [
        {
            **STRATEGY,
            "strategy_id": "tp4",
            "rank": 2,
            "tokens_per_s": 50.0,
            "latency_ms_p50": 900.0,
        },
        {
            **STRATEGY,
            "strategy_id": "tp8",
            "rank": 1,
            "tokens_per_s": 100.0,
            "latency_ms_p50": 600.0,
        },
        {**STRATEGY, "strategy_id": "tp1", "label": "alone", "not_ranked": EVIL},
    ],
}


def test_what_came_of_a_study_is_ranked_and_drawn(
    instance: TestInstance, browser: Browser
) -> None:
    with http(instance) as client:
        left = client.put("/api/v1/studies/run_20261129T080000", json=RESULT)
        assert left.status_code == 200, left.text
    with signed_in(instance, browser, "/studies") as page:
        ranking = page.get_by_role("region", name="Ranking of run_20261129T080000")
        names = ranking.locator("tbody tr td:nth-child(2)")
        expect(names).to_have_text(["tp8", "tp4", "alone"])
        drawing = page.get_by_role("img", name=re.compile("tp8 100 at 600 ms"))
        expect(drawing.locator("circle")).to_have_count(2)
        expect(page.get_by_text("tp8 needs least")).to_be_visible()
        check_for_all(page)


def test_a_place_is_put_into_quarantine_and_taken_out(
    instance: TestInstance, browser: Browser
) -> None:
    labels = {"verification": "check_1"}
    instance.submit(["true"], name="verify rented", labels=labels)
    with signed_in(instance, browser, "/verification") as page:
        checks = page.get_by_role("region", name="Checks")
        expect(checks.get_by_role("link", name="rented")).to_be_visible()
        page.get_by_role("button", name="Put a place into quarantine").click()
        form = page.get_by_role("dialog")
        form.get_by_label(re.compile("Place")).fill("nowhere")
        form.get_by_label("Why").fill(EVIL)
        form.get_by_role("button", name="Quarantine").click()
        expect(form.get_by_role("alert")).to_contain_text("there is no provider")
        # What was typed is still there.
        form.get_by_label(re.compile("Place")).fill("node:box")
        form.get_by_label(re.compile("Place")).press("Enter")
        place = page.get_by_role("row", name=re.compile("node:box"))
        expect(place).to_contain_text(EVIL)
        check_for_all(page)
        place.get_by_role("button", name="End it").click()
        expect(place.get_by_role("button", name="Quarantine")).to_be_visible()
        place.get_by_role("button", name="Forget").click()
        expect(place).to_have_count(0)


def test_verdicts_are_shown_with_what_was_judged(
    instance: TestInstance, browser: Browser
) -> None:
    with http(instance) as client:
        for number, (outcome, trust) in enumerate([("passed", 0.5), ("failed", 0.3)]):
            line = {"name": "speed", "ok": outcome == "passed", "reason": EVIL}
            verdict = {
                "executor": "rented",
                "gpu_class": "a6000",
                "place": "node:box",
                "outcome": outcome,
                "reason": EVIL,
                "at": 1_800_000_000.0 + number,
                "trust": trust,
                "lines": [line],
                "evidence": "{}",
            }
            client.put(f"/api/v1/verifications/chk_{number}", json=verdict)
    with signed_in(instance, browser, "/verification") as page:
        trust = page.get_by_role("img", name="Trust in rented: from 0.5 to 0.3")
        expect(trust).to_be_visible()
        verdicts = page.get_by_role("region", name="Verdicts")
        expect(verdicts.get_by_role("row")).to_have_count(3)
        verdicts.get_by_role("button").first.click()
        about = page.get_by_role("dialog", name="rented: failed")
        judged = about.get_by_role("region", name="What was judged")
        expect(judged.get_by_role("row", name="speed")).to_contain_text("wrong")
        check_for_all(page)
        with page.expect_download() as saved:
            about.get_by_role("link", name="Download the evidence").click()
        assert Path(saved.value.path()).read_text() == "{}"


def test_the_audit_is_live_and_filtered_by_its_address(
    instance: TestInstance, browser: Browser
) -> None:
    path = "/audit?about=trust&text=a-place"
    with signed_in(instance, browser, path) as page:
        expect(page.get_by_text("No event is like that.")).to_be_visible()
        instance.ok("trust", "quarantine", "node:a-place", "--for", "1h")
        event = page.get_by_role("listitem")
        expect(event).to_have_count(1)
        event.get_by_role("button", name="trust changed").click()
        expect(page.get_by_role("dialog")).to_contain_text('"place": "node:a-place"')
        check_for_all(page)
        # The time is a whole second, and still no count.
        instance.ok("run", "--schedule", "0 3 1 1 *", "--name", "yearly", "--", "true")
        page.goto(f"{instance.address().url}/audit?text=yearly")
        expect(page.get_by_role("listitem")).to_contain_text("next at Jan 1, ")
        text = page.get_by_label("Text")
        text.fill("")
        text.press_sequentially("a b")
        expect(text).to_have_value("a b")
        instance.ok("schedule", "delete", "yearly")


def listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def test_what_a_job_serves_opens_in_a_tab_of_its_own(
    instance: TestInstance, browser: Browser
) -> None:
    port = free_port()
    (instance.work / "index.html").write_text("<h1>from the job</h1>")
    serve = ["python3", "-m", "http.server", str(port), "--bind", "127.0.0.1"]
    job = instance.submit(serve)
    wait_until(lambda: listens(port), what="the job to listen")
    with signed_in(instance, browser, f"/jobs/{job}") as page:
        page.get_by_role("button", name="Open a port").click()
        page.get_by_label("Port").fill(str(port))
        with page.expect_popup() as opened:
            page.get_by_role("button", name="Open", exact=True).click()
        tab = opened.value
        expect(tab.get_by_role("heading", name="from the job")).to_be_visible()
        host = f"{job.removeprefix('job_')}-{port}.localhost"
        assert tab.url.startswith(f"http://{host}:")
        assert not tab.evaluate("document.cookie"), "its cookie is not for scripts"
        check_for_all(page)
    instance.ok("cancel", job)


def test_tensorboard_opens_in_a_tab_of_its_own(
    instance: TestInstance, browser: Browser, tmp_path: Path
) -> None:
    own = with_board(tmp_path)
    job = instance.submit(["python3", "-c", LOGS], name="logs", environment=own)
    instance.wait(job)
    with signed_in(instance, browser, f"/jobs/{job}") as page:
        with page.expect_popup() as opened:
            page.get_by_role("button", name="TensorBoard").click()
        run = opened.value.get_by_role("link", name=f"logs-{job[-6:]}/")
        expect(run).to_be_visible(timeout=60_000)
    instance.ok("cancel", "tensorboard")
