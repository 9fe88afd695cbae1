"""The page, in a real browser, against a real server with real jobs."""

import json
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.support.browser import shared_browser as browser
from tests.support.instance import TestInstance, make_instance
from tests.support.page_checks import check_for_all, signed_in
from tests.support.ports import free_port
from tests.support.wait import wait_until
from tests.support.web import http

__all__ = ["browser"]

# The others are looked at where people use them, in `test_page_screens.py`.
SCREENS = ["/", "/jobs", "/ui"]
LOSSES = """
import json, time
for step in range(40):
    print("GPUYARD_METRIC " + json.dumps({"step": step, "total": 40, "loss": 4 / (step + 1)}), flush=True)
for number in range(500):
    print("batch", number)
print("the end of training", flush=True)
while True:
    time.sleep(0.1)
"""

# It says what it hears.
LISTENER = """
for line in iter(input, ""):
    print("heard", line, flush=True)
"""

# What scrolls sideways, but for tabs and links.
_TOO_WIDE = """
[document.documentElement, ...document.querySelectorAll(".scrolls, .card")]
  .filter((element) => element.scrollWidth > element.clientWidth + 1)
  .map((element) => element.outerHTML.slice(0, 300))
"""

# Of what the page asks from now on, how often it asks what who has signed in may do.
_NOTE_QUESTIONS = """
() => {
  const ask = window.fetch;
  window.asked = [];
  window.fetch = (path, ...more) => {
    window.asked.push(String(path));
    return ask(path, ...more);
  };
}
"""
_RIGHTS_ASKED = "asked.filter((path) => path.endsWith('/whoami')).length"


@pytest.fixture(scope="module")
def instance() -> Iterator[TestInstance]:
    with make_instance() as made:
        made.ok("up", "--simulate-gpus", "8x24")
        yield made


@pytest.fixture
def page(instance: TestInstance, browser: Browser) -> Iterator[Page]:
    """The page, signed in as the owner. What its scripts cannot do fails the test."""
    with signed_in(instance, browser, "/") as made:
        yield made


@pytest.fixture
def guest(browser: Browser) -> Iterator[Page]:
    """A page on which nobody is signed in."""
    with browser.new_page() as made:
        yield made


def open_page(page: Page, instance: TestInstance, path: str = "/") -> None:
    address = instance.address()
    page.goto(f"{address.url}{path}")
    page.get_by_label("Token").fill(address.token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("navigation")).to_be_visible()


def submit(instance: TestInstance, *command: str, name: str) -> str:
    words = ["--detach", "--live", "--cpus", "0.1", "--name", name]
    return instance.ok("run", *words, "--", *command).strip()


def test_one_signs_in_with_a_token_and_out(instance: TestInstance, guest: Page) -> None:
    page = guest
    page.goto(instance.address().url)
    page.get_by_label("Token").fill("a-token-that-nobody-has")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("Nobody has this token.")
    open_page(page, instance)
    assert page.evaluate("document.cookie") == "", "the session is no script's to read"
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    page.reload()
    expect(page.get_by_label("Token")).to_be_visible()


def test_a_link_signs_one_browser_in(
    instance: TestInstance, browser: Browser, guest: Page
) -> None:
    link = instance.json("page")["url"]
    guest.goto(link)
    expect(guest.get_by_role("heading", name="Overview")).to_be_visible()
    assert "code" not in guest.url
    with browser.new_page() as other:
        other.goto(link)
        expect(other.get_by_label("Token")).to_be_visible()
        expect(other.get_by_role("alert")).to_contain_text("This link is used up")


def test_a_link_of_somebody_else_leaves_who_is_signed_in(
    instance: TestInstance, page: Page
) -> None:
    with http(instance) as web:
        assert web.post("/api/v1/users", json={"name": "eve"}).is_success
        token = web.post("/api/v1/tokens", json={"user": "eve"}).json()["token"]
        shown = {"Authorization": f"Bearer {token}"}
        link = web.post("/api/v1/sign-in/links", headers=shown).json()["url"]
    page.goto("about:blank")
    page.goto(link)
    expect(page.get_by_role("alert")).to_contain_text("This link is of eve")
    expect(page.get_by_text("owner · administrator")).to_be_visible()


