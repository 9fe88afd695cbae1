"""Excuses: an executor that declines is excused by receipts for other work, each of which excuses once, ever."""

from collections.abc import Mapping

from gpuyard.verification import keys, receipts
from gpuyard.verification.check import Check
from gpuyard.verification.context import call
from gpuyard.verification.records import Records

YARD = "yard"
"""The name under which our own receipts are issued."""


async def excuse(records: Records, issuers: Mapping[str, str], check: Check) -> None:
    """Leave in the check only receipts that excuse it; `issuers` are the public keys that count, by name."""
    known = {name: keys.read_public(text, f"verification.issuers.{name}") for name, text in issuers.items()}
    try:
        found = receipts.excuse(
            check.receipts, known, check.executor.name, check.declined_at or 0.0, (),
            gpu_class=check.executor.gpu_class.value,
        )  # fmt: skip
        for receipt in found:
            if not await call(records.use_receipt, f"{receipt.issuer} {receipt.id}"):
                raise receipts.ReceiptError("has excused before")
    except receipts.ReceiptError as error:
        check.silence, check.receipts = f"{check.silence}; a receipt {error}", ()
    else:
        check.issuers = {name: keys.public_hex(known[name]) for name in {receipt.issuer for receipt in found}}
