"""Claims: what a solver says of its GPU, true and invented, against its class."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.gpus import GPU_CLASSES, GPUClass
from gpuyard.verification.claims import (
    MOST_GPUS,
    Claim,
    ClaimFinding,
    Expected,
    claims_of,
    judge_claims,
    limit_of,
    shared_uuids,
    wanted_of,
)
from gpuyard.verification.proof_sizes import (
    passes_to_ask,
    products_to_ask,
    vram_gb_to_ask,
)

UUID = "GPU-2f4e6a80-1111-2222-3333-444455556666"
OTHER = "GPU-aaaaaaaa-1111-2222-3333-444455556666"
DIGEST = "ab" * 32
PRODUCT = "ef" * 32
A100: dict[str, Any] = {
    "name": "NVIDIA A100-SXM4-80GB",
    "memory_mb": 81920,
    "uuid": UUID,
    "driver": "570.86.15",
    "compute_capability": "8.0",
}
SAID: dict[str, Any] = {
    "inventory": [A100],
    "vram": {"gigabytes": 68.0, "digest": DIGEST, "fill_s": 9.0, "read_s": 1.0},
    "speed": {"digest": PRODUCT},
}
EXPECTED: dict[str, Any] = {
    "gpu_class": "a100-80gb",
    "inventory": True,
    "products": 142,
    "vram_gb": 68.0,
    "vram_digest": DIGEST,
    "speed_digest": PRODUCT,
    "claims_s": 15.0,
}
ALL = {
    "model",
    "memory",
    "compute_capability",
    "uuid",
    "driver",
    "vram",
    "vram_digest",
    "speed_digest",
    "claims_s",
}


def judged(
    said: object, elapsed_s: float | None = 12.0, **expected: Any
) -> dict[str, ClaimFinding]:
    findings = judge_claims(said, Expected(**{**EXPECTED, **expected}), elapsed_s)
    assert len({finding.name for finding in findings}) == len(findings)
    return {finding.name: finding for finding in findings}


def wrong(said: object, elapsed_s: float | None = 12.0, **expected: Any) -> set[str]:
    return {
        name
        for name, finding in judged(said, elapsed_s, **expected).items()
        if finding.ok is False
    }


def gpu(**changes: Any) -> dict[str, Any]:
    return {**SAID, "inventory": [{**A100, **changes}]}


def test_claims_are_asked_for_by_name() -> None:
    assert claims_of([]) == frozenset()
    assert claims_of(["speed"]) == {Claim.SPEED}
    assert claims_of(["vram", "inventory", "vram"]) == {Claim.INVENTORY, Claim.VRAM}
    assert claims_of(["vram", "all"]) == set(Claim)


@pytest.mark.parametrize("word", ["memory", "", "VRAM", "inventory,vram"])
def test_a_claim_that_does_not_exist_is_named_with_those_that_do(word: str) -> None:
    with pytest.raises(
        InvalidInputError, match=r"--claim: .* inventory, vram, speed or all"
    ) as raised:
        claims_of(["speed", word])
    assert repr(word) in str(raised.value)


def test_what_is_true_is_found_right() -> None:
    found = judged(SAID)
    assert set(found) == ALL and all(finding.ok is True for finding in found.values())
    assert found["model"] == ClaimFinding(
        "model", True, "'NVIDIA A100-SXM4-80GB'", "a100-80gb"
    )


def test_only_what_was_asked_for_is_judged() -> None:
    assert judge_claims(SAID, Expected("a100-80gb"), 1.0) == ()
    assert set(judged(SAID, inventory=False, vram_gb=0)) == {
        "speed_digest",
        "claims_s",
    }


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"name": "NVIDIA A100-SXM4-40GB", "memory_mb": 40960}, {"model", "memory"}),
        (
            {"memory_mb": 40960},
            {"model", "memory"},
        ),  # the name of the large one, the memory of the small one
        (
            {"name": "NVIDIA H100 80GB HBM3", "compute_capability": "9.0"},
            {"model", "compute_capability"},
        ),
        ({"name": "NVIDIA A100-SXM4-80GB MIG 7g.80gb"}, {"model"}),
        ({"compute_capability": "8.6"}, {"compute_capability"}),
        ({"compute_capability": "newest"}, {"compute_capability"}),
        ({"memory_mb": 163840}, {"model", "memory"}),
        ({"memory_mb": float("nan")}, {"model", "memory"}),
        ({"memory_mb": True}, {"model", "memory"}),
        ({"memory_mb": 10**400}, {"model", "memory"}),
        ({"uuid": "MIG-2f4e6a80-1111-2222-3333-444455556666"}, {"uuid"}),
        ({"uuid": "GPU-2f4e6a80"}, {"uuid"}),
        ({"uuid": None}, {"uuid"}),
        ({"driver": "latest"}, {"driver"}),
        ({"name": 5, "driver": []}, {"model", "driver"}),
        ({"name": "x" * 10**6}, {"model"}),
    ],
)
def test_a_gpu_that_is_not_of_the_class(
    changes: dict[str, Any], names: set[str]
) -> None:
    found = judged(gpu(**changes))
    assert {name for name, finding in found.items() if finding.ok is False} == names
    assert all(len(finding.said) < 200 for finding in found.values())


@pytest.mark.parametrize("memory_mb", [81559, 81920, 79000])
def test_what_a_driver_keeps_of_the_memory_is_no_lie(memory_mb: int) -> None:
    assert wrong(gpu(memory_mb=memory_mb)) == set()


@pytest.mark.parametrize(
    "inventory", [None, [], {}, "A100", [A100, 5], [A100] * (MOST_GPUS + 1), [[A100]]]
)
def test_an_inventory_that_is_none(inventory: object) -> None:
    assert wrong({**SAID, "inventory": inventory}) == {"inventory"}


def test_one_gpu_listed_twice_is_not_two() -> None:
    assert wrong(
        {
            **SAID,
            "inventory": [A100, {**A100, "uuid": UUID.upper().replace("GPU-", "gpu-")}],
        }
    ) == {"uuid"}
    assert wrong({**SAID, "inventory": [A100, {**A100, "uuid": OTHER}]}) == set()


def test_one_wrong_gpu_among_right_ones_is_found() -> None:
    other = {
        **A100,
        "uuid": OTHER,
        "name": "Tesla T4",
        "memory_mb": 15360,
        "compute_capability": "7.5",
    }
    assert wrong({**SAID, "inventory": [A100, other]}) == {
        "model",
        "memory",
        "compute_capability",
    }


def test_two_executors_with_one_gpu_are_both_found() -> None:
    claims = {
        "here": SAID,
        "there": gpu(uuid=UUID.upper().replace("GPU-", "gpu-")),
        "elsewhere": gpu(uuid=OTHER),
    }
    shared = shared_uuids(claims)
    number = UUID.removeprefix("GPU-")
    assert shared == {"here": {number: "there"}, "there": {number: "here"}}
    for executor in claims:
        found = judged(claims[executor], shared=shared.get(executor, {}))["uuid"]
        assert found.ok is (executor == "elsewhere")
    assert (
        judged(SAID, shared=shared["here"])["uuid"].expected
        == "one of its own, not that of there"
    )


def test_three_with_one_gpu_are_all_found_and_nonsense_is_shared_by_nobody() -> None:
    assert set(shared_uuids({"a": SAID, "b": SAID, "c": SAID})) == {"a", "b", "c"}
    assert (
        shared_uuids(
            {
                "a": None,
                "b": gpu(uuid="x"),
                "c": gpu(uuid="x"),
                "d": {"inventory": [[UUID]]},
            }
        )
        == {}
    )


def test_the_inventory_of_a_class_without_a_gpu_is_held_against_nothing() -> None:
    assert judged(SAID, gpu_class="practice-12")["model"].ok is None
    assert wrong(SAID, gpu_class="practice-12") == set()


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"digest": "cd" * 32}, {"vram_digest"}),
        ({"digest": "AB" * 32}, {"vram_digest"}),
        ({"digest": None}, {"vram_digest"}),
        ({"gigabytes": 34.0}, {"vram"}),
        ({"gigabytes": 67.9999}, set[str]()),  # rows come in pairs
        ({"gigabytes": "68"}, {"vram"}),
        ({"gigabytes": float("inf")}, {"vram"}),
    ],
)
def test_memory_that_was_not_shown(change: dict[str, Any], names: set[str]) -> None:
    assert wrong({**SAID, "vram": {**SAID["vram"], **change}}) == names


def test_a_digest_that_nobody_computed_proves_nothing_and_blames_nobody() -> None:
    assert judged(SAID, vram_digest=None)["vram_digest"].ok is None
    assert wrong(
        {**SAID, "vram": {"gigabytes": 68.0, "digest": "?"}}, vram_digest=None
    ) == {"vram_digest"}


@pytest.mark.parametrize("left_out", ["vram", "speed", "inventory"])
def test_what_was_asked_for_and_left_out_counts_as_wrong(left_out: str) -> None:
    said = {key: value for key, value in SAID.items() if key != left_out}
    names = {
        "vram": {"vram", "vram_digest"},
        "speed": {"speed_digest"},
        "inventory": {"inventory"},
    }
    assert wrong(said) == names[left_out]


def test_a_probe_that_failed_says_why() -> None:
    found = judged(
        {**SAID, "vram": {"failed": "out of memory"}, "speed": {"failed": "no torch"}}
    )
    assert found["vram"] == ClaimFinding("vram", False, "'out of memory'", "68 GiB")
    assert found["speed_digest"] == ClaimFinding(
        "speed_digest", False, "'no torch'", PRODUCT
    )


def test_a_card_of_another_form() -> None:
    assert judged(SAID, form="sxm")["form"].ok
    assert wrong(SAID, form="pcie") == {"form"}


def test_products_that_somebody_else_computes_otherwise() -> None:
    assert wrong({**SAID, "speed": {"digest": DIGEST}}) == {"speed_digest"}
    assert judged(SAID, speed_digest=None)["speed_digest"].ok is None


def test_a_class_that_is_not_calibrated_judges_no_time() -> None:
    found = judged(SAID, claims_s=None)
    assert found["claims_s"].ok is None
    assert found["claims_s"].expected == "not calibrated"


def test_every_class_multiplies_for_about_a_second() -> None:
    asked = {name: products_to_ask(name) for name in GPUClass}
    assert asked[GPUClass.A100_80GB] == 142
    assert min(asked.values()) == asked[GPUClass.P100] == 9


def test_a_memory_proof_has_passes_for_some_seconds() -> None:
    asked = {name: passes_to_ask(name) for name in GPUClass}
    assert asked[GPUClass.L4] == 21 and asked[GPUClass.H200] == 56
    assert min(asked.values()) >= 16


def test_a_claim_by_itself_has_its_own_time() -> None:
    assert limit_of(frozenset({Claim.VRAM, Claim.INVENTORY})) == "vram_s"
    assert limit_of(frozenset({Claim.SPEED})) == "speed_s"
    assert limit_of(frozenset(Claim)) == limit_of(frozenset()) == "claims_s"


def test_what_is_asked_for_stands_in_the_order() -> None:
    asked = {name: products_to_ask(name) for name in GPUClass}
    wanted = wanted_of(GPUClass.T4, frozenset({Claim.SPEED}))
    assert wanted.proofs == {"speed": {"size": 16384, "steps": asked[GPUClass.T4]}}


@pytest.mark.parametrize(
    ("elapsed_s", "ok"), [(15.0, True), (15.1, False), (-1.0, False), (None, False)]
)
def test_the_time_is_the_one_that_we_measured(
    elapsed_s: float | None, ok: bool
) -> None:
    assert judged(SAID, elapsed_s)["claims_s"].ok is ok


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from([*SAID, *A100, "digest", "gigabytes"]), inner
            )
        ),
    )
)
def test_whatever_is_said_there_is_a_finding_for_each_thing(said: object) -> None:
    found = judged(said, None)
    assert (
        {"vram", "vram_digest", "speed_digest", "claims_s"}
        <= set(found)
        <= ALL | {"inventory"}
    )
    assert all(
        finding.ok is False
        for name, finding in found.items()
        if name not in ("vram", "compute_capability")
    )
    assert all(len(finding.said) < 5000 for finding in found.values())
    assert shared_uuids({"a": said, "b": said}) == {}


def test_what_is_asked_for_fits_the_class_and_not_the_next_smaller_one_of_its_kind() -> (
    None
):
    asked = {gpu_class: vram_gb_to_ask(gpu_class) for gpu_class in GPUClass}
    assert all(
        0.8 * GPU_CLASSES[name].memory_gb
        < gigabytes
        < 0.9 * GPU_CLASSES[name].memory_gb
        for name, gigabytes in asked.items()
    )
    for small, large in (
        (GPUClass.A100_40GB, GPUClass.A100_80GB),
        (GPUClass.V100_16GB, GPUClass.V100_32GB),
    ):
        assert asked[large] > GPU_CLASSES[small].memory_gb
    # By what the driver tells of them, in GiB: these fit into what their cards really
    # have.
    assert (
        asked[GPUClass.T4] < 14.5
        and asked[GPUClass.A10G] < 22
        and asked[GPUClass.H200] < 139
    )
    assert asked[GPUClass.H100_94GB] > 79.6  # what one of 80 GB has
