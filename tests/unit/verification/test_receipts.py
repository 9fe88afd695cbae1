"""Receipts: they excuse the one executor at the one time that they were signed for,
once.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.verification import evidence as evidence_module
from gpuyard.verification import receipts
from gpuyard.verification.receipts import Receipt, ReceiptError, excuse, read, sign

NOW = 1_790_000_000.0
KEY = Ed25519PrivateKey.generate()
OTHER = Ed25519PrivateKey.generate()
KEYS = {"instance": KEY.public_key()}
RECEIPT = Receipt(
    "rcp_1", "slurm/a100", "job_1", "a100-80gb", NOW - 60, 600, "instance"
)
SIGNED = sign(RECEIPT, KEY)


def reading(
    receipt: object, now: float = NOW, used: tuple[str, ...] = (), **changed: Any
) -> Receipt:
    return read(
        receipt,
        KEYS,
        changed.get("executor", "slurm/a100"),
        now,
        used,
        gpu_class=changed.get("gpu_class", "a100-80gb"),
    )


def test_a_receipt_is_read_as_it_was_signed() -> None:
    assert reading(SIGNED) == RECEIPT
    assert set(SIGNED) == {
        "id",
        "executor",
        "job",
        "class",
        "started_at",
        "valid_s",
        "issuer",
        "signature",
    }


def test_the_order_of_fields_and_the_kind_of_a_number_are_no_part_of_it() -> None:
    whole = {**SIGNED, "started_at": int(RECEIPT.started_at), "valid_s": 600}
    assert reading(dict(reversed(whole.items()))) == RECEIPT


@pytest.mark.parametrize(
    "field", ["id", "executor", "job", "class", "started_at", "valid_s"]
)
def test_a_changed_field_is_a_forgery(field: str) -> None:
    """As the executor would change it: to be read for itself, for this class, for now,
    and as if it were new.
    """
    value = SIGNED[field]
    changed = {
        **SIGNED,
        field: value + 1 if isinstance(value, float | int) else f"{value}x",
    }
    read_as: dict[str, Any] = {
        "executor": changed["executor"],
        "gpu_class": changed["class"],
    }
    with pytest.raises(ReceiptError, match="is not signed by 'instance'"):
        reading(changed, **read_as)


def test_values_that_change_places_are_a_forgery() -> None:
    swapped = {**SIGNED, "job": SIGNED["id"], "id": SIGNED["job"]}
    with pytest.raises(ReceiptError, match="is not signed"):
        reading(swapped)
    # What joins fields without names could be cut elsewhere.
    moved = {**SIGNED, "id": SIGNED["id"][:-1], "job": SIGNED["id"][-1] + SIGNED["job"]}
    with pytest.raises(ReceiptError, match="is not signed"):
        reading(moved)


def test_a_key_that_is_not_known_and_a_known_name_with_another_key() -> None:
    with pytest.raises(ReceiptError, match="by 'mine', whose key is not known"):
        reading(sign(replace(RECEIPT, issuer="mine"), OTHER))
    with pytest.raises(ReceiptError, match="is not signed by 'instance'"):
        reading(sign(RECEIPT, OTHER))


def test_what_the_key_signs_for_other_uses_is_no_receipt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    context = vars(evidence_module)["_CONTEXT"]
    monkeypatch.setattr(receipts, "_CONTEXT", context)
    as_evidence = sign(RECEIPT, KEY)
    monkeypatch.undo()
    with pytest.raises(ReceiptError, match="is not signed"):
        reading(as_evidence)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"executor": "slurm/other"}, "is of another executor, 'slurm/a100'"),
        ({"gpu_class": "h200"}, "is of another class, 'a100-80gb'"),
        ({"now": NOW - 66}, "begins 6 s in the future"),
        ({"now": NOW + 540}, "expired 0 s ago"),
        ({"now": NOW + 1000}, "expired 460 s ago"),
        ({"used": ("rcp_1",)}, "has excused before"),
    ],
)
def test_it_excuses_nobody_else_at_no_other_time_and_once(
    change: dict[str, Any], words: str
) -> None:
    with pytest.raises(ReceiptError, match=words):
        reading(SIGNED, **change)


@pytest.mark.parametrize("now", [NOW - 64.9, NOW - 60, NOW + 539.9])
def test_it_counts_to_its_limits_and_clocks_may_differ_a_little(now: float) -> None:
    assert reading(SIGNED, now) == RECEIPT


@pytest.mark.parametrize("valid_s", [0, -1, 24 * 3600 + 1, 1e300])
def test_one_that_excuses_for_ever_is_refused_though_it_is_signed(
    valid_s: float,
) -> None:
    with pytest.raises(ReceiptError, match=r"is valid for|not a number of seconds"):
        reading(sign(replace(RECEIPT, valid_s=valid_s), KEY))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"more": 1}, "has other fields than class, executor"),
        ({"id": ""}, "id is '', not a text"),
        ({"id": 5}, "id is 5, not a text"),
        ({"job": "x" * 513}, "not a text of at most 512"),
        ({"started_at": True}, "started_at is True, not a number"),
        ({"started_at": "1"}, "not a number"),
        ({"started_at": float("nan")}, "not a number"),
        ({"valid_s": float("inf")}, "not a number"),
        ({"started_at": 10**400}, "not a number"),
        ({"signature": "zz"}, "is not signed"),
        ({"signature": SIGNED["signature"][:-1]}, "is not signed"),
        ({"signature": "00" * 64}, "is not signed"),
        ({"id": "\ud800"}, "is not signed"),
        ({"issuer": "\ud800"}, "whose key is not known"),
    ],
)
def test_what_is_no_receipt(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ReceiptError, match=words):
        reading({**SIGNED, **change})


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.sampled_from(sorted(SIGNED)), inner)
        ),
    )
)
def test_anything_at_all_is_refused_in_the_same_way(anything: object) -> None:
    with pytest.raises(ReceiptError):
        reading(anything)


def excused(*given_receipts: object, slots: int = 1) -> int:
    return len(
        excuse(
            given_receipts,
            KEYS,
            "slurm/a100",
            NOW,
            (),
            gpu_class="a100-80gb",
            slots=slots,
        )
    )


def another(number: int, **changes: Any) -> dict[str, Any]:
    return sign(
        replace(RECEIPT, id=f"rcp_{number}", job=f"job_{number}", **changes), KEY
    )


def test_all_slots_are_to_be_shown_at_work() -> None:
    assert excused(SIGNED) == 1
    assert excused(SIGNED, another(2), slots=2) == 2


@pytest.mark.parametrize(
    ("make", "slots", "words"),
    [
        (lambda: (), 1, "0 for now, and all 1 of its slots"),
        (
            lambda: (SIGNED,),
            2,
            "1 for now, and all 2",
        ),  # the other one could have done the check
        (
            lambda: (SIGNED, another(2)),
            1,
            "2 for now, and all 1",
        ),  # one GPU does not do both at once
        (lambda: (SIGNED, SIGNED), 2, "of one id came twice"),
        (
            lambda: (SIGNED, sign(replace(RECEIPT, id="rcp_2"), KEY)),
            2,
            "of one job came twice",
        ),
        (lambda: (SIGNED, another(2, started_at=NOW + 60)), 2, "in the future"),
        (lambda: (SIGNED,) * 65, 65, "come 65 at once"),
    ],
)
def test_an_excuse_that_is_none(
    make: Callable[[], tuple[object, ...]], slots: int, words: str
) -> None:
    with pytest.raises(ReceiptError, match=words):
        excused(*make(), slots=slots)
