"""Watches: executors that the settings have verified again and again.

The server that leads runs them, as a program of its own (`gpuyard verify watch` without
names).
"""

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpuyard.config.verification import WatchSettings
from gpuyard.domain.errors import GpuyardError, InvalidInputError
from gpuyard.verification.claims import Claim, claims_of
from gpuyard.verification.clock import cancelled, steady_now
from gpuyard.verification.context import call
from gpuyard.verification.executors import Executor, executor_named
from gpuyard.verification.pipelines.dispatcher import Dispatcher
from gpuyard.verification.session import Session
from gpuyard.verification.verify import (
    Say,
    VerificationReport,
    complain,
    verify_outlasting,
)


@dataclass(frozen=True, slots=True)
class Watch:
    """Executors that are verified together, every `every_s`."""

    name: str
    executors: tuple[Executor, ...]
    every_s: float
    claims: frozenset[Claim]


def watches_of(session: Session) -> list[Watch]:
    """The watches of the settings. Raises InvalidInputError if there are none."""
    settings = session.store.settings
    found = [_watch(session, name, one) for name, one in settings.watches.items()]
    if not found:
        raise InvalidInputError.of(
            "EXECUTOR",
            "names nobody, and the settings have no [verification.watches.NAME]",
            "name executors, or add such a section",
        )
    return found


def _watch(session: Session, name: str, settings: WatchSettings) -> Watch:
    known = session.store.settings.executors
    executors = [executor_named(one, known, None) for one in settings.executors]
    return Watch(
        name, tuple(executors), settings.every, claims_of(list(settings.claims))
    )


async def keep_watches(
    session: Session,
    watches: Sequence[Watch],
    say: Say,
    tell: Callable[[VerificationReport], None],
    *,
    attached: bool,
) -> None:
    """Run all watches until cancelled. Meanwhile the pipelines make samples.

    `attached`: end when standard input ends.
    """
    classes = {executor.gpu_class for one in watches for executor in one.executors}
    tasks = [
        asyncio.create_task(Dispatcher(session.context, sorted(classes)).run()),
        *(asyncio.create_task(_keep(session, one, say, tell)) for one in watches),
    ]
    if attached:
        tasks.append(asyncio.create_task(until_input_ends()))
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await cancelled(*tasks)


async def _keep(
    session: Session,
    watch: Watch,
    say: Say,
    tell: Callable[[VerificationReport], None],
) -> None:
    while True:
        newest = await _newest_checks(session, watch)
        await asyncio.sleep(due_in_s(watch, newest, steady_now()))
        try:
            tell(
                await verify_outlasting(
                    session, watch.executors, claims=watch.claims, say=say
                )
            )
        except GpuyardError as error:  # the next time it may succeed
            complain(f"watch {watch.name}: {error}")
            await asyncio.sleep(watch.every_s)


async def _newest_checks(session: Session, watch: Watch) -> dict[str, float]:
    """When each executor was verified last; those that never were are left out."""
    found: dict[str, float] = {}
    for executor in watch.executors:
        checks = await call(session.context.records.checks_by, executor.name, 1)
        if checks:
            found[executor.name] = float(checks[0]["created_at"])
    return found


def due_in_s(watch: Watch, newest: Mapping[str, float], now: float) -> float:
    """Seconds until the watch is due; 0 if one of its executors never was verified.

    It counts from the oldest of their newest checks, so a server that starts again does
    not verify everybody again.
    """
    moments = [newest.get(executor.name) for executor in watch.executors]
    if None in moments:
        return 0.0
    oldest = min(moment for moment in moments if moment is not None)
    return min(max(0.0, oldest + watch.every_s - now), watch.every_s)


async def until_input_ends() -> None:
    """Wait until standard input ends, as it does when the server ends that holds it."""
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    source = sys.stdin.fileno()

    def read() -> None:
        if not os.read(source, 4096):
            ended.set()

    loop.add_reader(source, read)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(source)
