"""Patterns of artifacts in a job."""

import pytest

from gpuyard.domain.arrays import task_body, task_spec
from gpuyard.domain.artifacts import is_inside
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.jobspec import JobSpec
from gpuyard.domain.shape import Shape
from gpuyard.domain.validation import parse_spec


@pytest.mark.parametrize(
    ("fields", "field", "words"),
    [
        ({"artifacts": ["/tmp/x"]}, "artifacts.0", "relative to"),
        ({"artifacts": ["out/../../x"]}, "artifacts.0", "without '..'"),
        ({"artifacts": ["x"] * 51}, "artifacts", "at most 50"),
        ({"artifacts_always": True}, "artifacts_always", "names no files"),
        (
            {"artifacts": ["x"], "command": [], "prompt": "hi", "model": "m"},
            "artifacts",
            "does not belong",
        ),
    ],
)
def test_bad_patterns_are_refused_with_their_field(
    fields: dict[str, object], field: str, words: str
) -> None:
    with pytest.raises(InvalidInputError) as refused:
        parse_spec({"command": ["true"], **fields})
    (fault,) = refused.value.faults
    assert fault.field == field
    assert words in f"{fault.fault}; {fault.remedy}"


def test_each_task_of_an_array_has_its_own() -> None:
    spec = JobSpec(command=("true",), artifacts=("out/{i}.pt",))
    assert task_spec(spec, 3).artifacts == ("out/3.pt",)
    assert task_body(spec.given_json(), 3)["artifacts"] == ["out/3.pt"]


def test_a_job_with_artifacts_needs_a_place_that_keeps_them() -> None:
    assert Shape.of(JobSpec(command=("true",), artifacts=("x",))).artifacts
    assert not Shape.of(JobSpec(command=("true",))).artifacts


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x"])
def test_a_path_that_leads_out_is_none_of_an_artifact(path: str) -> None:
    assert not is_inside(path)
    assert is_inside(f"a/{'x' if path else 'b'}")
