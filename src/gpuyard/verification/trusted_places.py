"""GPUs of trusted executors that are kept free while other jobs keep them from judging.

Who fills such a GPU with jobs would keep everybody else unjudged for ever.
"""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpuyard.client import calls
from gpuyard.domain.errors import GpuyardError
from gpuyard.domain.trust import Trust
from gpuyard.verification.classes import Class
from gpuyard.verification.context import call
from gpuyard.verification.records import Records
from gpuyard.verification.trusted_changes import SILENCES_TOLD
from gpuyard.verification.trusted_executor import JobTrustedExecutor

if TYPE_CHECKING:
    from gpuyard.client.aio import AsyncClient

KEPT_S = 86400.0
"""For how long at a time; it ends when the trusted executor answers."""


async def keep_trusted_free(
    client: "AsyncClient",
    records: Records,
    judges: Sequence[tuple[Class, JobTrustedExecutor]],
) -> list[str]:
    """Keep new jobs off the GPUs of trusted executors that other jobs have kept from
    answering SILENCES_TOLD times in a row, and let go of those that answer.

    `judges`: by class, who judges it. Returns what failed, in words. One without a GPU
    by name is left alone: its place may be all nodes of the instance.
    """
    keeps: dict[str, bool] = {}
    names: dict[str, str] = {}
    for cls, judge in judges:
        if place := judge.gpu_place:
            silence = await call(records.trusted_silence, cls)
            busy = bool(silence and silence.busy and silence.times >= SILENCES_TOLD)
            keeps[place] = keeps.get(place, False) or busy
            names[place] = judge.name
    if not keeps:
        return []
    try:
        known = {one.place: one for one in await client.call(calls.trust())}
        for place, busy in keeps.items():
            await _record(client, place, names[place], known, busy=busy)
    except GpuyardError as error:
        return [f"The instance keeps no GPU free for trusted executors: {error}"]
    return []


async def _record(
    client: "AsyncClient",
    place: str,
    name: str,
    known: Mapping[str, Trust],
    *,
    busy: bool,
) -> None:
    before = known.get(place) or Trust(place=place, updated_at=0.0)
    finding = finding_of(before, name, time.time(), busy=busy)
    if finding is not None:
        await client.call(calls.record_trust(place, finding))


def finding_of(
    before: Trust, name: str, now: float, *, busy: bool
) -> dict[str, Any] | None:
    """What to record about the GPU of a trusted executor instead of `before`; None to
    leave that.

    A quarantine that anybody else began stays as it is.
    """
    reason = f"kept free for the trusted executor {name}"
    is_ours = before.reason == reason
    is_barred = before.quarantined_until is not None and before.quarantined_until > now
    if busy and (is_ours or not is_barred):
        return {
            "score": before.score,
            "quarantined_until": now + KEPT_S,
            "reason": reason,
        }
    if is_ours and is_barred and not busy:
        reason = f"the trusted executor {name} answers again"
        return {"score": before.score, "quarantined_until": None, "reason": reason}
    return None
