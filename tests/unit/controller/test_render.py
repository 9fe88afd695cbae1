"""From a spec and a placement to what a provider is given."""

from pathlib import Path

import pytest

from gpuyard.controller.render import render
from gpuyard.domain.jobspec import JobSpec
from gpuyard.domain.shape import Placement, Shape
from gpuyard.domain.states import AttemptState
from gpuyard.scheduler.view import LiveAttempt

ATTEMPT = LiveAttempt("attempt_1", "job_1", AttemptState.INTENDED, 3,
                      (Placement("node_1", ("GPU-a", "GPU-b"), 4.0, 16.0),), created_at=0.0)  # fmt: skip
ROOT = Path("/workspaces")
CHECKPOINT = {"sha256": "f" * 64, "path": "out/step-10", "directory": 1}


def spec(**fields) -> JobSpec:
    return JobSpec.model_validate({"name": "train", "command": ["python3", "train.py"], **fields})


def test_a_job_is_rendered_with_its_place_and_its_token():
    resources = {"cpus": 4, "memory_gb": 16, "gpus": {"count": 2, "gpu_class": "a100"}}
    job = spec(workdir="/work", timeout_s=90, environment={"A": "b"}, spot=True, resources=resources)
    config = render(job, Shape(), ATTEMPT, None, ROOT)
    assert (config.name, config.command, config.environment) == ("train", ("python3", "train.py"), {"A": "b"})
    assert (config.attempt_id, config.token, config.timeout_minutes, config.spot) == ("attempt_1", 3, 1.5, True)
    need = config.gpu_spec
    assert (need.gpu_type, need.gpu_count, need.vcpus, need.ram_gb) == ("a100", 2, 4, 16)
    options = config.provider_options
    assert (options["job_id"], options["node_id"], options["workdir"]) == ("job_1", "node_1", "/work")
    assert options["gpu_uuids"] == ["GPU-a", "GPU-b"]
    assert not options.get("resume_sha256")


@pytest.mark.parametrize(("stdin", "given"), [("é\n", "é\n".encode()), ("", b""), (None, None)])
def test_a_job_is_rendered_with_what_it_reads(stdin, given):
    assert render(spec(stdin=stdin), Shape(), ATTEMPT, None, ROOT).args_via_stdin == given


def test_a_job_is_rendered_with_the_checkpoint_it_goes_on_from():
    options = render(spec(), Shape(), ATTEMPT, CHECKPOINT, ROOT).provider_options
    assert (options["resume_sha256"], options["resume_name"], options["resume_directory"]) == (
        "f" * 64,
        "step-10",
        True,
    )


def test_a_job_is_rendered_with_its_workspace():
    job = spec(workspace="corpus")
    options = render(job, Shape.of(job), ATTEMPT, None, ROOT).provider_options
    assert (options["workspace"], options["workspace_here"]) == ("default/corpus", "/workspaces/default/corpus")


@pytest.mark.parametrize("name", ["job_id", "node_id", "gpu_uuids", "resume_sha256", "resume_name", "workdir",
                                  "workspace", "workspace_here"])  # fmt: skip
def test_a_specs_own_options_never_stand_for_the_controllers(name):
    config = render(spec(provider_options={name: "mine", "other": 1}), Shape(), ATTEMPT, None, ROOT)
    assert config.provider_options[name] != "mine"
    assert config.provider_options["other"] == 1
