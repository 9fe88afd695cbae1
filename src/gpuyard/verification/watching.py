"""Verifying again and again: what a watch does when the database or the server is away for a while."""

import asyncio
import sys
import time
from collections.abc import Callable, Sequence

from gpuyard.client.connection import find_server
from gpuyard.domain.errors import GpuyardError, UnreachableError
from gpuyard.verification.claims import Claim
from gpuyard.verification.database import DatabaseError
from gpuyard.verification.dispatcher import Dispatcher
from gpuyard.verification.executors import Executor
from gpuyard.verification.running import BatchLostError, Report, Say, check_places, verify
from gpuyard.verification.session import Session

_AWAY = (DatabaseError, UnreachableError, BatchLostError)
_PAUSES_S = (1.0, 60.0)


async def watch(
    session: Session, executors: Sequence[Executor], every_s: float, *, claims: frozenset[Claim], say: Say,
    tell: Callable[[Report], None],
) -> None:  # fmt: skip
    """Verify all of them every `every_s` until cancelled, while the pipelines of their classes make samples."""
    await check_places(session, executors)
    classes = sorted({executor.gpu_class for executor in executors})
    pipelines = asyncio.create_task(Dispatcher(session.context, classes).run())
    try:
        while True:
            began = time.monotonic()
            try:
                tell(await _outlasting(session, executors, claims=claims, say=say))
            except GpuyardError as error:  # the next time may be better
                _complain(f"{error}")
            await asyncio.sleep(max(0.0, began + every_s - time.monotonic()))
    finally:
        pipelines.cancel()
        await asyncio.gather(pipelines, return_exceptions=True)


async def _outlasting(session: Session, executors: Sequence[Executor], *, claims: frozenset[Claim], say: Say) -> Report:
    """What comes of a batch, however long the database or the server is away; each is told once."""
    told, (pause, longest) = set[str](), _PAUSES_S
    while True:
        try:
            await asyncio.to_thread(find_server)  # the embedded one leaves when it has nothing to do
            report = await verify(session, executors, claims=claims, say=say)
        except _AWAY as error:
            if error.code not in told:
                _complain(f"{error} It is tried again until it works.")
            told.add(error.code)
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)
        else:
            if told:
                _complain("it works again")
            return report


def _complain(words: str) -> None:
    """Troubles are no part of what was asked for."""
    sys.stderr.write(f"gpuyard: {words}\n")
