"""The order that a provider gets, made from a spec and a placement."""

from pathlib import Path

import pytest

from gpuyard.controller.attempt_order import order_for
from gpuyard.domain.attempt_order import ResumePoint, config_from_order
from gpuyard.domain.jobspec import JobSpec
from gpuyard.domain.shape import Placement, Shape
from gpuyard.domain.states import AttemptState
from gpuyard.scheduler.attempts import LiveAttempt

ATTEMPT = LiveAttempt(
    "attempt_1",
    "job_1",
    AttemptState.INTENDED,
    3,
    (Placement("node_1", ("GPU-a", "GPU-b"), 4.0, 16.0),),
    created_at=0.0,
)
ROOT = Path("/workspaces")
CHECKPOINT = {"sha256": "f" * 64, "path": "out/step-10", "directory": 1}


def spec(**fields) -> JobSpec:
    return JobSpec.model_validate(
        {"name": "train", "command": ["python3", "train.py"], **fields}
    )


def test_an_order_has_the_attempts_place_and_its_token():
    resources = {"cpus": 4, "memory_gb": 16, "gpus": {"count": 2, "gpu_class": "a100"}}
    job = spec(
        workdir="/work",
        timeout_s=90,
        environment={"A": "b"},
        spot=True,
        resources=resources,
    )
    order = order_for(job, Shape(), ATTEMPT, None, ROOT)
    assert (order.name, order.command) == ("train", ("python3", "train.py"))
    assert order.environment == {"A": "b"}
    assert (order.attempt_id, order.token) == ("attempt_1", 3)
    assert (order.timeout_s, order.spot) == (90, True)
    need = order.gpu_spec
    assert (need.gpu_type, need.gpu_count) == ("a100", 2)
    assert (need.vcpus, need.ram_gb) == (4, 16)
    assert (order.job_id, order.node_id) == ("job_1", "node_1")
    assert order.workdir == "/work"
    assert order.gpu_uuids == ("GPU-a", "GPU-b")
    assert order.resume_from is None


@pytest.mark.parametrize(
    ("stdin", "given"), [("é\n", "é\n".encode()), ("", b""), (None, None)]
)
def test_an_order_has_the_jobs_standard_input(stdin, given):
    assert order_for(spec(stdin=stdin), Shape(), ATTEMPT, None, ROOT).stdin == given


def test_an_order_has_the_checkpoint_to_resume_from():
    order = order_for(spec(), Shape(), ATTEMPT, CHECKPOINT, ROOT)
    assert order.resume_from == ResumePoint("f" * 64, "step-10", True)


def test_an_order_has_the_jobs_workspace():
    job = spec(workspace="corpus")
    order = order_for(job, Shape.of(job), ATTEMPT, None, ROOT)
    assert order.workspace == "default/corpus"
    assert order.workspace_folder == "/workspaces/default/corpus"


@pytest.mark.parametrize(
    "name",
    [
        "job_id",
        "node_id",
        "gpu_uuids",
        "resume_sha256",
        "resume_name",
        "workdir",
        "workspace",
        "workspace_here",
    ],
)
def test_a_specs_own_options_never_replace_the_controllers(name):
    job = spec(provider_options={name: "mine", "other": 1})
    order = order_for(job, Shape(), ATTEMPT, None, ROOT)
    options = config_from_order(order).provider_options
    assert options[name] != "mine"
    assert options["other"] == 1
