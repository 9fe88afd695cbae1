"""Jobs on the page: watched, changed, cancelled and listed."""

import json
import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from tests.support.browser import shared_browser as browser
from tests.support.instance import TestInstance, make_instance
from tests.support.page_checks import check_for_all, signed_in
from tests.support.page_fixtures import badge, page, show, submit

__all__ = ["browser", "page"]

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


@pytest.fixture(scope="module")
def instance() -> Iterator[TestInstance]:
    with make_instance() as made:
        made.ok("up", "--simulate-gpus", "8x24")
        yield made


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


def test_a_part_of_a_curve_stays_in_sight_while_it_grows(
    instance: TestInstance, page: Page
) -> None:
    first = "GPUYARD_METRIC " + json.dumps({"step": 1, "loss": 4})
    second = "GPUYARD_METRIC " + json.dumps({"step": 2, "loss": 3})
    third = "GPUYARD_METRIC " + json.dumps({"step": 3, "loss": 2})
    waits = "until [ -e grow ]; do sleep 0.05; done"
    program = f"echo '{first}'; echo '{second}'; {waits}; echo '{third}'"
    job = instance.submit(["sh", "-c", program])
    page.goto(f"{instance.address().url}/jobs/{job}")
    curve = page.get_by_role("img", name=re.compile("^loss: loss from 4 to 3"))
    box = curve.locator(".u-over").bounding_box()
    assert box
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.2, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, middle)
    page.mouse.up()
    whole = page.get_by_role("button", name="Show all of it")
    expect(whole).to_be_visible()
    (instance.work / "grow").touch()
    grown = page.get_by_role("img", name=re.compile("^loss: loss from 4 to 2"))
    expect(grown).to_be_visible()
    expect(whole).to_be_visible()
    whole.click()
    expect(whole).to_have_count(0)


def test_a_job_that_cannot_start_again_keeps_no_other_from_it(
    instance: TestInstance, page: Page
) -> None:
    refused = instance.submit(["false"], name="again-1")
    others = [instance.submit(["false"], name=f"again-{n}") for n in (0, 2)]
    for job in (refused, *others):
        instance.wait(job, "failed")

    def refuse(route: Route) -> None:
        route.fulfill(status=409, json={"title": "It cannot be.", "status": 409})

    page.route(f"**/api/v1/jobs/{refused}/resume", refuse)
    page.goto(f"{instance.address().url}/jobs?name=again")
    for number in range(3):
        page.get_by_label(f"Choose again-{number}").check()
    page.get_by_role("button", name="Start again").click()
    expect(page.get_by_role("alert")).to_contain_text("again-1: It cannot be.")
    expect(page.get_by_text("1 chosen")).to_be_visible()
    assert all(len(instance.job(job).attempts) > 1 for job in others)


def test_two_tabs_that_cancel_at_once_agree(instance: TestInstance, page: Page) -> None:
    words = ["--detach", "--live", "--cpus", "0.1", "--name", "cancelled twice"]
    job = instance.ok("run", *words, "--", "sleep", "1000").strip()
    other = page.context.new_page()
    for tab in (page, other):
        show(tab, instance, f"/jobs/{job}")
        expect(tab.get_by_role("button", name="Cancel")).to_be_visible()
    # Both ask before either has heard of the end.
    for tab in (page, other):
        press = "document.querySelector('.button.danger').click()"
        tab.evaluate(press)
    for tab in (page, other):
        badge(tab, "cancelled")
        expect(tab.get_by_role("alert")).to_have_count(0)


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
    lasts = f"echo '{metric}'; until [ -e over ]; do sleep 0.05; done"
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
        (instance.work / "over").touch()
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