def test_a_job_is_submitted_watched_and_cancelled(
    instance: TestInstance, page: Page
) -> None:
    program = instance.work / "losses.py"
    program.write_text(LOSSES)
    page.get_by_role("link", name="Submit", exact=True).click()
    page.get_by_label(re.compile("Command")).fill(f"python3 {program}")
    page.get_by_label("Name").fill("from the page")
    # What is no figure is not taken for nothing.
    gpus = page.get_by_label("GPUs", exact=True)
    gpus.fill("")
    gpus.press_sequentially("1-")
    page.get_by_role("button", name="Submit").click()
    expect(gpus).to_be_focused()
    gpus.fill("1")
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", name="from the page")).to_be_visible()
    # Nobody loads the page anew: it learns from the stream.
    expect(page.get_by_text("39 of 40")).to_be_visible()
    expect(page.get_by_text(re.compile(r"^GPU: \S+ · [0-7]$"))).to_be_visible()
    expect(
        page.get_by_role("img", name=re.compile("^loss: loss from 4"))
    ).to_be_visible()
    page.get_by_role("tab", name="log").click()
    expect(page.get_by_text("the end of training")).to_be_visible()
    page.get_by_label("Search the log").fill("BATCH 250")
    expect(page.get_by_role("log")).to_have_text(re.compile("batch 250$"))
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator(".badge", has_text="cancelled")).to_be_visible()
    page.get_by_role("tab", name="timeline").click()
    expect(page.get_by_text("job cancelled", exact=True)).to_be_visible()
    page.get_by_role("link", name="Overview").click()
    ended = re.compile("^Jobs that ended in the last hour: .*[1-9][0-9]* cancelled")
    expect(page.get_by_role("img", name=ended)).to_be_visible()


def test_a_shell_runs_beside_a_job_and_its_program_is_typed_to(
    instance: TestInstance, page: Page
) -> None:
    # The shell of whoever runs the tests may begin with much else.
    plain = {"HOME": str(instance.work)}
    listens = [sys.executable, "-c", LISTENER]
    job = instance.submit(listens, interactive=True, environment=plain)
    page.goto(f"{instance.address().url}/jobs/{job}?show=log")
    page.get_by_label("A line for the program").fill("one <b>")
    page.get_by_label("A line for the program").press("Enter")
    expect(page.get_by_role("log")).to_contain_text("heard one <b>")
    page.get_by_role("tab", name="shell").click()
    page.get_by_role("button", name="Start a shell").click()
    line = page.get_by_label("A line for the shell")
    expect(line).to_be_focused()
    output = page.get_by_role("log", name="Output of the shell")

    def type_line(text: str) -> None:
        line.fill(text)
        line.press("Enter")

    type_line("six=6; cd /")
    type_line(r"printf '\033[31m<img src=x> %s\033[0m 1%%\r\n' $((six * 7))")
    expect(output).to_contain_text("<img src=x> 42 1%")
    type_line(r"printf '10%%\r20%%\nin %s\n' $PWD")
    expect(output.get_by_text("20%", exact=True)).to_be_visible()
    expect(output.get_by_text("in /", exact=True)).to_be_visible()
    type_line("sleep 1000")
    line.press("Control+c")
    type_line("echo again $six")
    expect(output.get_by_text("again 6", exact=True)).to_be_visible()
    line.press("ArrowUp")
    expect(line).to_have_value("echo again $six")
    check_for_all(page)
    type_line("yes | head -c 20000000")
    expect(page.get_by_role("alert")).to_contain_text("more than 8 MiB")
    assert output.locator(".line").count() <= 1000
    page.get_by_role("button", name="Start a shell").click()
    expect(line).to_be_focused()
    instance.ok("cancel", job)
    expect(output).to_contain_text("The job has ended, and the shell with it")


