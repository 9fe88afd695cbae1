"""Real trackers: TensorBoard, W&B offline, and a server of MLflow. `make soak` runs it."""

import os
import re
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from gpuyard import templates
from gpuyard.insight.wandb_files import wandb_scalars_in
from tests.support.instance import TestInstance
from tests.support.ports import free_port
from tests.support.trackers import make_trackers_python, read
from tests.support.wait import wait_until

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        "GPUYARD_REAL_TRACKERS" not in os.environ, reason="`make soak` runs it"
    ),
]

BOARD = """
import time
from tensorboardX import SummaryWriter
with SummaryWriter("out/NAME") as board:
    for step in range(3):
        board.add_scalar("loss", 1 / (step + 1), step)
    board.flush()
    time.sleep(3)
"""
WANDB = """
import time, wandb
run = wandb.init()
run.log({"loss": 0.5})
time.sleep(3)
run.finish()
"""
HANGS = """
import argparse, pathlib, report
options = argparse.Namespace(steps=1, out=pathlib.Path("out"))
made = report.Report(options, first=1)
made.step(1, {"loss": 0.5})
made.close()
"""
MLFLOW = """
import mlflow
with mlflow.start_run():
    mlflow.log_metric("loss", 0.5, step=1)
"""

REGISTERED = """
import mlflow
with mlflow.start_run():
    mlflow.log_metric("loss", 0.5, step=1)
    mlflow.log_text("weights", "model/weights.txt")
    client = mlflow.MlflowClient()
    client.create_registered_model("gpt")
    run = mlflow.active_run().info
    client.create_model_version("gpt", f"{run.artifact_uri}/model", run.run_id)
"""


@pytest.fixture(scope="session")
def python() -> Path:
    return make_trackers_python()


def run(instance: TestInstance, python: Path, name: str, text: str, **env: str) -> None:
    program = instance.work / f"{name}.py"
    program.write_text(text.replace("NAME", name))
    words = ["run", "--name", name, "--", str(python), str(program)]
    instance.ok(*words, env=env, timeout=300)


def test_tensorboard_shows_jobs_side_by_side(
    instance: TestInstance, python: Path
) -> None:
    run(instance, python, "first", BOARD)
    run(instance, python, "second", BOARD)
    progress = instance.json("show", "second")["progress"]
    assert (progress["step"], progress["metrics"].keys()) == (2, {"tensorboard/loss"})
    instance.environment["PATH"] = f"{python.parent}:{os.environ['PATH']}"
    board = instance.popen("tensorboard", "first", "second", "--port", "0")
    try:
        assert board.stdout
        lines = iter(board.stdout.readline, "")
        found = (re.match(r"127\.0\.0\.1:(\d+) leads to", line) for line in lines)
        port = next(match[1] for match in found if match)
        tags = f"http://127.0.0.1:{port}/data/plugin/scalars/tags"

        def own_runs() -> set[str]:
            """The jobs that stand there with the run that they have begun."""
            runs = [run.split("/") for run in read(tags) or {}]
            return {run[-1] for run in runs if run[0].startswith(run[-1])}

        wait_until(
            lambda: own_runs() == {"first", "second"},
            timeout=120,
            what="both jobs in TensorBoard",
        )
    finally:
        board.send_signal(signal.SIGINT)
        board.wait(timeout=60)
    assert instance.json("show", "tensorboard")["state"] == "cancelled"


def test_a_link_starts_tensorboard(instance: TestInstance, python: Path) -> None:
    door = free_port()
    instance.environment["GPUYARD_SERVER__TOOLS_LISTEN"] = f"127.0.0.1:{door}"
    run(instance, python, "linked", BOARD)
    # It is that of the Python of the job.
    url = instance.json("tensorboard", "linked", "--link")["url"]
    host = url.partition("//")[2].partition("/")[0]
    here = f"http://127.0.0.1:{door}"
    with httpx.Client(base_url=here, headers={"Host": host}, timeout=60) as browser:
        signed_in = browser.get(url.partition(host)[2])
        cookie = signed_in.headers["set-cookie"].partition(";")[0]
        shown = {"Cookie": cookie}

        def runs() -> dict[str, Any]:
            return browser.get("/data/plugin/scalars/tags", headers=shown).json()

        found = wait_until(runs, timeout=120, what="the job in TensorBoard")
        assert "<title>TensorBoard" in browser.get("/", headers=shown).text
    assert [run.partition("-")[0] for run in found] == ["linked"]


