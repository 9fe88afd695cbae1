"""Each template through the command, with real trackers: it is cancelled in the middle,
resumed from its checkpoint, and its curves stand in TensorBoard, MLflow and W&B.

`make soak` runs it.
"""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuyard.insight.wandb_files import wandb_scalars_in
from tests.support import huggingface
from tests.support.instance import TestInstance, make_instance
from tests.support.ports import free_port
from tests.support.trackers import make_trackers_python, read
from tests.support.wait import wait_until

pytestmark = [
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        "GPUYARD_REAL_TRACKERS" not in os.environ, reason="`make soak` runs it"
    ),
]

# So many steps that the job is still at work when its first checkpoint is known.
STEPS = 1500
MANY_STEPS = 10_000
SAVING = ["--save-every", "5", "--eval-every", "500"]
LOOP = ["--steps", str(STEPS), *SAVING]
TEMPLATES = {
    "nanogpt": ["--batch-size", "2", "--block-size", "16", *LOOP],
    "resnet-cifar10": ["--width", "1", "--batch-size", "2", *LOOP],
    "gpt2-finetune": ["--block", "16", "--batch-size", "2", *LOOP],
    "bert-finetune": ["--batch-size", "2", *LOOP],
    "diffusion": ["--width", "8", "--pixels", "8", "--batch-size", "2", *LOOP],
    "torchrun-multinode": [
        *("--width", "4", "--batch-size", "2"),
        *("--steps", str(MANY_STEPS), *SAVING),
    ],
    "sweep": ["--tensorboard", "--epochs", str(STEPS), "--points", "100"],
}


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real server of MLflow."""
    folder = tmp_path_factory.mktemp("mlflow")
    port = free_port()
    program = make_trackers_python().parent / "mlflow"
    words = [program, "server", "--port", str(port), "--workers", "1"]
    said = (folder / "server.log").open("wb")
    server = subprocess.Popen(
        [*words, "--backend-store-uri", f"sqlite:///{folder}/mlflow.db"],
        cwd=folder,
        stdout=said,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: experiments(url), timeout=300, what="a server of MLflow")
        yield url
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=60)


@pytest.fixture(scope="module")
def training(
    mlflow: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestInstance]:
    """An instance whose `python3` has PyTorch, transformers and all trackers."""
    programs = tmp_path_factory.mktemp("bin")
    trackers = make_trackers_python().parent.parent
    (libraries,) = trackers.glob("lib/python3*/site-packages")
    python = programs / "python3"
    python.write_text(
        f"#!/bin/sh\nPYTHONPATH={libraries} exec {huggingface.make_trainer_python()}"
        ' "$@"\n'
    )
    python.chmod(0o755)
    with make_instance(
        PATH=f"{programs}:{os.environ['PATH']}",
        OMP_NUM_THREADS="1",
        MLFLOW_TRACKING_URI=mlflow,
        WANDB_MODE="offline",
        WANDB_PROJECT="lab",
    ) as made:
        made.ok("up")
        yield made


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_is_resumed_and_its_curves_are_in_every_tracker(
    training: TestInstance, mlflow: str, name: str
) -> None:
    instance = training
    called = instance.ok("run", "--detach", name, *TEMPLATES[name]).split()[-1]
    wait_until(
        lambda: instance.json("checkpoints", called)["items"],
        timeout=600,
        what=f"a checkpoint of {name}: {instance.ok('logs', called)}",
    )
    instance.ok("cancel", called)
    instance.wait(called, "cancelled", timeout=120)
    instance.ok("resume", called, timeout=900)
    instance.wait(called, "completed", timeout=900)
    said = instance.ok("logs", called)
    job = instance.json("show", called)
    progress = job["progress"]
    assert progress["step"] or progress["epoch"], said
    notes = [line for line in said.splitlines() if "note:" in line]
    assert not notes, "a tracker is lost"
    resumed = [line for line in said.splitlines() if line.startswith("resum")]
    assert resumed, said[-2000:]

    tags = board_tags(instance, called)
    assert any("loss" in tag for run in tags.values() for tag in run), tags
    runs = mlflow_runs(mlflow)
    own = [run for run in runs if run["info"]["run_id"] in links(job)]
    assert own, (links(job), runs)
    metrics = {item["key"]: item for item in own[-1]["data"]["metrics"]}
    steps = {int(item["step"]) for key, item in metrics.items() if "loss" in key}
    assert max(steps) in (STEPS, MANY_STEPS), metrics
    kept = instance.json("trackers", called)["offline"]
    # The first attempt of `sweep` is over at once, perhaps before W&B has begun.
    assert len(kept) >= (1 if name == "sweep" else 2), "one per attempt"
    logged = [
        scalar.tag
        for run in kept
        for file in Path(run).glob("*.wandb")
        for scalar in wandb_scalars_in(file.read_bytes(), 0)[0]
    ]
    assert any("loss" in tag for tag in logged), kept


def links(job: Any) -> list[str]:
    """The runs of MLflow that gpuyard has found."""
    found = job["progress"]["links"]
    return [item["run"] for item in found if item["tracker"] == "mlflow"]


def experiments(url: str) -> Any:
    """What the server of MLflow answers."""
    return read(f"{url}/api/2.0/mlflow/experiments/search?max_results=100")


def mlflow_runs(url: str) -> list[Any]:
    """All runs of all experiments."""
    ids = [item["experiment_id"] for item in experiments(url)["experiments"]]
    body = {"experiment_ids": ids, "max_results": 1000}
    return read(f"{url}/api/2.0/mlflow/runs/search", body).get("runs", [])


def board_tags(instance: TestInstance, job: str) -> dict[str, Any]:
    """The tags of each run that a real TensorBoard shows for the job."""
    board = instance.popen("tensorboard", job, "--port", "0")
    try:
        assert board.stdout
        lines = iter(board.stdout.readline, "")
        found = (re.match(r"127\.0\.0\.1:(\d+) leads to", line) for line in lines)
        port = next(match[1] for match in found if match)
        url = f"http://127.0.0.1:{port}/data/plugin/scalars/tags"
        return wait_until(lambda: read(url), timeout=300, what="a run in TensorBoard")
    finally:
        board.send_signal(signal.SIGINT)
        board.wait(timeout=60)
