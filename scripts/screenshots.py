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
from datetime import UTC, datetime, timedelta
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
        fill_panels(home)
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


# How well it learns depends on its settings, as with real programs.
SEARCHED = """
import json, math, random, sys
lr, depth, optimizer = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
worse = {"adamw": 0, "lion": 0.05, "sgd": 0.3}[optimizer]
for step in range(5):
    fit = abs(math.log10(lr) + 2.4) / 3 + abs(depth - 8) / 30 + worse
    loss = fit + 1 / (step + 1) + random.random() / 20
    print("GPUYARD_METRIC " + json.dumps({"step": step, "val_loss": loss}), flush=True)
"""


def fill_panels(home: Path) -> None:
    """Search for settings, and reserve GPUs."""
    (home / "search.py").write_text(SEARCHED)
    ranges = ("lr=log:1e-4..1e-1", "depth=4,6,8,12", "optimizer=adamw,lion,sgd")
    parameters = [word for one in ranges for word in ("--param", one)]
    wanted = ["--metric", "val_loss", "--trials", "24", "--parallel", "4"]
    program = ["python3", "search.py", "{lr}", "{depth}", "{optimizer}"]
    of_each = ["--name", "search", "--cpus", "0.1"]
    gpuyard(home, "sweep", *parameters, *wanted, *of_each, "--", *program)
    gpuyard(home, "project", "add", "vision")
    gpuyard(home, "user", "add", "ana")
    now = datetime.now(UTC)
    for holder, after, days in (("--project=vision", 0, 4), ("--user=ana", 2, 1)):
        begin = now + timedelta(days=after, minutes=1)
        end = begin + timedelta(days=days)
        period = ["--from", f"{begin:%Y-%m-%d %H:%M}", "--to", f"{end:%Y-%m-%d %H:%M}"]
        gpuyard(home, "reservations", "add", holder, "--gpus", "1", *period)


def submit(home: Path, name: str, gpus: int, *command: str) -> str:
    """Submit a job; its id."""
    wanted = ["--name", name, "--gpus", str(gpus), "--cpus", "0.1"]
    return gpuyard(home, "run", "--detach", "--live", *wanted, "--", *command).strip()


def take_pictures(browser: Browser, home: Path, job: str, theme: str) -> None:
    """Sign in, and look at the screens that the documents show."""
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
    page.goto(f"{address}/sweeps")
    page.get_by_role("link", name="search").click()
    page.locator(".parallel polyline").first.wait_for()
    picture(page, f"page-sweep-{theme}")
    page.goto(f"{address}/people?show=reservations")
    page.get_by_role("button", name="vision").first.wait_for()
    picture(page, f"page-reservations-{theme}")
    context.close()


def picture(page: Page, name: str) -> None:
    """The page as it is when nothing more is loaded."""
    page.wait_for_timeout(1500)
    page.screenshot(path=PICTURES / f"{name}.png")


if __name__ == "__main__":
    main()
