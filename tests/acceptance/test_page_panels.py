"""The screens of the page beside jobs and machines, in a real browser."""

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
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

# No browser may take a name for anything but text.
EVIL = "<img src=x onerror=alert(1)> \N{HEBREW LETTER ALEF}"
FAIR = """
[scheduler]
policy = "fair"

[fair_share.organisations.physics]
shares = 1

[fair_share.projects.vision]
organisation = "physics"
shares = 3
"""
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


# Buttons with which nobody changes anything of the server's.
HARMLESS = {"Choose", "Choose files", "Clear", "Copy"}
HARMLESS |= {"Month before", "Today", "Month after"}


@pytest.fixture(scope="module")
def instance() -> Iterator[TestInstance]:
    tools = f"127.0.0.1:{free_port()}"
    with make_instance(GPUYARD_SERVER__TOOLS_LISTEN=tools) as made:
        made.home.create()
        made.home.settings.write_text(FAIR)
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


def test_a_service_account_has_tokens_that_are_replaced_and_revoked(
    instance: TestInstance, browser: Browser
) -> None:
    instance.ok("project", "add", "robots")
    with signed_in(instance, browser, "/people?show=service+accounts") as page:
        opener = page.get_by_role("button", name="Add a service account")
        opener.click()
        expect(page.get_by_role("dialog")).to_be_visible()
        page.keyboard.press("Escape")
        expect(opener).to_be_focused()
        opener.click()
        form = page.get_by_role("dialog")
        check_for_all(page)
        form.get_by_label(re.compile("Name")).fill("nightly")
        form.get_by_label(re.compile("Name")).press("Enter")
        # The browser goes to what is required and missing, and says so.
        project = form.get_by_label(re.compile("^Project"))
        expect(project).to_be_focused()
        project.select_option("robots")
        form.get_by_label(re.compile("Name")).press("Enter")
        shown = page.get_by_role("dialog", name="The token first of nightly")
        token = shown.get_by_label("Token").inner_text()
        shown.get_by_role("button", name="Close").click()
        accounts = page.get_by_role("region", name="Service accounts")
        expect(accounts.get_by_role("row", name=re.compile("nightly"))).to_contain_text(
            "member"
        )
        check_for_all(page)
        tokens = page.get_by_role("region", name="Tokens")
        tokens.get_by_role("button", name="Revoke").click()
        page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
        expect(page.get_by_role("heading", name="Their tokens")).to_have_count(0)
        refused = httpx.get(
            f"{instance.address().url}/api/v1/whoami",
            headers={"Authorization": f"Bearer {token}"},
            timeout=60,
        )
        assert refused.status_code == 401
        page.get_by_role("tab", name="reservations").click()
        page.get_by_role("tab", name="reservations").press("ArrowLeft")
        expect(page.get_by_role("tab", name="sign-ins")).to_be_focused()
        lines = page.get_by_role("region", name="Sign-ins and changes")
        expect(lines.get_by_text("POST /api/v1/users")).to_be_visible()
        page.get_by_label("Event").select_option("refused")
        expect(lines.get_by_text("GET /api/v1/whoami").first).to_be_visible()
        expect(lines.get_by_text("POST /api/v1/users")).to_have_count(0)
        check_for_all(page)


def test_shares_stand_beside_what_was_used(
    instance: TestInstance, browser: Browser
) -> None:
    instance.wait(instance.submit(["true"], project="vision"))
    with signed_in(instance, browser, "/people?show=shares") as page:
        shares = page.get_by_role("region", name="Fair shares")
        organisation = shares.get_by_role(
            "row", name=re.compile("organisation physics")
        )
        expect(organisation.get_by_role("progressbar")).to_have_count(2)
        used = organisation.get_by_label("Used by physics")
        expect(used).to_have_attribute("aria-valuenow", re.compile("[0-9]+"))
        expect(shares.get_by_text("owner in vision")).to_be_visible()
        check_for_all(page)


def test_secrets_and_budgets_are_set_and_what_ran_is_measured(
    instance: TestInstance, browser: Browser
) -> None:
    job = instance.submit(["sleep", "1.2"], name="measured")
    with signed_in(instance, browser, "/people?show=secrets") as page:
        page.get_by_role("button", name="Set a secret").click()
        page.get_by_label(re.compile("^Name")).fill("HF_TOKEN")
        page.get_by_label("Value").fill("hidden-value")
        page.get_by_label("Value").press("Enter")
        secret = page.get_by_role("row", name=re.compile("HF_TOKEN"))
        expect(secret).to_contain_text("shared")
        expect(page.get_by_text("hidden-value")).to_have_count(0)
        check_for_all(page)
        secret.get_by_role("button", name="Remove").click()
        page.get_by_role("button", name="Remove it").click()
        expect(secret).to_have_count(0)
        page.get_by_role("link", name="Costs", exact=True).click()
        page.get_by_role("button", name="Set a budget").click()
        page.get_by_label("Name", exact=True).fill("lab")
        page.get_by_label("Amount").fill("0")
        page.get_by_label("Amount").press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("amount")
        page.get_by_label("Amount").fill("25")
        page.get_by_label("Amount").press("Enter")
        expect(page.get_by_text("of $25.00")).to_be_visible()
        check_for_all(page)
        page.get_by_role("button", name="Change lab").click()
        page.get_by_label("Amount").fill("50")
        page.get_by_label("Amount").press("Enter")
        expect(page.get_by_text("of $50.00")).to_be_visible()
        page.get_by_role("button", name="Remove lab").click()
        page.get_by_role("button", name="Remove it").click()
        expect(page.get_by_text("of $50.00")).to_have_count(0)
        instance.wait(job)
        page.get_by_role("tab", name="Benchmarks").click()
        programs = page.get_by_role("region", name="Programs")
        expect(programs.get_by_role("row", name="measured")).to_contain_text("no GPU")
        check_for_all(page)