def test_names_and_output_are_text_whatever_they_hold(
    instance: TestInstance, page: Page
) -> None:
    name = "<img src=x onerror=alert(1)> \N{HEBREW LETTER ALEF}"
    line = "<script>alert(2)</script> \x1b[31mred\x1b[0m"
    job = submit(instance, "printf", "%s\\n", line, name=name)
    page.goto(f"{instance.address().url}/jobs/{job}?show=log")
    expect(page.get_by_role("heading", level=1)).to_contain_text("<img src=x")
    expect(page.get_by_role("log")).to_contain_text("<script>alert(2)</script> red")
    for path in ("/", "/jobs", "/audit", f"/jobs/{job}?show=timeline"):
        page.goto(f"{instance.address().url}{path}")
        expect(page.get_by_text("<img src=x").first).to_be_visible()
        # Neither is an element of the page.
        expect(page.locator("img[src=x], script:not([src])")).to_have_count(0)


def test_a_clock_that_is_wrong_changes_no_time_span(
    instance: TestInstance, page: Page
) -> None:
    submit(instance, "true", name="just now")
    page.clock.set_system_time(datetime.now(UTC) + timedelta(hours=5))
    page.goto(f"{instance.address().url}/jobs?name=just+now")
    line = page.get_by_role("listitem").filter(has_text="just now")
    expect(line).to_contain_text("completed")
    expect(line).not_to_contain_text("h")


def test_the_overview_names_what_failed_and_leads_to_the_tasks_of_an_array(
    instance: TestInstance, page: Page
) -> None:
    words = ["--detach", "--live", "--cpus", "0.1", "--name", "shards"]
    fails = ["sh", "-c", "test $GPUYARD_ARRAY_INDEX = 0"]
    array = instance.ok("run", *words, "--array", "0-1", "--", *fails).strip()
    held: list[Route] = []
    page.route("**/api/v1/costs*", lambda route: held.append(route))
    page.goto(instance.address().url)
    failed = page.locator("section", has_text="Needs attention").get_by_role("link")
    failed.get_by_text("shards, task 1").wait_for()
    spending = page.locator("section", has_text="Spending")
    expect(spending).not_to_contain_text("Today")
    held[0].continue_()
    expect(spending).to_contain_text("Today")
    page.get_by_role("link", name="shards", exact=True).click()
    expect(page).to_have_url(re.compile(rf"/jobs\?array={array}$"))
    page.goto(f"{instance.address().url}/jobs/{array}")
    expect(page.get_by_label("Choose shards")).to_have_count(2)
    page.get_by_role("link", name="shards").first.click()
    expect(page).to_have_title("shards · gpuyard")


def test_no_screen_is_too_wide_for_a_phone(instance: TestInstance, page: Page) -> None:
    job = submit(instance, "true", name="a-name-that-is-long-" * 5)
    instance.wait(job)
    page.set_viewport_size({"width": 390, "height": 844})
    shown = {
        "/": ".card.gpu",
        "/jobs": ".list .item, .list .line",
        "/submit": "td[data-title='An hour']",
        "/machines": ".card",
        "/costs": "td[data-title='Cost']",
        "/audit": ".list .line",
        f"/jobs/{job}": ".badge",
        f"/jobs/{job}?show=timeline": "td",
    }
    for path, element in shown.items():
        page.goto(f"{instance.address().url}{path}")
        expect(page.locator(element).first).to_be_visible()
        assert page.evaluate(_TOO_WIDE) == [], path


