"""Jobs on a real GPU: what they get, what is seen of them, and what they leave."""

import shutil
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from gpuyard.config.accounts import Account
from tests.gpu.conftest import PROGRAMS, gpus
from tests.support.accounts import real_account
from tests.support.instance import TestInstance, make_instance
from tests.support.programs import run_program
from tests.support.wait import wait_until

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(180)]

ENDLESS = "1000000"
BEGINS = "begins at step "


def test_the_listing_agrees_with_nvidia_smi(gpu_instance: TestInstance) -> None:
    fields = "uuid,name,memory.total,compute_cap"
    query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    said = run_program(query).stdout
    rows = [line.split(", ") for line in said.splitlines()]
    items = gpu_instance.json("gpus")["items"]
    ours = [
        [
            gpu["uuid"],
            gpu["name"],
            str(gpu["memory_mb"]),
            gpu["compute_capability"],
        ]
        for gpu in items
    ]
    assert ours == rows
    assert {gpu["state"] for gpu in items} == {"idle"}
    assert all(gpu["gpu_class"] for gpu in items), "the catalogue lacks this GPU"
    assert "GPUs" in gpu_instance.ok("doctor")


def train(instance: TestInstance, python: str, *words: str) -> str:
    """Start a training that does not end by itself; its id."""
    shutil.copy(PROGRAMS / "train.py", instance.work)
    options = ["--gpus", "1", "--checkpoint", "model.pt", "--name", "train", *words]
    started = instance.ok("run", "-d", *options, "--", python, "train.py", ENDLESS)
    return started.split()[-1]


def progress(instance: TestInstance) -> int:
    """The step that the training has reached."""
    return instance.json("show", "train")["progress"].get("step") or 0


def series(instance: TestInstance, name: str) -> list[float]:
    """The values of a curve of the training."""
    found = instance.client().job("train").metrics(name)
    return [point["value"] for point in found[name]]


def test_a_training_shows_its_gpu_and_resumes_from_its_checkpoint(
    gpu_instance: TestInstance, gpu_python: str
) -> None:
    train(gpu_instance, gpu_python)
    wait_until(lambda: progress(gpu_instance) >= 100, 90, "a hundred steps")
    wait_until(lambda: busy(gpu_instance), what="the GPU to be busy")
    wait_until(
        lambda: gpu_instance.json("checkpoints", "train")["items"], what="a checkpoint"
    )
    gpu_instance.ok("cancel", "train")
    gpu_instance.wait("train", "cancelled")
    told = gpu_instance.ok("logs", "train")
    assert "devices 1 NVIDIA" in told
    assert max(series(gpu_instance, "system/gpu0_memory_mb")) > 500
    losses = series(gpu_instance, "loss")
    assert losses[-1] < losses[0]
    gpu_instance.ok("resume", "-d", "train")
    wait_until(lambda: said(gpu_instance, "train", BEGINS), what="it to begin again")
    assert int(said(gpu_instance, "train", BEGINS)) >= 50
    gpu_instance.ok("cancel", "train")


def busy(instance: TestInstance) -> bool:
    """The listing shows that the training uses the GPU."""
    (gpu,) = [gpu for gpu in instance.json("gpus")["items"] if gpu["job_id"]]
    assert gpu["state"] == "script_busy"
    used_mb = gpu["memory_mb"] - gpu["free_mb"]
    return used_mb > 500 and gpu["utilization"] > 0.3


def test_a_training_outlives_a_server_and_an_agent_that_are_killed(
    gpu_instance: TestInstance, gpu_python: str
) -> None:
    train(gpu_instance, gpu_python)
    wait_until(lambda: progress(gpu_instance) >= 50, 90, "fifty steps")
    gpu_instance.kill("server", "agent")
    gpu_instance.ok("up")
    reached = progress(gpu_instance)
    wait_until(lambda: progress(gpu_instance) > reached + 50, what="it to go on")
    assert gpu_instance.ok("logs", "train").count(f"{BEGINS}0") == 1
    gpu_instance.ok("cancel", "train")


def test_a_job_without_gpus_sees_none(
    gpu_instance: TestInstance, gpu_python: str
) -> None:
    code = "import torch; print('sees', torch.cuda.device_count())"
    assert "sees 0" in gpu_instance.ok("run", "--", gpu_python, "-c", code)


def test_too_little_memory_is_named(
    gpu_instance: TestInstance, gpu_python: str
) -> None:
    program = str(PROGRAMS / "hold.py")
    failed = gpu_instance.run("run", "-g", "1", "--", gpu_python, program, "1.5", "0")
    assert failed.returncode != 0
    (job,) = gpu_instance.json("jobs")["items"]
    assert job["reason"] == "gpu_out_of_memory"


def test_each_job_finds_the_memory_of_the_last_one_free(
    gpu_instance: TestInstance, gpu_python: str
) -> None:
    """Also when the last one was killed while it held nearly all of it."""
    words = [gpu_python, str(PROGRAMS / "hold.py"), "0.9", "600"]
    jobs = [gpu_instance.submit(words, resources={"gpus": 1}) for _ in range(5)]
    for job in jobs:
        wait_until(
            lambda job=job: said(gpu_instance, job, "holding"), what="the memory"
        )
        gpu_instance.ok("cancel", job)
    free = [said(gpu_instance, job, "free ") for job in jobs]
    assert min(map(float, free)) > 0.95, free


def said(instance: TestInstance, job: str, word: str) -> str:
    """What follows this word on its line of the job's output, or the word itself."""
    for line in instance.ok("logs", job).splitlines():
        if line.startswith(word):
            return line.removeprefix(word) or word
    return ""


@contextmanager
def instance_with_account() -> Generator[tuple[TestInstance, Account]]:
    """An instance whose jobs run under an account of their own."""
    with (
        real_account() as account,
        make_instance(GPUYARD_NODE__RUN_AS=account.name) as made,
    ):
        made.home.root.parent.chmod(0o755)
        made.ok("up")
        yield made, account


def test_a_job_under_an_account_opens_only_its_own_gpus(gpu_python: str) -> None:
    minor = gpus()[0].minor
    look = (
        f"import os; os.close(os.open('/dev/nvidia{minor}', os.O_RDWR)); print('open')"
    )
    use = "import torch; print('sum', torch.ones(9, device='cuda').sum().item())"
    with instance_with_account() as (instance, _):
        wait_until(lambda: instance.json("gpus")["items"], what="the GPUs")
        (node,) = instance.json("nodes")["items"]
        if node["separation"] != "accounts and devices":
            pytest.skip(f"separation here is {node['separation']}")
        assert (
            "sum 9.0"
            in outside(instance, "-g", "1", "--", gpu_python, "-c", use).stdout
        )
        assert (
            outside(instance, "-g", "1", "--", gpu_python, "-c", look).returncode == 0
        )
        refused = outside(instance, "--", gpu_python, "-c", look)
        assert refused.returncode != 0
        assert "Operation not permitted" in refused.stdout + refused.stderr


def outside(instance: TestInstance, *words: str) -> Any:
    """`gpuyard run WORDS` in a folder that every account may enter."""
    return instance.run("run", "--live", *words, cwd="/tmp")
