"""What people do on the page's screens, in a real browser, against a real server."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.support.browser import shared_browser as browser
from tests.support.fake_cloud import FakeCloud, fake_cloud_environment
from tests.support.git_server import GitServer, git_server
from tests.support.instance import TestInstance, make_instance
from tests.support.kubernetes import Cluster, Node
from tests.support.page_checks import check_for_all, signed_in
from tests.support.ports import free_port
from tests.support.web import http

__all__ = ["browser"]

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


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestInstance]:
    """An instance with a cluster, and with a pool at a cloud, whose machine never
    boots. It forgets what is over when it is told to.
    """
    folder = tmp_path_factory.mktemp("elsewhere")
    FakeCloud(folder).add_fault("never_boots", times=9)
    (folder / "bill.json").write_text('{"m-lost": "4.2"}')
    environment = fake_cloud_environment(folder, free_port(2))
    cluster = Cluster([Node("a1", gpus=2)])
    with cluster, make_instance(**environment) as made:
        made.home.create()
        config = cluster.kubeconfig(folder / "kubeconfig", "")
        made.home.settings.write_text(
            "[retention]\njobs_days = 1e-9\nkeys_days = 0\n"
            f'[providers.kubernetes]\nkubeconfig = "{config}"\nnamespace = "default"\n'
            'prices = { "NVIDIA-A100-SXM4-40GB" = 3 }\n'
            '[pools.warm]\nprovider = "fakecloud"\ntype = "cpu.small"\nmin = 1\nmax = 2\n'
        )
        made.ok("up")
        yield made


@pytest.fixture
def page(instance: TestInstance, browser: Browser) -> Iterator[Page]:
    """The page, signed in as the owner. What its scripts cannot do fails the test."""
    with signed_in(instance, browser, "/") as made:
        yield made


def sign_in(page: Page, instance: TestInstance) -> None:
    address = instance.client().address
    page.goto(address.url)
    page.get_by_label("Token").fill(address.token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("navigation")).to_be_visible()


def show(page: Page, instance: TestInstance, path: str) -> None:
    page.goto(f"{instance.client().address.url}{path}")
    expect(page.get_by_role("heading", level=1)).to_be_visible()


def badge(page: Page, state: str) -> None:
    """Wait until the job that is shown is in this state."""
    expect(page.locator(".head .badge")).to_have_text(state)


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


def test_bills_stand_beside_what_was_counted(
    elsewhere: TestInstance, page: Page
) -> None:
    sign_in(page, elsewhere)
    show(page, elsewhere, "/costs?show=bills")
    bill = page.get_by_role("article", name="Bill of fakecloud")
    expect(bill).to_contain_text("It was never compared.")
    bill.get_by_role("button", name="Compare now").click()
    form = page.get_by_role("dialog")
    expect(form).to_contain_text("The question may cost something")
    form.get_by_role("button", name="Ask the cloud").click()
    row = bill.get_by_role("row").filter(has_text="m-lost")
    expect(row).to_contain_text("$4.20")
    expect(row).to_contain_text("no attempt and no node of a pool has this machine")
    # Who looks again asks no cloud.
    page.reload()
    expect(row).to_contain_text("$4.20")
    check_for_all(page)


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


def test_offers_show_prices_and_problems(elsewhere: TestInstance, page: Page) -> None:
    sign_in(page, elsewhere)
    show(page, elsewhere, "/offers")
    provider = page.get_by_role("article", name="kubernetes")
    expect(provider).to_contain_text("healthy")
    offer = page.get_by_role("row").filter(has_text="kubernetes/")
    expect(offer).to_contain_text("$6.00")
    check_for_all(page)
    page.get_by_label("Find an offer").fill("H100")
    expect(page.get_by_text("No offer is like that.")).to_be_visible()


def test_pools_and_rented_machines_are_shown_and_clouds_checked(
    elsewhere: TestInstance, page: Page
) -> None:
    sign_in(page, elsewhere)
    show(page, elsewhere, "/clouds")
    pool = page.get_by_role("article", name="Pool warm")
    expect(pool).to_contain_text("1 node (min 1, max 2)")
    machine = page.get_by_role("row").filter(has_text="fakecloud")
    expect(machine).to_contain_text("pool warm")
    expect(machine).to_contain_text("$0.10")
    cloud = page.get_by_role("article", name="fakecloud")
    cloud.get_by_role("button", name="Check its permissions").click()
    expect(cloud.get_by_role("status")).to_contain_text("has all permissions")
    check_for_all(page)
    pool.get_by_role("button", name="Nodes of warm").click()
    nodes = page.get_by_role("region", name="Nodes of warm")
    expect(nodes.get_by_role("row").filter(has_text="booting")).to_contain_text(
        "cpu.small"
    )
    page.get_by_role("button", name="Close").click()
    cloud.get_by_role("button", name="Prices of fakecloud").click()
    expect(page.get_by_role("dialog")).to_contain_text("has no catalogue of prices")


def test_a_job_that_is_removed_while_it_is_open_says_so(
    elsewhere: TestInstance, page: Page
) -> None:
    job = elsewhere.submit(["true"])
    elsewhere.wait(job)
    sign_in(page, elsewhere)
    show(page, elsewhere, f"/jobs/{job}")
    elsewhere.ok("ledger", "prune")
    page.get_by_role("button", name="Run again").click()
    expect(page.get_by_role("heading", name="No job")).to_be_visible()
    expect(page.get_by_role("alert")).to_contain_text(job)
    page.get_by_role("link", name="All jobs").click()
    expect(page.get_by_role("heading", name="Jobs")).to_be_visible()


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