def test_a_job_that_waits_is_changed_and_lies_beside_another_run(
    instance: TestInstance, page: Page
) -> None:
    loss = "GPUYARD_METRIC " + '{"step": 1, "loss": 4}'
    later = "GPUYARD_METRIC " + '{"step": 2, "loss": 3}'
    goes_on = f"echo '{loss}'; until [ -e on ]; do sleep 0.05; done; echo '{later}'"
    first = instance.submit(["sh", "-c", goes_on], name="twin")
    values = {"step": 1, "accuracy": 0.9, "loss": 4, "tensorboard/accuracy": 1}
    logged = "GPUYARD_METRIC " + json.dumps(values)
    job = instance.submit(["echo", logged], name="other", held=True)
    page.goto(f"{instance.address().url}/jobs?name=other")
    listed = page.get_by_role("listitem").filter(has_text=job[-8:])
    expect(listed).to_contain_text("held")
    page.goto(f"{instance.address().url}/jobs/{job}")
    state = page.locator(".head .badge")
    expect(state).to_have_text("held")
    page.get_by_role("button", name="Change").click()
    page.get_by_label("Its name").fill("twin")
    page.get_by_label(re.compile("^Priority")).fill("5")
    page.get_by_label("Its name").press("Enter")
    expect(page.get_by_role("heading", name="twin")).to_be_visible()
    page.get_by_role("button", name="Release").click()
    expect(state).to_have_text("completed")
    assert instance.job(job).priority == 5
    expect(page.locator(".columns h2").first).to_have_text("loss")
    page.get_by_label("Lay another run over it").select_option(first)
    both = re.compile(f"^loss: loss from 4 to 4, loss of {first[-8:]} from 4")
    expect(page.get_by_role("img", name=both)).to_be_visible()
    assert first in page.url
    check_for_all(page)
    (instance.work / "on").touch()
    both = re.compile(f"^loss: loss from 4 to 4, loss of {first[-8:]} from 4 to 3")
    expect(page.get_by_role("img", name=both)).to_be_visible()
    # One that is gone takes no other with it.
    page.goto(f"{page.url},job_{'0' * 32}")
    expect(page.get_by_role("alert")).to_contain_text("There is no job")
    expect(page.get_by_role("img", name=both)).to_be_visible()
    page.get_by_role("button", name="Without 00000000").click()
    expect(page.get_by_role("alert")).to_have_count(0)
    # This server has no port for tools.
    expect(page.get_by_role("button", name="TensorBoard")).to_have_count(0)


def test_a_job_is_submitted_at_times_until_its_schedule_is_deleted(
    instance: TestInstance, page: Page
) -> None:
    page.get_by_role("link", name="Submit", exact=True).click()
    page.get_by_label(re.compile("^Command")).fill("true")
    page.get_by_label("Name", exact=True).fill("nightly")
    page.get_by_text("When: arrays").click()
    page.get_by_label(re.compile("^Again at these times")).fill("0 3 1 1 *")
    expect(page.locator("pre")).to_contain_text("gpuyard run --schedule '0 3 1 1 *'")
    page.get_by_role("button", name="Submit").click()
    schedule = page.get_by_role("row").filter(has_text="nightly")
    expect(schedule).to_contain_text("none yet")
    check_for_all(page)
    schedule.get_by_role("button", name="Pause").click()
    expect(schedule).to_contain_text("paused")
    schedule.get_by_role("button", name="Change the times").click()
    page.get_by_label("Times", exact=True).fill("never")
    page.get_by_label("Times", exact=True).press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("cron")
    page.get_by_label("Times", exact=True).fill("@daily")
    page.get_by_label("Times", exact=True).press("Enter")
    expect(schedule).to_contain_text("@daily")
    schedule.get_by_role("button", name="Run now").click()
    expect(page.locator(".head .badge")).to_have_text("completed")
    page.get_by_role("link", name="Schedules").click()
    expect(schedule).to_contain_text("completed")
    schedule.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete it").click()
    expect(schedule).to_have_count(0)


def test_the_list_is_filtered_by_its_address_and_cancels_what_is_chosen(
    instance: TestInstance, page: Page
) -> None:
    for number in range(3):
        submit(instance, "sleep", "1000", name=f"sleeper-{number}")
    submit(instance, "true", name="another")
    page.goto(f"{instance.address().url}/jobs?name=sleeper")
    lines = page.get_by_role("listitem")
    expect(lines).to_have_count(3)
    page.get_by_label("Choose sleeper-0").check()
    page.get_by_label("Choose sleeper-2").check()
    page.get_by_role("button", name="Cancel").click()
    expect(lines.filter(has_text="cancelled")).to_have_count(2)
    page.get_by_label("State").select_option("cancelled")
    expect(lines).to_have_count(2)
    assert "state=cancelled" in page.url
    instance.ok("cancel", "--all", "--yes")


