"""S2's forms at our edge: JobConfig and GpuSpec as the document has them."""

import pytest

from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.jobconfig import GpuSpec, JobConfig, is_job_config, spec_from_config
from gpuyard.domain.shape import Shape

# The document's own example (S2-46).
SEED = {
    "name": "pytorch-training",
    "image": "nvcr.io/nvidia/pytorch:24.02-py3",
    "command": ["python", "train.py", "--epochs", "10"],
    "gpu_spec": {
        "gpu_type": "A100",
        "gpu_count": 1,
        "memory_gb": 40,
        "vcpus": 12,
        "ram_gb": 48,
    },
    "environment": {"CUDA_VISIBLE_DEVICES": "0", "EPOCHS": "10"},
    "volumes": {"/data": "/host/data"},
    "timeout_minutes": 60,
    "retry_count": 3,
}


def test_the_documents_example_becomes_a_spec():
    spec, warnings = spec_from_config(SEED)
    assert spec.name == "pytorch-training"
    assert spec.command == ("python", "train.py", "--epochs", "10")
    assert (spec.timeout_s, spec.retry_count) == (3600, 3)
    assert spec.volumes == {"/data": "/host/data"}
    assert spec.environment == {"EPOCHS": "10"}
    assert Shape.of(spec) == Shape(
        cpus=12, memory_gb=48, gpus=1, gpu_memory_gb=40, gpu_class="a100", image=True
    )
    (warning,) = warnings
    assert "CUDA_VISIBLE_DEVICES was dropped" in warning


def test_the_documents_classes_are_accepted_as_they_are_written():
    config = JobConfig(
        name="a",
        command=("b",),
        gpu_spec=GpuSpec(gpu_type="A100", gpu_count=2),
        timeout_minutes=1,
    )
    spec, warnings = spec_from_config(config)
    assert (spec.resources.gpus.count, spec.resources.gpus.gpu_class, warnings) == (
        2,
        "a100",
        [],
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (SEED, True),
        ({"timeout_minutes": 1}, True),
        ({"command": ["a"], "image": "b"}, False),
        (["gpu_spec"], False),
        (None, False),
    ],
)
def test_a_body_is_recognised_by_what_only_s2_has(body, expected):
    assert is_job_config(body) is expected


def test_missing_optional_keys_get_their_defaults():
    spec, warnings = spec_from_config(
        {"name": "a", "command": ["b"], "timeout_minutes": 1}
    )
    assert (spec.resources.gpus.count, spec.retry_count, spec.image, warnings) == (
        0,
        0,
        None,
        [],
    )


def test_a_standard_input_is_carried_over():
    spec, _ = spec_from_config({**SEED, "args_via_stdin": "é\n"})
    assert spec.stdin == "é\n"
    with pytest.raises(InvalidInputError, match="args_via_stdin: is not UTF-8"):
        spec_from_config(JobConfig(name="a", command=("b",), args_via_stdin=b"\xff"))


def test_a_checkpoint_is_carried_over():
    spec, _ = spec_from_config(
        {**SEED, "checkpoint": {"path": "out/*.pt", "signal": "USR1"}}
    )
    assert (spec.checkpoint.path, spec.checkpoint.signal) == ("out/*.pt", "USR1")


@pytest.mark.parametrize(
    ("change", "field", "text"),
    [
        (
            {"gpu_spec": {"gpu_type": "A1000"}},
            "gpu_spec.gpu_type",
            "there is no GPU class 'A1000'",
        ),
        (
            {"gpu_spec": {"gpu_typ": "A100"}},
            "gpu_spec.gpu_typ",
            "did you mean gpu_type or gpu_count?",
        ),
        ({"gpu_spec": {"gpu_count": -1}}, "gpu_spec.gpu_count", "must be at least 0"),
        (
            {"gpu_spec": {"memory_gb": 1e9}},
            "gpu_spec.memory_gb",
            "must be at most 1000000",
        ),
        ({"gpu_spec": {"ram_gb": 1e9}}, "gpu_spec.ram_gb", "must be at most 1000000"),
        ({"gpu_spec": {"vcpus": 1e9}}, "gpu_spec.vcpus", "must be at most 10000"),
        ({"timeout_minutes": 1e9}, "timeout_minutes", "must be at most"),
        ({"timeout_minutes": 0}, "timeout_minutes", "must be more than 0"),
        ({"command": "python train.py"}, "command", "must be a list"),
        ({"command": []}, "command", "must have 1 or more"),
        ({"environment": {"A": 1}}, "environment.A", "has a value of the wrong type"),
        (
            {"environment": {"GPUYARD_X": "1"}},
            "environment.GPUYARD_X",
            "choose another name",
        ),
        ({"priority": 3}, "priority", "is not a field"),
    ],
)
def test_an_error_names_the_field_that_was_sent(change, field, text):
    with pytest.raises(InvalidInputError) as caught:
        spec_from_config({**SEED, **change})
    (fault,) = caught.value.faults
    assert fault.field == field
    assert text in str(fault)
