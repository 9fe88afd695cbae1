"""The product, broken on purpose in one place: a simulation that cannot find these
proves nothing.
"""

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace

from gpuyard.controller import launching
from gpuyard.controller.admission import Admission
from gpuyard.controller.attempt_outcome import AttemptOutcome, final_state
from gpuyard.controller.core import Core
from gpuyard.controller.gangs import Gangs
from gpuyard.controller.launching import Launching
from gpuyard.controller.reports import Reports
from gpuyard.domain import wire
from gpuyard.ledger.writer import Writer
from gpuyard.providers.link import Link
from gpuyard.scheduler.nodes import Node
from gpuyard.scheduler.view import View
from tests.simulation.run import run

Change = Callable[[Any], Any]


def _unwritten(caller: str) -> tuple[type, str, Change]:
    """The function `caller` goes on without waiting for its commit."""

    def change(original: Any) -> Any:
        def committed(self: Core, **more: Any) -> asyncio.Future[None]:
            future = original(self, **more)
            if sys._getframe(1).f_code.co_name != caller:
                return future
            future.add_done_callback(lambda done: done.cancelled() or done.exception())
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            done.set_result(None)
            return done

        return committed

    return Core, "committed", change


def _old_ends_count(original: Any) -> Any:
    """What is said of an attempt that is over is taken for the one that came after
    it.
    """

    def apply_report(self: Any, node_id: str, body: Any) -> Any:
        view = self._core.view
        queries = self._core.queries
        if isinstance(body, wire.Ended) and body.attempt_id not in view.attempts:
            for attempt in list(view.attempts.values()):
                if any(
                    row["id"] == body.attempt_id
                    for row in queries.attempts_of([attempt.job_id])[attempt.job_id]
                ):
                    return original(self, node_id, replace(body, attempt_id=attempt.id))
        return original(self, node_id, body)

    return apply_report


def _first_end_counts(_: Any) -> Any:
    def note_end(_: Gangs, attempt: Any, _rank: int, end: wire.Ended) -> wire.Ended:
        return replace(end, attempt_id=attempt.id)

    return note_end


def _silence_is_death(original: Any) -> Any:
    async def node_left(self: Any, node_id: str) -> None:
        await original(self, node_id)
        core = self._core
        for attempt in core.view.attempts_on(node_id):
            self._launching.record_end(
                attempt,
                AttemptOutcome(core.clock(), reason="node_silent", lost=True),
            )

    return node_left


def _frees_another(original: Any) -> Any:
    def unbook(self: Node, holder: str) -> None:
        if holder in self.bookings and len(self.bookings) > 1:
            original(self, next(other for other in self.bookings if other != holder))
        original(self, holder)

    return unbook


def _acknowledges_too_much(original: Any) -> Any:
    def send(self: Link, message: Any) -> None:
        original(
            self,
            (
                replace(message, seq=message.seq + 2)
                if isinstance(message, wire.Acknowledge)
                else message
            ),
        )

    return send


def _parents_never_fail(original: Any) -> Any:
    def enqueue(self: View, job: Any) -> None:
        job.waits_for = tuple(
            parent for parent in job.waits_for if parent not in self.ended
        )
        original(self, job)

    return enqueue


def _ignores_unsent(original: Any) -> Any:
    async def launch(self: Launching, attempt_ids: Any) -> None:
        if sys._getframe(1).f_code.co_name != "reconcile":
            await original(self, attempt_ids)

    return launch


def _no_keys_known(_original: Any) -> Any:
    return lambda _self, _jobs: {}


def _always_granted(_original: Any) -> Any:
    return lambda job, outcome: final_state(job, outcome)[0] == "failed"


def _writes_anyway(original: Any) -> Any:
    """A group that failed is written with the next one."""

    async def fail(self: Any, group: Any, error: Any) -> None:
        batches = list(group.batches)
        await original(self, group, error)
        self._group.batches.extend(batches)

    return fail


def _waits_by_the_wall(original: Any) -> Any:
    return lambda self, now, longest_s=0.0: original(self, now)


MUTANTS: Mapping[str, tuple[Any, str, Change]] = {
    "a submission is acknowledged before its commit": _unwritten("_accept"),
    "an intent is carried out before its commit": _unwritten("launch"),
    "reports are acknowledged before their commit": _unwritten("reported"),
    "a cancel is acknowledged before its commit": _unwritten("cancel"),
    "an old attempt's end counts for the new one": (
        Reports,
        "_apply_report",
        _old_ends_count,
    ),
    "a silent node's jobs are started elsewhere at once": (
        Reports,
        "node_left",
        _silence_is_death,
    ),
    "the end of one share is that of all": (Gangs, "note_end", _first_end_counts),
    "an end frees what another holds": (Node, "unbook", _frees_another),
    "more is acknowledged than was heard": (Link, "send", _acknowledges_too_much),
    "a child runs though its parent failed": (View, "enqueue", _parents_never_fail),
    "a start that was lost is not sent again": (Launching, "launch", _ignores_unsent),
    "idempotency keys are not looked up": (Admission, "_earlier_jobs", _no_keys_known),
    "memory is not read anew after a failed commit": (
        Core,
        "reload",
        lambda f: _once(f),
    ),
    "retries are granted without end": (launching, "wants_retry", _always_granted),
    "what failed to be written is written later": (Writer, "_fail", _writes_anyway),
    "a clock set back keeps retries waiting": (
        View,
        "release_delayed",
        _waits_by_the_wall,
    ),
}


# The seed that showed the mutant when this was written: it is tried first, which saves
# the many that do not. All others are shown by one of the first two seeds.
SHOWN_BY: Mapping[str, int] = {
    "reports are acknowledged before their commit": 5,
    "a cancel is acknowledged before its commit": 3,
    "an intent is carried out before its commit": 5,
    "an old attempt's end counts for the new one": 114,
    "the end of one share is that of all": 52,
    "a start that was lost is not sent again": 3,
    "memory is not read anew after a failed commit": 4,
    "a clock set back keeps retries waiting": 34,
    "what failed to be written is written later": 5,
}


def _once(original: Any) -> Any:
    def reload(self: Core) -> None:
        if not self.view.jobs and not self.view.nodes:
            original(self)

    return reload


@contextmanager
def broken(name: str) -> Iterator[None]:
    """The product with one of its parts broken."""
    owner, attribute, change = MUTANTS[name]
    original = getattr(owner, attribute)
    setattr(owner, attribute, change(original))
    try:
        yield
    finally:
        setattr(owner, attribute, original)


def caught(name: str, first: int, last: int) -> tuple[str, int | None, str]:
    """A seed that shows a mutant, and what it says; None when none does."""
    known = [SHOWN_BY[name]] if name in SHOWN_BY else []
    with broken(name):
        for seed in [*known, *range(first, last)]:
            faults = run(seed).faults
            if faults:
                return name, seed, faults[0]
    return name, None, "not found"
