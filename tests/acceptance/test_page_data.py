"""Data, batches, models and machines on the page: what jobs work with."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.browser import shared_browser as browser
from tests.support.instance import TestInstance, make_instance
from tests.support.page_checks import check_for_all, signed_in
from tests.support.page_fixtures import page, show
from tests.support.ports import free_port
from tests.support.web import http

__all__ = ["browser", "page"]

# It refuses items whose text says so.
SCRIPT = """
import time
from pathlib import Path

def load(args):
    def run(args, folder, progress):
        while args.get("waits"):
            time.sleep(0.05)
        if Path(args["path"]).read_text() == args.get("refuses"):
            raise ValueError("it is no good")
        return {"text": "done"}
    return run
"""


# It repeats what it is asked, word by word.
MODEL = [sys.executable, str(Path(__file__).parents[1] / "programs/chat/server.py")]
MODEL += ["echo", "--port", "{port}"]


@pytest.fixture(scope="module")
def instance() -> Iterator[TestInstance]:
    listens = {"GPUYARD_SERVER__AGENTS_LISTEN": f"127.0.0.1:{free_port(2)}"}
    with make_instance(**listens) as made:
        script = made.work / "count.py"
        script.write_text(SCRIPT)
        made.home.create()
        made.home.settings.write_text(
            f'[scripts.count]\nfile = "{script}"\nboot_s = 0.1\n'
            "[models.echo]\nmemory_gb = 16\nboot_s = 1\n"
            f"command = {json.dumps(MODEL)}\n"
        )
        made.ok("up", "--simulate-gpus", "2x24")
        yield made


def test_a_dataset_is_uploaded_and_removed_and_workspaces_are_listed(
    instance: TestInstance, page: Page
) -> None:
    folder = instance.work / "corpus"
    folder.joinpath("deep").mkdir(parents=True)
    folder.joinpath("a.txt").write_text("to be or not to be")
    folder.joinpath("deep", "large.bin").write_bytes(bytes(9 << 20))
    name = "plays"
    show(page, instance, "/data")
    page.get_by_label("Dataset", exact=True).fill(f"../{name}")
    page.locator("input[type=file][webkitdirectory]").set_input_files(folder)
    expect(page.get_by_text("2 files")).to_be_visible()
    page.get_by_role("button", name="Upload").click()
    expect(page.get_by_role("alert")).to_contain_text("Names have no /")
    page.get_by_label("Dataset", exact=True).fill(name)
    page.get_by_role("button", name="Upload").click()
    row = page.get_by_role("row").filter(has_text=name)
    expect(row).to_contain_text("9.4 MB")
    check_for_all(page)
    # The command cuts it at the same places: it has nothing to send, and adds nothing.
    instance.ok("datasets", "add", name, str(folder))
    page.get_by_role("button", name=f"Files of {name}").click()
    dialog = page.get_by_role("dialog", name=f"{name}, version 1")
    expect(dialog.get_by_role("cell", name="deep/large.bin")).to_be_visible()
    dialog.get_by_role("button", name="Close").click()
    page.get_by_role("button", name=f"Share {name}").click()
    sharing = page.get_by_role("dialog")
    sharing.get_by_label("Another project").fill("vision")
    sharing.get_by_role("button", name="Share it").click()
    expect(sharing.get_by_role("row")).to_contain_text("vision")
    check_for_all(page)
    sharing.get_by_role("button", name="Close").click()
    expect(row).to_contain_text("shared with vision")
    page.get_by_role("button", name=f"Remove {name}").click()
    page.get_by_role("button", name="Remove it").click()
    expect(page.get_by_text("There is no dataset yet.")).to_be_visible()
    write = "echo of use > $GPUYARD_WORKSPACE/remember.txt"
    instance.ok("run", "--workspace", "notes", "--", "sh", "-c", write)
    page.get_by_role("tab", name="workspaces").click()
    expect(page.get_by_role("row").filter(has_text="notes")).to_contain_text("default")
    check_for_all(page)
    page.get_by_role("button", name="Files of notes").click()
    dialog = page.get_by_role("dialog", name="Files of the workspace notes")
    expect(dialog.get_by_role("cell", name="remember.txt")).to_be_visible()
    dialog.get_by_role("button", name="Close").click()


def test_a_file_that_some_job_left_is_found_and_downloaded(
    instance: TestInstance, page: Page
) -> None:
    for name in ("first", "second"):
        write = ["sh", "-c", f"mkdir -p kept; echo {name} > kept/{name}.bin"]
        job = instance.submit(write, name=name, artifacts=["kept"])
        assert instance.wait(job).state == "completed"
    show(page, instance, "/data?show=artifacts")
    files = page.get_by_role("group", name="Artifacts")
    expect(files.get_by_text("kept/first.bin")).to_be_visible()
    check_for_all(page)
    page.get_by_label(re.compile("^In the path")).fill("second")
    expect(files.get_by_text("kept/first.bin")).to_have_count(0)
    with page.expect_download() as saved:
        files.get_by_role("link", name="Download kept/second.bin of second").click()
    assert Path(saved.value.path()).read_text() == "second\n"
    files.get_by_role("button", name="Share kept/second.bin of second").click()
    links = page.get_by_role("dialog")
    links.get_by_role("button", name="Make a link").click()
    url = links.get_by_role("status").locator("pre").inner_text()
    assert httpx.get(url, timeout=60).text == "second\n"
    living = links.get_by_role("region", name="Links that open it now")
    expect(living.get_by_text("the owner")).to_be_visible()
    check_for_all(page)
    living.get_by_role("button", name="End").click()
    expect(links.get_by_text("None does.")).to_be_visible()
    assert httpx.get(url, timeout=60).status_code == 403
    links.get_by_role("button", name="Close").click()
    files.get_by_role("button", name="Model card of second").click()
    card = page.get_by_role("dialog")
    card.get_by_label("Licence").fill("apache-2.0")
    shown = card.get_by_role("region", name="The card")
    expect(shown).to_contain_text('license: "apache-2.0"')
    check_for_all(page)
    with page.expect_download() as saved:
        card.get_by_role("link", name="Download README.md").click()
    assert Path(saved.value.path()).read_text() == shown.inner_text()


def test_a_batch_is_submitted_and_what_failed_is_done_again(
    instance: TestInstance, page: Page
) -> None:
    for name in ("one", "two", "bad"):
        (instance.work / f"{name}.txt").write_text(name)
    paths = [str(instance.work / f"{name}.txt") for name in ("one", "two", "bad")]
    show(page, instance, "/batches")
    page.get_by_role("button", name="Submit a batch").click()
    form = page.get_by_role("form", name="A new batch")
    form.get_by_label(re.compile("^Script")).fill("none such")
    form.get_by_label(re.compile("^Items:")).fill("\n".join(paths))
    form.get_by_label(re.compile("^Folder")).fill(str(instance.work / "results"))
    form.get_by_label(re.compile("^Arguments")).fill("bad")
    expect(form.get_by_text("bad is not of the form NAME=VALUE")).to_be_visible()
    form.get_by_label(re.compile("^Arguments")).fill("refuses=bad")
    expect(page.get_by_role("alert")).to_contain_text("none such")
    form.get_by_label(re.compile("^Script")).fill("count")
    expect(form.get_by_text("It would take")).to_be_visible()
    form.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", name="count")).to_be_visible()
    expect(page.locator(".head .badge").first).to_have_text("completed")
    expect(page.get_by_text("2 of 3")).to_be_visible()
    page.get_by_label("State of the items").select_option("failed")
    item = page.get_by_role("listitem")
    expect(item).to_have_count(1)
    expect(item).to_contain_text("it is no good")
    check_for_all(page)
    (instance.work / "bad.txt").write_text("good")
    page.get_by_role("button", name="Do the rest again").click()
    expect(page.get_by_text("3 of 3")).to_be_visible()
    page.get_by_role("link", name="Batches").click()
    expect(page.get_by_role("row").filter(has_text="count")).to_contain_text("3 of 3")
    page.get_by_role("link", name="Overview").click()
    done = page.get_by_role("progressbar", name="Items done of count")
    expect(done).to_have_attribute("aria-valuenow", "100")
    check_for_all(page)


def test_a_member_sees_no_button_for_what_is_of_others(
    instance: TestInstance, browser: Browser
) -> None:
    batch = {"script": "count", "items": [{"path": __file__}], "source": "others"}
    with http(instance) as owner:
        batch |= {"results": str(instance.work / "others"), "args": {"waits": True}}
        made = owner.post("/api/v1/batches", json=batch)
        assert made.status_code == 201, made.text
    job = instance.submit(["true"], name="of the owner", held=True)
    instance.ok("user", "add", "mia", "--role", "member")
    token = instance.json("token", "new", "--user", "mia", "--name", "page")["token"]
    with signed_in(instance, browser, f"/jobs/{job}", token) as page:
        expect(page.get_by_role("button", name="Run again")).to_be_visible()
        expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
        page.get_by_role("link", name="Jobs").click()
        expect(page.get_by_role("link", name="of the owner")).to_be_visible()
        expect(page.get_by_label("Choose of the owner")).to_have_count(0)
        page.goto(f"{instance.address().url}/batches/{made.json()['batch_id']}")
        expect(page.get_by_role("heading", name="count")).to_be_visible()
        expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
        # Who may do more from now on need not load the page anew.
        instance.ok("user", "update", "mia", "--role", "maintainer")
        page.get_by_role("button", name="Cancel").click()
        expect(page.locator(".head .badge").first).to_have_text("cancelled")


def test_a_machine_is_invited_and_its_gpus_are_drained(
    instance: TestInstance, page: Page
) -> None:
    show(page, instance, "/machines")
    page.get_by_role("button", name="Add a machine").click()
    dialog = page.get_by_role("dialog", name="Add a machine")
    dialog.get_by_label(re.compile("^What the machine")).fill("lab2")
    dialog.get_by_role("button", name="Make an invitation").click()
    expect(dialog.locator("pre")).to_contain_text("gpuyard join ")
    dialog.get_by_role("button", name="Close").click()
    row = page.get_by_role("row").filter(has_text="lab2")
    row.get_by_role("button", name="Take back").click()
    expect(row).to_contain_text("over")
    machine = page.get_by_role("article").first
    gpu = machine.locator("details .row.wide").first
    gpu.get_by_role("button", name="Take no new jobs").click()
    expect(gpu).to_contain_text("takes no jobs")
    check_for_all(page)
    gpu.get_by_role("button", name="Take jobs again").click()
    expect(gpu).not_to_contain_text("takes no jobs")
    machine.get_by_role("button", name="Move its jobs away").click()
    expect(machine.locator(".badge").first).to_have_text("takes no jobs")
    machine.get_by_role("button", name="Take jobs again").first.click()
    expect(machine.locator(".badge").first).to_have_text("online")


def test_a_model_answers_a_prompt_and_is_unloaded(
    instance: TestInstance, page: Page
) -> None:
    show(page, instance, "/models")
    model = page.get_by_role("article", name="echo")
    model.get_by_role("button", name="Try a prompt").click()
    model.get_by_role("textbox").fill("to be or not to be")
    model.get_by_role("button", name="Ask").click()
    # It streams words, and no spaces.
    expect(model.get_by_role("log")).to_have_text("tobeornottobe")
    expect(model.locator("dd", has_text=re.compile(r"^\S+ · [01]$"))).to_be_visible()
    check_for_all(page)
    model.get_by_role("button", name="Unload").click()
    expect(model.get_by_role("button", name="Load", exact=True)).to_be_visible()
