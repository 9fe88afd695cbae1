"""Jobs whose programs are meant for a GPU, and that do not say how many they want."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuyard.controller.intake import Intake, PreparedJob
from gpuyard.domain.jobspec import JobSpec
from gpuyard.domain.tiers import Tiers

PROGRAM = "import torch\ndevice = 'cuda' if torch.cuda.is_available() else 'cpu'\n"


@pytest.fixture
def folder(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "plain.py").write_text("print()")
    return str(tmp_path)


def take(intake: Intake, folder: str, *command: str, **fields: Any) -> PreparedJob:
    body = {"command": command or ("python3", "train.py"), "workdir": folder, **fields}
    return intake.read(msgspec.Raw(msgspec.json.encode(body)))[0]


def outcome(job: PreparedJob) -> tuple[int, str]:
    """The GPUs of a job, and what its owner is told."""
    return job.template.shape.gpus, "; ".join(job.template.warnings)


def test_the_owner_is_told_with_the_flag(folder: str) -> None:
    gpus, told = outcome(take(Intake(Tiers()), folder))
    assert gpus == 0
    assert told.startswith("its program is meant for a GPU (torch.cuda)")
    assert "--gpus 1" in told


@pytest.mark.parametrize(
    ("command", "fields"),
    [
        (("python3", "train.py"), {"resources": {"gpus": 0}}),
        (("python3", "train.py"), {"resources": {"gpus": 1}}),
        (("python3", "train.py"), {"tier": "CPU_SMALL"}),
        (("python3", "train.py", "--device=cpu"), {}),
        (("python3", "plain.py"), {}),
        (("true",), {}),
    ],
)
def test_nobody_is_told_what_he_said(
    folder: str, command: tuple[str, ...], fields: dict[str, Any]
) -> None:
    for gives_gpu in (False, True):
        intake = Intake(Tiers(), gives_gpu=gives_gpu)
        job = take(intake, folder, *command, **fields)
        wanted = fields.get("resources", {}).get("gpus")
        assert job.template.warnings == ()
        assert wanted is None or job.template.shape.gpus == wanted


def test_nobody_is_told_where_no_gpu_is(folder: str) -> None:
    for gives_gpu in (False, True):
        intake = Intake(
            Tiers(), can_start=lambda shape: not shape.gpus, gives_gpu=gives_gpu
        )
        assert outcome(take(intake, folder)) == (0, "")


def test_by_default_it_gets_one_and_is_told(folder: str) -> None:
    gpus, told = outcome(take(Intake(Tiers(), gives_gpu=True), folder))
    assert gpus == 1
    assert told.startswith("it gets 1 GPU")


def test_equal_jobs_differ_by_their_programs(folder: str) -> None:
    intake = Intake(Tiers(), gives_gpu=True)
    programs = ("plain.py", "train.py", "plain.py", "train.py")
    jobs = [take(intake, folder, "python3", program) for program in programs]
    assert [job.template.shape.gpus for job in jobs] == [0, 1, 0, 1]


def test_that_a_job_wants_none_stays_in_its_spec(folder: str) -> None:
    spec = take(Intake(Tiers()), folder, resources={"gpus": 0}).spec()
    assert JobSpec.model_validate(spec).resources.says_gpus
    assert not JobSpec.model_validate(
        take(Intake(Tiers()), folder).spec()
    ).resources.says_gpus