def test_a_token_is_shown_once_and_is_good_until_it_is_revoked(
    instance: TestInstance, browser: Browser
) -> None:
    with signed_in(instance, browser, "/people") as page:
        page.get_by_role("button", name="Add a user").click()
        form = page.get_by_role("dialog")
        form.get_by_label(re.compile("Name")).fill("ana")
        form.get_by_role("button", name="Add").click()
        shown = page.get_by_role("dialog", name="The token first of ana")
        token = shown.get_by_label("Token").inner_text()
        shown.get_by_role("button", name="Close").click()
        check_for_all(page)
        page.get_by_label("Role of ana").select_option("viewer")
        page.get_by_role("tab", name="tokens").click()
        with signed_in(instance, browser, "/people?show=tokens", token) as own:
            expect(own.get_by_text("ana · viewer")).to_be_visible()
            own.get_by_role("button", name="Make a token").click()
            own.get_by_label(re.compile("Name")).fill("laptop")
            own.get_by_role("button", name="Make", exact=True).click()
            expect(own.get_by_label("Token", exact=True)).to_contain_text("gpuyard_")
        line = page.get_by_role("row", name=re.compile("^first"))
        line.get_by_role("button", name="Revoke").click()
        page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
        expect(line).to_have_count(0)
        expect(page.get_by_role("row", name=re.compile("^laptop"))).to_be_visible()
        check_for_all(page)


def test_projects_have_members_and_reservations_stand_in_the_calendar(
    instance: TestInstance, browser: Browser
) -> None:
    instance.ok("user", "add", "ben")
    with signed_in(instance, browser, "/people?show=projects") as page:
        page.get_by_role("button", name="Register a project").click()
        page.get_by_label("Name").fill(EVIL.replace("/", ""))
        page.get_by_role("button", name="Register", exact=True).click()
        project = page.get_by_role("article", name=EVIL)
        project.get_by_role("button", name="Add a member").click()
        page.get_by_label(re.compile("^User")).select_option("ben")
        page.get_by_role("button", name="Add", exact=True).click()
        expect(project.get_by_role("row", name=re.compile("ben"))).to_be_visible()
        check_for_all(page)
        page.get_by_role("tab", name="reservations").click()
        page.get_by_role("button", name="Reserve GPUs").click()
        form = page.get_by_role("dialog")
        form.get_by_label(re.compile("^For")).select_option("user ben")
        form.get_by_label("To", exact=True).fill("2099-01-01T09:00")
        form.get_by_role("button", name="Reserve").click()
        calendar = page.get_by_role("region", name="Calendar")
        calendar.get_by_role("button", name="ben: 1 GPU").first.click()
        check_for_all(page)
        page.get_by_role("button", name="Remove it").click()
        expect(calendar.get_by_role("button")).to_have_count(0)


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


def listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def test_who_may_not_sees_no_button(instance: TestInstance, browser: Browser) -> None:
    instance.ok("user", "add", "vera", "--role", "viewer")
    instance.ok("trust", "quarantine", "node:of-others", "--for", "1h")
    token = instance.json("token", "new", "--user", "vera", "--name", "page")["token"]
    with signed_in(instance, browser, "/people", token) as page:
        expect(page.get_by_role("row", name=re.compile("^vera"))).to_be_visible()
        expect(page.get_by_role("button", name="Add a user")).to_have_count(0)
        expect(page.get_by_label("Role of vera")).to_have_count(0)
        page.get_by_role("link", name="Verification").click()
        expect(page.get_by_text("node:of-others")).to_be_visible()
        # Everybody may look at what a check has judged.
        changing = re.compile("quarantine|forget|end it", re.IGNORECASE)
        buttons = page.get_by_role("main").get_by_role("button", name=changing)
        expect(buttons).to_have_count(0)
        page.get_by_role("link", name="Submit", exact=True).click()
        page.get_by_text("Project, labels, notices", exact=True).click()
        expect(page.get_by_label(re.compile("^Whom to tell"))).to_be_visible()
        expect(page.get_by_role("button", name="Give it a secret")).to_have_count(0)
        for path, shown in {
            "/": "Newest jobs",
            "/submit": "Viewers submit nothing",
            "/schedules": "There is no schedule",
            "/sweeps": "Flows",
            "/batches": "Batches",
            "/data": "Datasets",
            "/models": "Models",
            "/machines": "online",
            "/offers": "healthy",
            "/clouds": "Nothing is rented",
            "/costs?show=bills": "Export",
            "/people?show=projects": "Projects",
            "/people?show=service+accounts": "Service accounts",
            "/people?show=secrets": "Secrets",
            "/people?show=reservations": "Today",
            "/people?show=shares": "vision",
        }.items():
            page.goto(f"{instance.address().url}{path}")
            main = page.get_by_role("main")
            expect(main.get_by_text(shown).first).to_be_visible()
            names = set(main.locator("button:not([role=tab])").all_inner_texts())
            assert names <= HARMLESS, f"{path}: {names - HARMLESS}"
