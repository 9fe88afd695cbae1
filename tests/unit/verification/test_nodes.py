"""All GPUs of a node as executors; forms of cards."""

from typing import Any

import pytest

from gpuyard.config.verification import ExecutorSettings
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.gpus import GPUClass
from gpuyard.verification.claims import form_of
from gpuyard.verification.nodes import executors_of_node

CONFIGURED = {
    "mine": ExecutorSettings.model_validate({"class": "t4", "gpu": "GPU-2"}),
    "own": ExecutorSettings.model_validate(
        {"class": "t4", "gpu": "GPU-3", "trusted": True}
    ),
}


def gpu(number: int, node: str = "n1", gpu_class: str | None = "t4") -> dict[str, Any]:
    """A GPU as the API has it."""
    return {
        "uuid": f"GPU-{number}",
        "node": node,
        "name": "Tesla T4",
        "gpu_class": gpu_class,
    }


def test_each_gpu_of_a_node_is_an_executor_and_the_trusted_one_is_left_out() -> None:
    gpus = [gpu(1), gpu(2), gpu(3), gpu(4, "n2")]
    found = executors_of_node("node:n1", gpus, CONFIGURED, None)
    assert [one.name for one in found] == ["gpu:GPU-1", "mine"]
    assert {one.gpu_class for one in found} == {GPUClass.T4}
    assert [one.settings.gpu for one in found] == ["GPU-1", "GPU-2"]


def test_a_class_may_be_claimed_of_gpus_that_nobody_knows() -> None:
    unknown = [gpu(1, gpu_class=None)]
    (found,) = executors_of_node("node:n1", unknown, {}, GPUClass.A40)
    assert found.gpu_class is GPUClass.A40
    with pytest.raises(InvalidInputError, match="is of no known class"):
        executors_of_node("node:n1", unknown, {}, None)


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("node:n3", "no node 'n3' has GPUs .*: n1"),
        ("node:n1", "GPUs of 'n1' are trusted"),
    ],
)
def test_a_node_that_has_nothing_to_verify(words: str, fault: str) -> None:
    with pytest.raises(InvalidInputError, match=fault):
        executors_of_node(words, [gpu(3)], CONFIGURED, None)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("NVIDIA A100-SXM4-80GB", "sxm"),
        ("NVIDIA A100 80GB PCIe", "pcie"),
        ("NVIDIA A100-PCIE-40GB", "pcie"),
        ("NVIDIA H100 80GB HBM3", "sxm"),
        ("NVIDIA H100 PCIe", "pcie"),
        ("Tesla T4", None),
    ],
)
def test_the_form_of_a_card_is_read_off_its_name(name: str, form: str | None) -> None:
    assert form_of(name) == form