def test_a_page_whose_server_is_gone_says_so_and_catches_up(browser: Browser) -> None:
    port = str(free_port())
    with make_instance(GPUYARD_SERVER__PORT=port) as own:
        own.ok("up")
        with signed_in(own, browser, "/jobs") as page:
            expect(page.get_by_text("Nothing was submitted yet.")).to_be_visible()
            own.kill("server")
            notice = page.get_by_text("The server does not answer.")
            expect(notice.first).to_be_visible()
            # A screen that was not loaded yet takes the page not along.
            page.get_by_role("link", name="Costs").click()
            expect(page.get_by_text("This screen cannot be shown now.")).to_be_visible()
            page.get_by_role("link", name="Jobs").click()
            own.ok("up")
            job = submit(own, "true", name="meanwhile")
            line = page.get_by_role("listitem").filter(has_text="meanwhile")
            expect(line).to_contain_text("completed")
            expect(notice).to_have_count(0)
            assert own.wait(job).state == "completed"


def fill_in_when_and_for_whom(page: Page, parent: str) -> None:
    """What few jobs have, in the parts of the form that are folded away."""
    page.get_by_text("When: arrays").click()
    page.get_by_label("To end by").fill("2098-12-01 18:00")
    page.get_by_role("button", name="Wait for another job").press("Enter")
    job = page.get_by_label("Wait for the job")
    expect(job).to_be_focused()
    expect(page.locator(f"datalist option[value='{parent[-8:]}']")).to_be_attached()
    job.fill("no such job")
    page.get_by_label("It starts when that").select_option("has ended in any way")
    page.get_by_text("Labels, notices, secrets").click()
    page.get_by_label(re.compile("^Labels")).fill("team=vision")
    page.get_by_label(re.compile("^Whom to tell")).fill("http://127.0.0.1:9/ended")
    page.get_by_role("button", name="Give it a secret").click()
    page.get_by_role("combobox", name="Secret").select_option("HUB_TOKEN")
    page.get_by_label("In the variable").fill("HUB")
    # The parts that are looked into show what there is.
    page.get_by_text("Where: image").click()
    page.get_by_label("Only on this provider").select_option("local")
    page.get_by_text("Limits, tries").click()
    page.get_by_label("Try again, so often").fill("101")
    page.get_by_label("it failed").check()
    page.get_by_text("Checkpoints and files").click()
    page.get_by_label("Signal that makes it save").fill("SIGNAL")


