"""Each template at its smallest size, through the command: it trains, shows its metrics,
and goes on from a checkpoint as if it had never stopped.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard.client.sync_job import JobHandle
from tests.support import huggingface
from tests.support.instance import TestInstance, make_instance

trainer_python = huggingface.trainer_python
fast_trainer_python = huggingface.fast_trainer_python

# Those that are not started as `python3 train.py`.
PROGRAMS = {
    "nanogpt": ["python3", "launch.py"],
    "torchrun-multinode": ["sh", "launch.sh"],
}
# `make soak` runs them all.
EVERY = os.environ.get("GPUYARD_ALL_TEMPLATES")
TEMPLATES = {"resnet-cifar10": ["--width", "1", "--batch-size", "4"]}
OTHERS = {
    "nanogpt": ["--batch-size", "2", "--block-size", "16"],
    "diffusion": ["--width", "8", "--pixels", "8", "--batch-size", "2"],
    "gpt2-finetune": ["--block", "16", "--batch-size", "2"],
    "bert-finetune": ["--batch-size", "2"],
    "torchrun-multinode": ["--width", "4", "--batch-size", "2"],
}
if EVERY:
    TEMPLATES |= OTHERS
STEPS = ["--steps", "4", "--log-every", "1", "--eval-every", "4"]


@pytest.fixture(scope="module")
def training(
    fast_trainer_python: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TestInstance]:
    """An instance whose `python3` has PyTorch and transformers."""
    programs = tmp_path_factory.mktemp("bin")
    (programs / "python3").write_text(f'#!/bin/sh\nexec {fast_trainer_python} "$@"\n')
    (programs / "python3").chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    with make_instance(PATH=path, OMP_NUM_THREADS="1") as made:
        made.ok("up")
        yield made


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_trains_and_goes_on(training: TestInstance, name: str) -> None:
    instance = training
    words = [name, *TEMPLATES[name], *STEPS, "--save-every", "2"]
    instance.ok("run", *words, timeout=300)
    job = instance.json("show", name)
    assert job["progress"]["step"] == job["progress"]["total"] == 4
    with instance.client() as client:
        handle = client.job(name)
        first = values(handle)
        saved = [Path(item.path).name for item in handle.checkpoints()]
    assert saved == ["ckpt-000002.pt", "ckpt-000004.pt"]

    folder = job["spec"]["workdir"]
    again = ["--resume", "out/ckpt-000002.pt"]
    program = PROGRAMS.get(name, ["python3", "train.py"])
    words = ["--name", "again", *program, *words[1:], *again]
    instance.ok("run", "--workdir", folder, *words, timeout=300)
    with instance.client() as client:
        assert values(client.job("again")) == first[2:]


def values(job: JobHandle) -> list[tuple[int | None, float]]:
    """The steps and losses that a job has shown."""
    return [(point["step"], point["value"]) for point in job.metrics("loss")["loss"]]


def test_the_program_of_the_sweep_goes_on(training: TestInstance) -> None:
    training.ok("run", "sweep", "--epochs", "2", "--points", "20")
    job = training.json("show", "sweep-one")
    assert job["progress"]["epoch"] == 2
    assert job["checkpoints"] == 2
    folder = job["spec"]["workdir"]
    again = ["--epochs", "2", "--points", "20", "--resume", "out/ckpt-0001.json"]
    words = ["--name", "again-sweep", "--workdir", folder, "--"]
    said = training.ok("run", *words, "python3", "train.py", *again)
    whole = training.ok("logs", "sweep-one").splitlines()
    epochs = [line for line in said.splitlines() if line.startswith("epoch")]
    assert epochs == whole[-1:], "it trains the second epoch only, to the same loss"


def test_a_missing_library_is_named(training: TestInstance) -> None:
    done = training.run("run", "diffusion", env={"PATH": os.environ["PATH"]})
    assert done.returncode == 1
    assert "has no torch, which this program needs" in done.stdout + done.stderr
    assert "pip install -r requirements.txt" in done.stdout + done.stderr
