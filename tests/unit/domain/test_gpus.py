"""The catalogue of GPU classes: what drivers call a card, and what people call it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.domain.gpus import (
    FAMILIES,
    GPU_CLASSES,
    GPUClass,
    classify,
    compute_capability,
    resolve_gpu_class,
    whole_gpus,
)


@pytest.mark.parametrize(
    ("product_name", "memory_mb", "expected"),
    [
        ("NVIDIA A100-SXM4-80GB", 81920, GPUClass.A100_80GB),
        ("NVIDIA A100-PCIE-40GB", 40960, GPUClass.A100_40GB),
        ("NVIDIA A100-SXM4-40GB", 40536, GPUClass.A100_40GB),
        ("Tesla T4", 15360, GPUClass.T4),
        ("Tesla V100-SXM2-16GB", 16160, GPUClass.V100_16GB),
        ("Tesla V100-SXM2-32GB", 32510, GPUClass.V100_32GB),
        ("Tesla V100S-PCIE-32GB", 32510, GPUClass.V100_32GB),
        ("Tesla P100-PCIE-16GB", 16280, GPUClass.P100),
        ("NVIDIA GeForce RTX 3090", 24576, GPUClass.RTX_3090),
        ("NVIDIA GeForce RTX 4090", 24564, GPUClass.RTX_4090),
        ("NVIDIA GeForce RTX 5090", 32607, GPUClass.RTX_5090),
        ("NVIDIA RTX A6000", 49140, GPUClass.A6000),
        ("NVIDIA RTX 6000 Ada Generation", 49140, GPUClass.RTX_6000_ADA),
        ("NVIDIA A10", 23028, GPUClass.A10),
        ("NVIDIA A10G", 23028, GPUClass.A10G),
        ("NVIDIA A30", 24576, GPUClass.A30),
        ("NVIDIA A40", 46068, GPUClass.A40),
        ("NVIDIA L4", 23034, GPUClass.L4),
        ("NVIDIA L40", 46068, GPUClass.L40),
        ("NVIDIA L40S", 46068, GPUClass.L40S),
        ("NVIDIA H100 80GB HBM3", 81559, GPUClass.H100_80GB),
        ("NVIDIA H100 PCIe", 81559, GPUClass.H100_80GB),
        ("NVIDIA H100 NVL", 95830, GPUClass.H100_94GB),
        ("NVIDIA H200", 143771, GPUClass.H200),
        ("NVIDIA GH200 480GB", 97871, GPUClass.GH200),
        ("NVIDIA B200", 183359, GPUClass.B200),
    ],
)
def test_a_driver_reports_a_known_card(product_name, memory_mb, expected):
    assert classify(product_name, memory_mb) is expected


@pytest.mark.parametrize(
    ("product_name", "memory_mb"),
    [
        (
            "NVIDIA A100-SXM4-80GB MIG 3g.40gb",
            40320,
        ),  # the size of the smaller card, not its speed
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", 9856),
        ("NVIDIA H100 80GB HBM3 MIG 7g.80gb", 81152),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 16376),
        ("NVIDIA GeForce RTX 5090 Laptop GPU", 24463),
        ("GRID A100-10C", 10240),
        ("Quadro RTX 6000", 24576),
        ("NVIDIA GeForce GTX 1080 Ti", 11264),
        ("", 0),
    ],
)
def test_what_is_no_whole_card_of_the_catalogue_has_no_class(product_name, memory_mb):
    assert classify(product_name, memory_mb) is None


def test_the_catalogue_is_complete_and_readable():
    assert set(GPU_CLASSES) == set(GPUClass)
    assert all(
        compute_capability(row.compute_capability) >= (6, 0)
        for row in GPU_CLASSES.values()
    )
    assert all(members and members <= set(GPUClass) for members in FAMILIES.values())


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("A100", {GPUClass.A100_40GB, GPUClass.A100_80GB}),
        ("a100-80gb", {GPUClass.A100_80GB}),
        ("H100", {GPUClass.H100_80GB, GPUClass.H100_94GB}),
        ("v100", {GPUClass.V100_16GB, GPUClass.V100_32GB}),
        ("NVIDIA RTX 4090", {GPUClass.RTX_4090}),
        ("4090", {GPUClass.RTX_4090}),
        ("rtx_6000_ada", {GPUClass.RTX_6000_ADA}),
        ("RTX A6000", {GPUClass.A6000}),
        (" t4 ", {GPUClass.T4}),
        ("nvidia l40s", {GPUClass.L40S}),
    ],
)
def test_people_name_a_class(name, expected):
    assert resolve_gpu_class(name) == expected


@pytest.mark.parametrize("gpu_class", GPUClass)
def test_every_class_is_known_by_its_own_name(gpu_class):
    assert gpu_class in resolve_gpu_class(gpu_class.value)


@pytest.mark.parametrize(
    ("name", "near"),
    [("a1000", "a100"), ("rtx-4080", "rtx-4090"), ("h100-80g", "h100-80gb")],
)
def test_a_class_that_does_not_exist_gets_the_nearest_names(name, near):
    with pytest.raises(
        ValueError, match=f"there is no GPU class '{name}'; nearest: .*{near}"
    ):
        resolve_gpu_class(name)


def test_a_name_like_no_other_gets_the_whole_list():
    with pytest.raises(ValueError, match=r"there are: a10, a100, a100-40gb.*v100-32gb"):
        resolve_gpu_class("%%%")


def test_capabilities_compare_as_versions():
    assert (
        compute_capability("10.0")
        > compute_capability("9.0")
        > compute_capability("8.6")
        > compute_capability("8")
    )


@pytest.mark.parametrize(
    "text", ["", "new", "8.6.1", "-8", "8,6", "800", "8.600", "sm_86"]
)
def test_what_is_no_capability(text):
    with pytest.raises(
        ValueError, match=r"is not a compute capability; write it as 8\.6"
    ):
        compute_capability(text)


@given(st.text(), st.integers(0, 2**31))
def test_any_name_is_classified_or_not_and_never_fails(name, memory_mb):
    assert classify(name, memory_mb) in {None, *GPUClass}


@pytest.mark.parametrize("count", [2, "2", "2.0", ".00", "1/x", None])
def test_a_whole_count_is_left_to_the_field(count: object) -> None:
    assert whole_gpus(count) == count


@pytest.mark.parametrize("part", [".001", "0.250", "1.50", "3 /4"])
def test_a_part_of_a_gpu_is_refused(part: str) -> None:
    with pytest.raises(ValueError, match="a part of a GPU"):
        whole_gpus(part)


def test_a_count_without_end_costs_no_quadratic_time() -> None:
    """A submission may be 64 MB long."""
    text = "." + "1" * 300_000 + "x"
    assert whole_gpus(text) == text