def test_a_session_that_ends_leaves_what_was_typed(
    instance: TestInstance, page: Page
) -> None:
    instance.ok("secret", "set", "HUB_TOKEN", input="of the hub")
    parent = submit(instance, "sleep", "1000", name="comes first")
    page.get_by_role("link", name="Submit", exact=True).click()
    page.get_by_label("Name").fill("half typed")
    fill_in_when_and_for_whom(page, parent)
    page.get_by_role("link", name="Costs", exact=True).click()
    page.get_by_role("link", name="Submit", exact=True).click()
    page.evaluate(_NOTE_QUESTIONS)
    page.context.clear_cookies()
    page.get_by_label(re.compile("Command")).fill("echo")
    page.get_by_role("button", name="Submit").click()
    dialog = page.get_by_role("dialog", name="You were signed out")
    dialog.get_by_label("Token").fill(instance.address().token)
    dialog.get_by_role("button", name="Sign in").click()
    expect(dialog).to_be_hidden()
    expect(page.get_by_label("Name")).to_have_value("half typed")
    # What the server says of a field stands at it, until that is changed.
    page.get_by_role("button", name="Submit").click()
    tries = page.get_by_label("Try again, so often")
    expect(tries).to_have_accessible_description(re.compile("100"))
    tries.fill("1")
    signal = page.get_by_label("Signal that makes it save")
    expect(signal).to_have_accessible_description(re.compile("use USR1"))
    signal.fill("USR2")
    page.get_by_role("button", name="Submit").click()
    waits = page.get_by_role("group", name="Jobs that must end first")
    expect(waits).to_have_accessible_description(re.compile("no job 'no such job'"))
    page.get_by_label("Wait for the job").fill("comes first")
    expect(waits).to_have_accessible_description("")
    check_for_all(page)
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", name="half typed")).to_be_visible()
    # Whoever has signed in again listens once: what changes their rights is asked once.
    before = page.evaluate(_RIGHTS_ASKED)
    instance.ok("user", "add", "zoe")
    wait_until(lambda: page.evaluate(_RIGHTS_ASKED) > before, what="the question")
    assert page.evaluate(_RIGHTS_ASKED) == before + 1
    # A copy shows all of that, and becomes an array.
    page.get_by_role("link", name="Clone and edit").click()
    expect(page.get_by_label("To end by")).to_have_value("2098-12-01 18:00")
    expect(page.get_by_label("Wait for the job")).to_have_value("comes first")
    expect(page.get_by_text("The copied job told webhook at 127.0.0.1")).to_be_visible()
    expect(page.get_by_label("Only on this provider")).to_have_value("local")
    expect(page.get_by_label("it failed")).to_be_checked()
    expect(signal).to_have_value("USR2")
    indices = page.get_by_label("Once for each index")
    indices.fill("0-1,1")
    page.get_by_role("link", name="Costs", exact=True).click()
    page.go_back()
    expect(indices).to_have_value("0-1,1")
    page.set_viewport_size({"width": 390, "height": 844})
    page.get_by_role("button", name="Submit").click()
    expect(indices).to_have_accessible_description(re.compile("the index 1 twice"))
    assert page.evaluate(_TOO_WIDE) == []
    indices.fill("0-1")
    words = "--array 0-1 --after-any 'comes first' --deadline '2098-12-01 18:00' "
    expect(page.locator("pre")).to_contain_text(words)
    expect(page.locator("pre")).to_contain_text("--secret HUB=HUB_TOKEN")
    page.get_by_role("button", name="Submit").click()
    tasks = page.get_by_role("listitem")
    expect(tasks).to_have_count(2)
    page.get_by_role("link", name="Clone and edit").click()
    expect(indices).to_have_value("0-1")
    page.get_by_label("In the variable").fill("")
    page.get_by_role("button", name="Remove HUB_TOKEN").click()
    expect(page.get_by_role("button", name="Give it a secret")).to_be_focused()
    instance.ok("cancel", parent)
    with instance.client() as client:
        newest = next(client.jobs(name="half typed"))
    task = instance.wait(newest.id)
    assert (task.state, task.labels) == ("completed", {"team": "vision"})


def test_a_viewer_sees_no_button_that_is_not_theirs(
    instance: TestInstance, guest: Page
) -> None:
    job = submit(instance, "true", name="of the owner")
    instance.ok("user", "add", "vera", "--role", "viewer")
    token = instance.json("token", "new", "--user", "vera", "--name", "page")
    page = guest
    page.goto(f"{instance.address().url}/jobs/{job}")
    page.get_by_label("Token").fill(token["token"])
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("heading", name="of the owner")).to_be_visible()
    expect(page.get_by_role("button", name="Run again")).to_have_count(0)
    instance.ok("token", "revoke", token["id"])
    # The dialog may be there already, and in the way of a click.
    page.get_by_role("link", name="Jobs").dispatch_event("click")
    # Who has no valid token any more has no session, either.
    expect(page.get_by_role("dialog", name="You were signed out")).to_be_visible()


