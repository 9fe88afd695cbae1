"""Tasks of SkyPilot become jobs, and nothing in them is dropped in silence."""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.jobspec import JobSpec
from gpuyard.foreign_files import skypilot
from gpuyard.foreign_files.translation import Translation

HOME = Path("/work")


def translated(**fields: Any) -> Translation:
    task = {"run": "true", **fields}
    return skypilot.translate(task, "task.yaml", HOME, {"TOKEN": "7"})


def body(**fields: Any) -> dict[str, Any]:
    """What such a task becomes, of which our own model must take all."""
    found = translated(**fields).body
    JobSpec.model_validate(found)
    return found


@pytest.mark.parametrize(
    ("resources", "ours"),
    [
        ({"accelerators": "A100:8"}, {"gpus": {"count": 8, "gpu_class": "A100"}}),
        ({"accelerators": "L4"}, {"gpus": {"count": 1, "gpu_class": "L4"}}),
        ({"accelerators": {"V100": 2}}, {"gpus": {"count": 2, "gpu_class": "V100"}}),
        ({"cpus": "4+", "memory": "32+"}, {"cpus": 4, "memory_gb": 32}),
        ({"cpus": 2, "memory": 16}, {"cpus": 2, "memory_gb": 16}),
    ],
)
def test_what_it_asks_for(resources: dict[str, Any], ours: dict[str, Any]) -> None:
    assert body(resources=resources)["resources"] == ours


def test_its_other_fields() -> None:
    found = body(
        name="tune",
        workdir="code",
        num_nodes=2,
        envs={"EPOCHS": 3, "TOKEN": None},
        secrets={"HF_TOKEN": None},
        file_mounts={"/data": "data"},
        resources={"use_spot": True, "image_id": "docker:python:3.11"},
    )
    assert found["name"] == "tune"
    assert found["workdir"] == "/work/code"
    assert found["resources"] == {"nodes": 2}
    assert found["environment"] == {
        "EPOCHS": "3",
        "TOKEN": "7",
        "SKYPILOT_NUM_GPUS_PER_NODE": "0",
    }
    assert found["secrets"] == {"HF_TOKEN": "HF_TOKEN"}
    assert found["volumes"] == {"/data": "/work/data"}
    assert found["spot"] is True
    assert found["image"] == "python:3.11"
    assert body()["name"] == "task"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"runs": 1}, "task.yaml: runs: is a field that gpuyard does not know"),
        ({"service": {}}, "task.yaml: service: is something that gpuyard cannot do"),
        ({"run": None, "setup": "x"}, "task.yaml: run: is missing"),
        ({"run": ["a"]}, "task.yaml: run: is no text"),
        ({"workdir": {"url": "x"}}, "task.yaml: workdir: is no text (name a folder"),
        ({"num_nodes": 0}, "task.yaml: num_nodes: is 0"),
        ({"envs": {"KEY": None}}, "task.yaml: envs.KEY: has no value"),
        ({"envs": ["A"]}, "task.yaml: envs: is no table"),
        ({"secrets": {"A": "1"}}, "secrets.A: has its value in the file"),
        ({"file_mounts": {"/d": "s3://b"}}, "file_mounts./d: is a bucket"),
        ({"file_mounts": {"/d": "d"}}, "file_mounts./d: needs a container"),
        ({"resources": {"gpu": 1}}, "resources.gpu: is a field that gpuyard does not"),
        ({"resources": {"any_of": []}}, "resources.any_of: offers a choice"),
        ({"resources": {"accelerators": ["A100"]}}, "accelerators: offers a choice"),
        ({"resources": {"accelerators": "A100:0.5"}}, "accelerators: asks for 0.5 of"),
        ({"resources": {"accelerators": "TPU9"}}, "there is no GPU class 'TPU9'"),
        ({"resources": {"cpus": "many"}}, "resources.cpus: is 'many'"),
        ({"resources": {"image_id": "ami-1"}}, "image_id: is 'ami-1', an image of a"),
    ],
)
def test_what_gpuyard_cannot_do_is_named(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        translated(**fields)
    assert told in str(caught.value)


def test_what_makes_no_difference_is_a_note() -> None:
    resources = {"infra": "aws/us-east-1", "disk_size": 100, "priority": 7}
    notes = translated(resources=resources, num_nodes=2, config={}).notes
    assert list(notes) == [
        "task.yaml: config is not used: the settings of gpuyard are in gpuyard.toml",
        "task.yaml: resources.infra is not used: gpuyard chooses the place; see"
        " `gpuyard run --provider` and `--region`",
        "task.yaml: resources.disk_size is not used: gpuyard does not book room on"
        " disks",
        "task.yaml: resources.priority is not used: see `gpuyard run --priority`",
        "task.yaml: SKYPILOT_NODE_IPS names the first node only",
    ]


def test_our_own_files_are_no_tasks() -> None:
    assert skypilot.is_task({"run": "true"})
    assert not skypilot.is_task({"command": ["true"], "setup": "x"})
    assert not skypilot.is_task([{"run": "true"}])


def left_with(setup: str, run: str) -> subprocess.CompletedProcess[str]:
    """Run a task as the node would."""
    found = translated(setup=setup, run=run).body
    return subprocess.run(
        found["command"],
        env={"GPUYARD_JOB_ID": "job_1", "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_it_runs_after_its_setup() -> None:
    run = (
        'echo "run $SKYPILOT_NODE_RANK/$SKYPILOT_NUM_NODES $SKYPILOT_NODE_IPS"; exit 4'
    )
    done = left_with("echo setup; false; true", run)
    assert done.stdout == "setup\nrun 0/1 127.0.0.1\n"
    assert done.returncode == 4


def test_it_does_not_run_if_its_setup_fails() -> None:
    done = left_with("exit 5", "echo run")
    assert done.stdout == ""
    assert done.returncode == 5
    assert "setup left with 5" in done.stderr