def test_a_run_of_wandb_is_kept_until_it_can_be_sent(
    instance: TestInstance, python: Path
) -> None:
    run(instance, python, "offline", WANDB, WANDB_MODE="offline")
    found = instance.json("trackers", "offline")
    assert found["links"] == []
    (folder,) = found["offline"]
    assert list(Path(folder).glob("*.wandb"))
    job = instance.json("show", "offline")
    assert job["progress"]["metrics"]["wandb/loss"] == 0.5
    with_wandb = f"{python.parent}:{instance.environment['PATH']}"
    shell = {"PATH": with_wandb, "WANDB_MODE": "offline"}
    place = instance.work / "sent"
    place.mkdir()
    instance.ok("trackers", "offline", "--send-curves", env=shell, cwd=place)
    (file,) = place.glob("wandb/offline-run-*/*.wandb")
    scalars, _ = wandb_scalars_in(file.read_bytes(), 0)
    assert "gpuyard/system/memory_mb" in {scalar.tag for scalar in scalars}
    spec = job["spec"]
    assert spec["environment"]["WANDB_NAME"] == "offline"
    assert spec["environment"]["WANDB_PROJECT"] == instance.work.name


def test_a_template_goes_on_while_mlflow_never_answers(
    instance: TestInstance, python: Path
) -> None:
    shared = Path(templates.__file__).parent / "shared"
    shutil.copy(shared / "report.py", instance.work)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        run(instance, python, "hangs", HANGS, MLFLOW_TRACKING_URI=url)
    said = instance.ok("logs", "hangs")
    assert "step 1/1 loss=0.5" in said
    assert "note: MLflow does not answer" in said


def test_a_run_of_mlflow_is_linked(instance: TestInstance, python: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    words = [python.parent / "mlflow", "server", "--port", str(port), "--workers", "1"]
    store = f"sqlite:///{instance.work}/mlflow.db"
    server = subprocess.Popen(
        [*words, "--backend-store-uri", store],
        cwd=instance.work,
        start_new_session=True,
    )
    try:
        search = f"{url}/api/2.0/mlflow/experiments/search?max_results=10"
        wait_until(lambda: read(search), timeout=300, what="a server of MLflow")
        run(instance, python, "tracked", MLFLOW, MLFLOW_TRACKING_URI=url)
        (link,) = instance.json("trackers", "tracked")["links"]
        got = read(f"{url}/api/2.0/mlflow/runs/get?run_id={link['run']}")
        assert got["run"]["data"]["metrics"][0]["value"] == 0.5
        instance.environment["MLFLOW_TRACKING_URI"] = url
        (curves,) = instance.json("compare", "tracked", "--metric", "mlflow/loss")[
            "items"
        ]
        assert curves["curves"][0]["values"] == [0.5]
        names = {item["name"] for item in read(search)["experiments"]}
        assert instance.work.name in names
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=60)


def test_a_server_of_our_own_keeps_runs_and_models(
    instance: TestInstance, python: Path
) -> None:
    folder = instance.work / "kept"
    port = str(free_port())
    given = ["--node-port", port, "--folder", str(folder)]
    said = instance.ok("mlflow", "-d", *given, timeout=600)
    url = f"http://127.0.0.1:{port}"
    assert f"export MLFLOW_TRACKING_URI={url}" in said
    run(instance, python, "registered", REGISTERED, MLFLOW_TRACKING_URI=url)
    (link,) = instance.json("show", "registered")["progress"]["links"]
    assert (link["tracker"], link["url"].startswith(url)) == ("mlflow", True)
    instance.ok("cancel", "mlflow")
    instance.wait(instance.json("show", "mlflow")["id"], "cancelled")
    # What was logged is there for the next server.
    instance.ok("mlflow", "-d", *given, timeout=600)
    models = read(f"{url}/api/2.0/mlflow/registered-models/search?max_results=10")
    assert [model["name"] for model in models["registered_models"]] == ["gpt"]
    instance.ok("cancel", "mlflow")
