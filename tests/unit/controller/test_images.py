"""The image of a job that says `auto`."""

import json

import msgspec
import pytest

from gpuyard.config.settings import ImageSettings
from gpuyard.controller.images import source_of
from gpuyard.controller.intake import Intake
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.tiers import Tiers


def read(**spec):
    intake = Intake(Tiers(), container_providers=lambda: ["docker"])
    job, _ = intake.read(msgspec.Raw(json.dumps({"image": "auto", **spec}).encode()))
    return job.spec()["image"], job.template.warnings


@pytest.mark.parametrize(
    ("source", "gpus", "begins"),
    [
        ("import torch.nn as nn", 1, "gpuyard/ml-pytorch-gpu:"),
        ("def f():\n    from tensorflow import keras", 1, "gpuyard/ml-tensorflow-gpu:"),
        ("# torch\nx = 'torch'", 1, "python:3"),
        ("import torch", 0, "python:3"),
    ],
)
def test_it_is_read_off_what_the_program_imports(tmp_path, source, gpus, begins):
    (tmp_path / "train.py").write_text(source)
    resources = {"gpus": {"count": gpus}}
    for command in (["python3", "-u", "train.py", "--x"], ["python3", "-c", source]):
        image, warnings = read(
            command=command, workdir=str(tmp_path), resources=resources
        )
        assert image.startswith(begins)
        assert not image.endswith(":latest")
        assert f"image {image} was chosen" in warnings[0]


@pytest.mark.parametrize(
    ("sent", "begins"),
    [
        (json.dumps({"text": {"a.py": "import torch"}, "base64": {}}), "gpuyard/ml-p"),
        (json.dumps({"text": {"b.py": "import torch"}}), "python:3"),
        ('{"text": ["a.py"]}', "python:3"),
        ("import torch", "python:3"),
        ('{"x": ' + "[" * 100_000, "python:3"),
    ],
    ids=["the program", "another one", "of another form", "no JSON", "very deep"],
)
def test_it_is_read_off_a_program_that_the_page_sends(sent, begins):
    command = ["python3", "-c", "import json", "python3", "a.py"]
    image, _ = read(command=command, stdin=sent, resources={"gpus": {"count": 1}})
    assert image.startswith(begins)


def test_jobs_that_differ_in_their_command_alone_get_an_image_each():
    intake = Intake(Tiers(), container_providers=lambda: ["docker"])
    images = []
    for source in ("import torch", "import json", "import tensorflow"):
        body = {
            "image": "auto",
            "command": ["python3", "-c", source],
            "resources": {"gpus": {"count": 1}},
        }
        images.append(
            intake.read(msgspec.Raw(json.dumps(body).encode()))[0]
            .spec()["image"]
            .split(":")[0]
        )
    assert images == ["gpuyard/ml-pytorch-gpu", "python", "gpuyard/ml-tensorflow-gpu"]


@pytest.mark.parametrize(
    "command", [["python3", "gone.py"], ["sh", "run.sh"], ["./program"]]
)
def test_a_program_that_cannot_be_read_gets_plain_python(command):
    assert source_of(command, "/no/such/folder") == ""
    assert read(command=command)[0].startswith("python:3")


def test_a_job_for_a_place_that_only_runs_containers_gets_one_without_asking():
    image, warnings = read(command=["true"], image=None, provider="docker")
    assert image.startswith("python:3")
    assert "was chosen" in warnings[0]
    intake = Intake(Tiers(), container_providers=lambda: ["docker"])
    job, _ = intake.read(msgspec.Raw(b'{"command":["true"],"provider":"local"}'))
    assert "image" not in job.spec()


def test_an_image_that_is_named_stays():
    assert read(command=["true"], image="mine:1") == ("mine:1", ())


def test_a_catalogue_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(InvalidInputError, match=r"images\.catalogue.*cannot be read"):
        ImageSettings(catalogue=tmp_path / "none.toml").read()
    (tmp_path / "bad.toml").write_text('[[images]]\nname = "x"\ntag = "latest"\n')
    with pytest.raises(InvalidInputError, match=r"images\.0\.tag"):
        ImageSettings(catalogue=tmp_path / "bad.toml").read()
