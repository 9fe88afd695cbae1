"""What follows a batch's verdicts: evidence of them, and the yard's hearing of them, even from a batch whose process
died over it."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gpuyard.domain.errors import InvalidInputError
from gpuyard.verification import evidence
from gpuyard.verification.check import Check
from gpuyard.verification.context import Busy, Context, LeaseLost, call, leased
from gpuyard.verification.executors import place_of
from gpuyard.verification.standing import Result, stands, tell_yard
from gpuyard.verification.trust import Outcome

if TYPE_CHECKING:
    from gpuyard.client.aio import AsyncClient
    from gpuyard.verification.session import Store

_DIED = "fault: not the executor's: the process that verified it died"


class Ending:
    """Ends batches. `faults`: in words, what evidence could not be kept, and what the yard could not be told."""

    def __init__(self, client: "AsyncClient", store: "Store", context: Context) -> None:
        self.faults: list[str] = []
        self._client, self._store, self._context = client, store, context

    async def keep(self, checks: Sequence[Check]) -> None:
        """Keep evidence of each, before it counts: no verdict that counts is without."""
        self.faults += await asyncio.to_thread(keep_evidence, self._store.evidence, self._store.key(), checks)

    async def tell(self, checks: Sequence[Check]) -> bool:
        """Tell the yard; whether it has heard all of it."""
        return await self._tell([Result(check.executor.name, check.executor.place, check.outcome, check.reason)
                                 for check in checks])  # fmt: skip

    async def settle(self) -> None:
        """End the batches of processes that died in them. Checks that count are told, as their process would have done;
        the others count for nobody."""
        for batch in await call(self._context.records.open_batches):
            with suppress(Busy, LeaseLost):  # it lives, or another has taken this over
                await leased(self._context, lock_of(batch["holder"]), partial(self._settle, batch["id"]))

    async def _settle(self, batch_id: str) -> None:
        records = self._context.records
        rows = await call(records.checks_of, batch_id)
        if rows and all(row["scored"] for row in rows):
            if await self._tell([self._result(row) for row in rows]):
                await call(records.end_batch, batch_id, "done")
            return
        await call(records.close_checks, [_abandoned(row) for row in rows], stands)
        await call(records.end_batch, batch_id, "abandoned")
        for row in rows:  # its verdict does not count
            with suppress(OSError):  # there is none, or nothing can be done there
                await asyncio.to_thread((self._store.evidence / f"{row['id']}.json").unlink)

    async def _tell(self, results: Sequence[Result]) -> bool:
        known = await call(self._context.records.executors)
        faults = await tell_yard(self._client, results, known, self._places())
        self.faults += faults
        return not faults

    def _result(self, row: Mapping[str, Any]) -> Result:
        name: str = row["executor"]  # who is in no settings was named by its place
        return Result(name, self._places().get(name) or name, Outcome(row["outcome"]), row["reason"] or "")

    def _places(self) -> dict[str, str]:
        return {name: place_of(settings) for name, settings in self._store.settings.executors.items()}


def lock_of(holder: str) -> str:
    """The lock that whoever runs a batch holds all the while."""
    return f"batch of {holder}"


def _abandoned(row: Mapping[str, Any]) -> dict[str, Any]:
    left = {name: value for name, value in row.items() if name != "scored"}
    return {**left, "state": "over", "outcome": Outcome.BLAMELESS.value, "reason": _DIED}


def keep_evidence(folder: Path, key: Ed25519PrivateKey, checks: Sequence[Check]) -> list[str]:
    """Write a signed file for each check; in words, why some could not be. Their verdicts stand all the same."""
    lost = list[str]()
    for check in checks:
        try:
            folder.mkdir(exist_ok=True, mode=0o700)
            evidence.write(folder / f"{check.id}.json", check.evidence(), key)
        except (OSError, InvalidInputError) as error:
            lost.append(f"The evidence of {check.id} is not kept: {error}")
    return lost


def forget_evidence(folder: Path, before: float) -> None:
    """Remove what was written before then (UTC seconds)."""
    for path in folder.glob("*.json"):
        with suppress(FileNotFoundError):  # another server was first
            if path.stat().st_mtime < before:
                path.unlink()