def test_who_signs_in_again_in_one_tab_goes_on_in_all(
    instance: TestInstance, page: Page
) -> None:
    page.get_by_role("link", name="Submit", exact=True).click()
    page.get_by_label("Name").fill("half typed")
    other = page.context.new_page()
    other.goto(f"{instance.address().url}/nowhere")
    expect(other.get_by_text("Nothing is at this address.")).to_be_visible()
    other.get_by_role("link", name="Go to the overview").click()
    expect(other.get_by_role("heading", name="Overview")).to_be_visible()
    page.context.clear_cookies()
    page.get_by_label(re.compile("Command")).fill("echo")
    # No real clicks: the dialog may stand before them already.
    page.get_by_role("button", name="Submit").dispatch_event("click")
    other.get_by_role("link", name="Jobs", exact=True).dispatch_event("click")
    dialogs = [
        tab.get_by_role("dialog", name="You were signed out") for tab in (page, other)
    ]
    for dialog in dialogs:
        expect(dialog).to_be_visible()
    dialogs[1].get_by_label("Token").fill(instance.address().token)
    dialogs[1].get_by_role("button", name="Sign in").click()
    for dialog in dialogs:
        expect(dialog).to_be_hidden()
    expect(page.get_by_label("Name")).to_have_value("half typed")


def test_a_session_is_used_by_our_own_page_only(instance: TestInstance) -> None:
    address = instance.address()
    own = {"Origin": address.url}
    with httpx.Client(base_url=address.url, timeout=30) as web:
        form = {"token": address.token}
        foreign = web.post("/auth/token", data=form, headers={"Origin": "http://evil"})
        assert foreign.status_code == 403
        assert web.post("/auth/token", data=form).status_code == 403
        answer = web.post("/auth/token", data=form, headers=own)
        assert answer.status_code == 204
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=Lax" in cookie
        assert web.get("/api/v1/whoami").json()["role"] == "administrator"
        spec = {"command": ["true"]}
        assert web.post("/api/v1/jobs", json=spec).status_code == 403
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            for headers in ({}, {"Origin": "null"}, {"Origin": f"{address.url}.evil"}):
                answer = web.request(method, "/api/v1/budgets/all", headers=headers)
                assert answer.status_code == 403, (method, headers, answer.text)
        web.post("/auth/logout", headers=own)
        # A copy of the cookie is worth nothing after the sign-out.
        kept = {"Cookie": cookie.partition(";")[0]}
        assert web.get("/api/v1/whoami", headers=kept).status_code == 401


def test_the_page_loads_little_and_nothing_from_elsewhere(
    instance: TestInstance,
) -> None:
    with http(instance, headers={"Accept-Encoding": "gzip"}) as web:
        index = web.get("/")
        policy = index.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert index.headers["x-content-type-options"] == "nosniff"
        assert index.headers["referrer-policy"] == "same-origin"
        assert not re.search(r"https?://", index.text)
        assets = re.findall(r'(?:src|href)="(/assets/[^"]+)"', index.text)
        answers = [index, *(web.get(asset) for asset in assets)]
        sizes = [int(answer.headers["content-length"]) for answer in answers]
        assert len(assets) >= 2
        assert sum(sizes) < 60_000, "the first screen's own code"
        for answer in answers[1:]:
            assert "immutable" in answer.headers["cache-control"]
        assert web.get("/assets/../../auth.py").status_code == 404
        assert web.get("/assets/none.js").status_code == 404
        assert web.get("/jobs/some-job").text == index.text


def test_screens_serve_keyboards_and_screen_readers(
    instance: TestInstance, page: Page
) -> None:
    job = submit(instance, "true", name="seen by all")
    for path in [*SCREENS, f"/jobs/{job}", f"/jobs/{job}?show=log"]:
        page.goto(f"{instance.address().url}{path}")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        check_for_all(page)
    # A new screen has the keyboard, and not the link that led there.
    page.get_by_role("link", name="Jobs").press("Enter")
    expect(page.get_by_role("main")).to_be_focused()
    page.keyboard.press("Shift+Tab")
    expect(page.get_by_role("button", name="Sign out")).to_be_focused()
