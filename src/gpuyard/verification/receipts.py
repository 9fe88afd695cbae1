"""Receipts: signed proof that an executor works for someone, and may decline a check.

A receipt is `{"id", "executor", "job", "class", "started_at", "valid_s", "issuer",
"signature"}`. The signature (Ed25519, hexadecimal) is over a fixed prefix and all other
fields in canonical JSON. So no field can be changed or swapped, and nothing else that
was signed with the key is valid as a receipt. Each receipt excuses only once, ever.
"""

import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from gpuyard.domain.errors import quoted

CLOCKS_S = 5.0  # how far the clocks of issuer and reader may differ
LONGEST_S = 24 * 3600.0  # limits the use of a stolen receipt
MOST = 64  # in one message
LONGEST_TEXT = 512
_END_OF_TIME = 1e12
_CONTEXT = b"gpuyard receipt 1\n"
_TEXTS = ("id", "executor", "job", "class", "issuer")
_TIMES = ("started_at", "valid_s")
_FIELDS = {*_TEXTS, *_TIMES, "signature"}


class ReceiptError(ValueError):
    """A receipt excuses nothing; the text says why."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """`issuer` has given `job` to `executor`, which claims to be of `gpu_class`.

    It is valid from `started_at` (UTC seconds) for `valid_s` seconds.
    """

    id: str
    executor: str
    job: str
    gpu_class: str
    started_at: float
    valid_s: float
    issuer: str


def sign(receipt: Receipt, key: Ed25519PrivateKey) -> dict[str, Any]:
    """The signed receipt, as it is given to the executor."""
    fields = asdict(receipt)
    fields["class"] = fields.pop("gpu_class")
    return {**fields, "signature": key.sign(_signed(fields)).hex()}


def read(
    receipt: object,
    keys: Mapping[str, Ed25519PublicKey],
    executor: str,
    now: float,
    used: Container[str],
    *,
    gpu_class: str,
) -> Receipt:
    """Verify that a receipt excuses `executor` of `gpu_class` at `now`; ReceiptError.

    `keys`: the accepted issuers. `used`: ids of receipts that have excused before. The
    caller has to add this one, in the transaction that records the excuse.
    """
    found = _verified(_fields(receipt), keys)
    if found.executor != executor:
        raise ReceiptError(f"is of another executor, {quoted(found.executor)}")
    if found.gpu_class != gpu_class:
        raise ReceiptError(f"is of another class, {quoted(found.gpu_class)}")
    if found.started_at > now + CLOCKS_S:
        raise ReceiptError(f"begins {found.started_at - now:.0f} s in the future")
    if now >= found.started_at + found.valid_s:
        raise ReceiptError(
            f"expired {now - found.started_at - found.valid_s:.0f} s ago"
        )
    if found.id in used:
        raise ReceiptError("has excused before")
    return found


def excuse(
    receipts: Sequence[object],
    keys: Mapping[str, Ed25519PublicKey],
    executor: str,
    now: float,
    used: Container[str],
    *,
    gpu_class: str,
    slots: int = 1,
) -> tuple[Receipt, ...]:
    """Verify that receipts show all `slots` of an executor at work; ReceiptError.

    With fewer receipts a slot is free for the check. With more, jobs were signed that
    one GPU cannot run at once.
    """
    if len(receipts) > MOST:
        raise ReceiptError(f"come {len(receipts)} at once; at most {MOST} are read")
    found = tuple(
        read(receipt, keys, executor, now, used, gpu_class=gpu_class)
        for receipt in receipts
    )
    for what, values in (
        ("id", {one.id for one in found}),
        ("job", {(one.issuer, one.job) for one in found}),
    ):
        if len(values) < len(found):
            raise ReceiptError(f"of one {what} came twice")
    if len(found) != slots:
        raise ReceiptError(
            f"{len(found)} for now, and all {slots} of its slots are to be shown at"
            " work, each once"
        )
    return found


def _fields(receipt: object) -> dict[str, Any]:
    """The fields of a receipt, if they are exactly those and of the right types."""
    if not isinstance(receipt, Mapping):
        raise ReceiptError(f"is {quoted(receipt)}, not an object")
    fields: dict[Any, Any] = {**receipt}
    if set(fields) != _FIELDS:
        raise ReceiptError(f"has other fields than {', '.join(sorted(_FIELDS))}")
    for name in (*_TEXTS, "signature"):
        if (
            not isinstance(fields[name], str)
            or not 0 < len(fields[name]) <= LONGEST_TEXT
        ):
            raise ReceiptError(
                f"{name} is {quoted(fields[name])}, not a text of at most"
                f" {LONGEST_TEXT} characters"
            )
    for name in _TIMES:
        # An integer may be too large for a float, and True is an int, too.
        if (
            type(fields[name]) not in (int, float)
            or not abs(fields[name]) < _END_OF_TIME
        ):
            raise ReceiptError(
                f"{name} is {quoted(fields[name])}, not a number of seconds"
            )
    if not 0 < fields["valid_s"] <= LONGEST_S:
        raise ReceiptError(
            f"is valid for {fields['valid_s']:g} s, not for more than 0 and at most"
            f" {LONGEST_S:g}"
        )
    return fields


def _verified(fields: dict[str, Any], keys: Mapping[str, Ed25519PublicKey]) -> Receipt:
    signature = fields.pop("signature")
    key = keys.get(fields["issuer"])
    if key is None:
        raise ReceiptError(
            f"is by {quoted(fields['issuer'])}, whose key is not known here"
        )
    try:
        key.verify(bytes.fromhex(signature), _signed(fields))
    except (
        InvalidSignature,
        ValueError,
    ):  # ValueError: no hexadecimal digits, or half a character
        raise ReceiptError(f"is not signed by {quoted(fields['issuer'])}") from None
    fields["gpu_class"] = fields.pop("class")
    return Receipt(**fields)


def _signed(fields: Mapping[str, Any]) -> bytes:
    """The signed bytes. Times are floats, so that 5 and 5.0 are the same receipt."""
    known = {**fields, **{name: float(fields[name]) for name in _TIMES}}
    return (
        _CONTEXT
        + json.dumps(
            known, sort_keys=True, separators=(",", ":"), ensure_ascii=False
        ).encode()
    )
