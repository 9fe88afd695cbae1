"""Which node and GPUs a job gets that names none."""

import pytest

from gpuyard.domain import wire
from gpuyard.domain.jobconfig import GpuSpec
from gpuyard.domain.offers import Offer
from gpuyard.providers.placing import place, suits, words_of


def gpu(uuid, name="NVIDIA A100-SXM4-40GB", memory_mb=40960, **fields):
    return wire.GpuStatus(uuid, int(uuid[1:]), name, memory_mb, **fields)


def node(node_id, *gpus, cpus=8, memory_gb=64.0):
    return wire.Hello(node_id, node_id, "boot", cpus, memory_gb, list(gpus))


T4 = gpu("g0", "Tesla T4", 15109)
A100 = gpu("g1")
A100_BIG = gpu("g2", "NVIDIA A100-SXM4-80GB", 81920)
UNKNOWN = gpu("g3", "NVIDIA Z9", 24000)


@pytest.mark.parametrize(
    ("need", "wanted"),
    [
        (GpuSpec(gpu_count=0), []),
        (GpuSpec(), ["g0"]),
        (GpuSpec(gpu_count=2), ["g0", "g3"]),
        (GpuSpec(gpu_count=4), ["g0", "g3", "g1", "g2"]),
        (GpuSpec(memory_gb=16), ["g0"]),
        (GpuSpec(memory_gb=40), ["g1"]),
        (GpuSpec(memory_gb=24), ["g3"]),
        (GpuSpec(memory_gb=80), ["g2"]),
        (GpuSpec(gpu_type="T4"), ["g0"]),
        (GpuSpec(gpu_type="A100"), ["g1"]),
        (GpuSpec(gpu_type="A100", memory_gb=80), ["g2"]),
        (GpuSpec(gpu_type="A100", gpu_count=2), ["g1", "g2"]),
    ],
)
def test_the_smallest_gpus_that_suit_are_given(need, wanted):
    assert place(need, [node("n", A100_BIG, A100, T4, UNKNOWN)], set()) == ("n", wanted)


@pytest.mark.parametrize(
    "need",
    [
        GpuSpec(gpu_count=5),
        GpuSpec(memory_gb=81),
        GpuSpec(gpu_type="H100"),
        GpuSpec(gpu_type="T4", gpu_count=2),
        GpuSpec(gpu_count=0, vcpus=8.5),
        GpuSpec(gpu_count=0, ram_gb=65),
    ],
)
def test_what_no_node_has_is_not_placed(need):
    assert place(need, [node("n", A100_BIG, A100, T4, UNKNOWN)], set()) is None


def test_gpus_in_use_and_gpus_in_trouble_are_left_out():
    broken = gpu("g4", problem="fell off the bus")
    assert place(GpuSpec(), [node("n", A100, broken)], {"g1"}) is None
    assert place(GpuSpec(), [node("n", A100, broken)], set()) == ("n", ["g1"])


def test_the_first_node_that_has_it_all_is_taken():
    nodes = [
        node("small", T4, cpus=2),
        node("none"),
        node("big", A100),
        node("bigger", A100_BIG),
    ]
    assert place(GpuSpec(vcpus=4), nodes, set()) == ("big", ["g1"])
    assert place(GpuSpec(gpu_count=0, vcpus=4), nodes, set()) == ("none", [])


def test_a_type_that_does_not_exist_is_an_error_with_the_nearest_names():
    with pytest.raises(ValueError, match=r"no GPU class 'A1000'; nearest: .*a100"):
        place(GpuSpec(gpu_type="A1000"), [node("n", A100)], set())


A100S = Offer("p/a", "p", "NVIDIA A100 SXM4 40GB", 2, 39.6, cpus=8, memory_gb=64)
SLURMS = Offer("p/s", "p", "a100", 2)
NAMELESS = Offer("p/n", "p", gpus=2)


@pytest.mark.parametrize(
    ("offer", "need", "wanted"),
    [
        (A100S, GpuSpec(gpu_count=0, vcpus=8, ram_gb=64), True),
        (A100S, GpuSpec(gpu_count=0, vcpus=9), False),
        (A100S, GpuSpec(gpu_count=0, ram_gb=65), False),
        (A100S, GpuSpec(gpu_count=3), False),
        (A100S, GpuSpec(gpu_type="A100", memory_gb=40), True),
        (A100S, GpuSpec(gpu_type="nvidia a100 sxm4 40gb"), True),
        (A100S, GpuSpec(gpu_type="A100", memory_gb=80), False),
        (A100S, GpuSpec(gpu_type="T4"), False),
        (A100S, GpuSpec(gpu_type="A1000"), False),
        (SLURMS, GpuSpec(gpu_type="A100", memory_gb=40), True),
        (SLURMS, GpuSpec(gpu_type="a100-80gb"), False),
        (NAMELESS, GpuSpec(), True),
        (NAMELESS, GpuSpec(gpu_type="gpu"), True),
        (NAMELESS, GpuSpec(gpu_type="A100"), False),
        (NAMELESS, GpuSpec(memory_gb=1), False),
    ],
)
def test_an_offer_suits_when_its_machine_is_known_to_have_it_all(offer, need, wanted):
    assert suits(offer, need) is wanted


def test_what_is_asked_for_is_said_with_the_nearest_names_of_an_unknown_type():
    said = words_of(GpuSpec(gpu_type="A1000", gpu_count=2, memory_gb=40, vcpus=8))
    assert said.startswith("2 A1000 GPUs of 40 GB, 8 cores and 0 GB (there is no GPU")
    assert words_of(GpuSpec(gpu_count=0)) == "0 GPUs, 0 cores and 0 GB"
