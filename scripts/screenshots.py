"""Take the pictures of the page that stand in the documents, for `make screenshots`.

They show a server of their own, with simulated GPUs and jobs that really run.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "docs/assets"
SIZE = {"width": 1280, "height": 800}
TRAINING = """
import json, math, random, time
for step in range(400):
    loss = 2.5 * math.exp(-step / 90) + 0.4 + random.random() / 12
    values = {"step": step, "total": 1000, "loss": loss, "lr": 1e-3 * (1 - step / 1000)}
    print("GPUYARD_METRIC " + json.dumps(values), flush=True)
    if step == 320:
        print("ready", flush=True)
    time.sleep(0 if step < 320 else 0.5)
time.sleep(600)
"""


def main() -> None:
    """Start a server, run jobs, and look at them."""
    with server() as home, sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        job = run_jobs(home)
        for theme in ("light", "dark"):
            take_pictures(browser, home, job, theme)


@contextmanager
def server() -> Iterator[Path]:
    """A server; yields its home."""
    with tempfile.TemporaryDirectory(prefix="gy-") as folder:
        home = Path(folder)
        gpuyard(home, "up", "--simulate-gpus", "4x80")
        try:
            yield home
        finally:
            gpuyard(home, "down", "--running", "cancel")


def gpuyard(home: Path, *words: str) -> str:
    """What a command of ours prints."""
    program = Path(sys.executable).with_name("gpuyard")
    environment = {"GPUYARD_HOME": str(home), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [program, *words], cwd=home, env=environment, stdout=subprocess.PIPE, text=True
    )
    if done.returncode != 0:
        raise SystemExit(f"screenshots: gpuyard {' '.join(words)} failed")
    return done.stdout


def run_jobs(home: Path) -> str:
    """Fill the queue; the id of the job to look at, when its curves are there."""
    (home / "train.py").write_text(TRAINING)
    training = [
        submit(home, name, 1, "python3", "train.py")
        for name in ("gpt-small", "vit-base", "bert-qa")
    ]
    submit(home, "resnet-typo", 1, "false")
    submit(home, "evaluate", 1, "true")
    submit(home, "pretrain", 4, "true")
    while "ready" not in gpuyard(home, "logs", training[0]):
        time.sleep(1)
    return training[0]


def submit(home: Path, name: str, gpus: int, *command: str) -> str:
    """Submit a job; its id."""
    wanted = ["--name", name, "--gpus", str(gpus), "--cpus", "0.1"]
    return gpuyard(home, "run", "--detach", "--live", *wanted, "--", *command).strip()


def take_pictures(browser: Browser, home: Path, job: str, theme: str) -> None:
    """Sign in, and look at the overview and at one job."""
    address = json.loads((home / "server.json").read_text())["url"]
    context = browser.new_context(viewport=SIZE, color_scheme=theme)
    page = context.new_page()
    page.goto(address)
    page.get_by_label("Token").fill((home / "token").read_text().strip())
    page.get_by_role("button", name="Sign in").click()
    page.get_by_text("Newest jobs").wait_for()
    picture(page, f"page-overview-{theme}")
    page.goto(f"{address}/jobs/{job}")
    page.locator(".uplot").first.wait_for()
    picture(page, f"page-job-{theme}")
    context.close()


def picture(page: Page, name: str) -> None:
    """The page as it is when nothing more is loaded."""
    page.wait_for_timeout(1500)
    page.screenshot(path=PICTURES / f"{name}.png")


if __name__ == "__main__":
    main()
