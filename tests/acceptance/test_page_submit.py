"""The page's form for a new job: what it reads, checks, keeps and submits."""

import re
import subprocess
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import shared_browser as browser
from tests.support.git_server import GitServer, git_server
from tests.support.instance import TestInstance, make_instance
from tests.support.page_checks import check_for_all
from tests.support.page_fixtures import TOO_WIDE, badge, page, show, submit
from tests.support.ports import free_port
from tests.support.wait import wait_until

__all__ = ["browser", "page"]

# It saves a checkpoint, says so, and goes on until it is stopped.
TRAINING = """
import json, os, sys, time

resumed = sys.argv[1:]
print("resumed" if resumed else "from nothing", flush=True)
os.makedirs("out", exist_ok=True)
for step in range(20):
    values = {"step": step, "total": 20, "loss": 4 / (step + 1)}
    print("GPUYARD_METRIC " + json.dumps(values), flush=True)
with open("out/model.pt", "w") as model:
    model.write("the weights")
while not resumed:
    time.sleep(0.1)
"""


# Of a known model, so that its needs are known.
TRANSFORMER = """
from transformers import AutoModelForCausalLM, TrainingArguments

model = AutoModelForCausalLM.from_pretrained("gpt2").to("cuda")
TrainingArguments(per_device_train_batch_size=8, bf16=True)
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
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GitServer]:
    """A git server with a repository `lab.git`, in whose folder `small` is a job."""
    folder = tmp_path_factory.mktemp("git")
    (folder / "lab.git/small").mkdir(parents=True)
    (folder / "lab.git/small/hello.py").write_text("print('hello from git')\n")
    (folder / "lab.git/small/job.toml").write_text(
        'name = "from git"\ncommand = ["python3", "hello.py"]\n'
    )
    author = ["-c", "user.name=ann", "-c", "user.email=ann@example.org"]
    for words in (["init", "-q"], ["add", "."], [*author, "commit", "-qm", "First"]):
        git = ["git", "-C", str(folder / "lab.git"), *words]
        done = subprocess.run(git, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    with git_server(folder, folder) as served:
        yield served


@pytest.fixture(scope="module")
def instance(repository: GitServer) -> Iterator[TestInstance]:
    settings = {
        "GPUYARD_SERVER__AGENTS_LISTEN": f"127.0.0.1:{free_port(2)}",
        "GPUYARD_GIT__INTERNAL_HOSTS": '["127.0.0.1"]',
        "GPUYARD_GIT__CA_FILE": str(repository.ca_file),
    }
    with make_instance(**settings) as made:
        made.ok("up", "--simulate-gpus", "2x24")
        yield made


def test_a_visitor_trains_stops_resumes_and_takes_the_model_home(
    instance: TestInstance, page: Page
) -> None:
    page.get_by_role("link", name="Submit", exact=True).click()
    page.get_by_label(re.compile("^Code")).fill(TRAINING)
    expect(page.get_by_label(re.compile("^Command"))).to_have_value("python3 train.py")
    page.get_by_label("Name", exact=True).fill("a visitor's")
    page.get_by_text("Checkpoints and files").click()
    page.get_by_label(re.compile("^Checkpoints")).fill("out/*.pt")
    page.get_by_label(re.compile("^To resume")).fill("--resume {path}")
    page.get_by_label(re.compile("^Files to keep")).fill("out/*")
    page.get_by_role("button", name="Submit").click()
    # It is watched, and the loss falls.
    badge(page, "running")
    falling = re.compile("^loss: loss from 4 to 0.2")
    expect(page.get_by_role("img", name=falling)).to_be_visible()
    page.get_by_role("tab", name="checkpoints").click()
    expect(page.get_by_role("cell", name="out/model.pt")).to_be_visible()
    # This server has no port for it.
    expect(page.get_by_role("button", name="Open a port")).to_have_count(0)
    page.get_by_role("button", name="Cancel").click()
    badge(page, "cancelled")
    page.get_by_role("button", name="Resume from here").click()
    badge(page, "completed")
    page.get_by_role("tab", name="log").click()
    expect(page.get_by_role("log")).to_contain_text("resumed")
    page.get_by_role("tab", name="artifacts").click()
    with page.expect_download() as download:
        page.get_by_role("link", name="Download").click()
    assert download.value.suggested_filename == "model.pt"
    assert download.value.path().read_text() == "the weights"
    page.get_by_role("link", name="Costs", exact=True).click()
    expect(page.get_by_role("row").filter(has_text="in all")).to_contain_text("$0.0")
    check_for_all(page)


def test_a_program_is_read_while_it_is_written(
    instance: TestInstance, page: Page
) -> None:
    show(page, instance, "/submit")
    page.get_by_label(re.compile("^Code")).fill(TRANSFORMER)
    read = page.get_by_text("train.py:4 124 M parameters")
    expect(read).to_be_visible()
    page.get_by_role("button", name="Use this").click()
    expect(page.get_by_label("GPUs", exact=True)).to_have_value("1")
    page.get_by_role("button", name="Choose GPU large").click()
    expect(
        page.get_by_text(re.compile("GPU large costs .* times as much"))
    ).to_be_visible()
    expect(page.locator("pre")).to_contain_text("--tier GPU_LARGE -- python3 train.py")
    check_for_all(page)
    page.get_by_role("button", name="Clear").click()
    expect(read).to_be_hidden()
    # A file of the program names its packages; the server reads it first.
    names = {"name": "requirements.txt", "mimeType": "", "buffer": b"numpy\n-e .\n"}
    page.locator("input[type=file]").set_input_files([names])
    page.get_by_label(re.compile("^Command")).fill("true")
    page.get_by_text("Checkpoints and files").click()
    packages = page.get_by_label("Packages, listed in")
    packages.select_option("requirements.txt")
    expect(page.locator("pre")).to_contain_text("--packages requirements.txt -- true")
    page.get_by_role("button", name="Submit").click()
    refused = re.compile("requirements.txt:2 `-e .` installs what is in your folder")
    expect(packages).to_have_accessible_description(refused)
    page.get_by_role("button", name="Clear").click()
    large = {"name": "data.bin", "mimeType": "", "buffer": bytes(800_000)}
    page.locator("input[type=file]").set_input_files([large])
    fault = "data.bin is too large to go with a job. Put data into a dataset."
    expect(page.get_by_role("alert")).to_have_text(fault)


def test_a_template_runs_and_its_job_is_cloned_and_edited(
    instance: TestInstance, page: Page
) -> None:
    show(page, instance, "/submit")
    page.get_by_label("Template").select_option("sweep")
    expect(page.get_by_label("Code of train.py")).to_have_value(re.compile("two rings"))
    expect(page.locator("pre")).to_contain_text("gpuyard new sweep my-sweep")
    page.get_by_role("button", name="Submit").click()
    badge(page, "completed")
    page.get_by_role("link", name="Clone and edit").click()
    expect(page.get_by_label("Code of train.py")).to_have_value(re.compile("two rings"))
    page.get_by_label("Name", exact=True).fill("edited")
    page.get_by_label(re.compile("^Command")).fill("python3 train.py --epochs 2 | cat")
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", name="edited")).to_be_visible()
    badge(page, "completed")


def test_code_of_a_repository_runs_and_stays_what_it_was(
    instance: TestInstance, page: Page, repository: GitServer
) -> None:
    show(page, instance, "/submit")
    page.get_by_role("button", name="From git").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Address").fill("https://10.0.0.1/code.git")
    dialog.get_by_role("button", name="Fetch it").click()
    expect(dialog.get_by_role("alert")).to_contain_text("no address of the public")
    dialog.get_by_label("Address").fill(f"{repository.url}/lab.git")
    dialog.get_by_label("Folder in it").fill("small")
    dialog.get_by_role("button", name="Fetch it").click()
    expect(dialog).to_be_hidden()
    code = page.get_by_label(re.compile("^Code of hello.py"))
    expect(code).to_have_value("print('hello from git')\n")
    command = re.compile(r"--git \S+/lab.git@[0-9a-f]{12} .*--workdir small -- python3")
    expect(page.locator("pre")).to_have_text(command)
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", name="from git")).to_be_visible()
    badge(page, "completed")
    page.get_by_role("tab", name="log").click()
    expect(page.get_by_role("log")).to_contain_text("hello from git")
    page.get_by_role("tab", name="specification").click()
    expect(page.locator("pre")).to_contain_text(f'"git": "{repository.url}/lab.git@')
    # What somebody has changed is of no commit any more.
    page.get_by_role("link", name="Clone and edit").click()
    expect(page.get_by_text(f"Of {repository.url}/lab.git@")).to_be_visible()
    code.fill("print('edited')\n")
    expect(page.get_by_text(f"Of {repository.url}/lab.git@")).to_be_hidden()
    expect(page.locator("pre")).not_to_contain_text("--git")


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
    assert page.evaluate(TOO_WIDE) == []
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
