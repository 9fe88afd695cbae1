"""A verification batch: executors of any classes solve their series at once, behind one barrier.

Breadth-first, so that a class that lacks samples is left out alone. Verdicts are written down together at the end: a
batch whose process dies is abandoned as a whole and counts for nobody.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import structlog

from gpuyard.domain.errors import GpuyardError
from gpuyard.verification.answers import AnswersError, Parcel, most_bytes
from gpuyard.verification.asking import ask_again, ask_for_digest
from gpuyard.verification.channel import GoneError, NotStartedError, Opens, Order
from gpuyard.verification.channels import AFTER_S
from gpuyard.verification.check import Check
from gpuyard.verification.claims import Expected, shared_uuids
from gpuyard.verification.classes import TRAITS, Class
from gpuyard.verification.context import Context, call
from gpuyard.verification.database import DatabaseError
from gpuyard.verification.evidence import LONGEST_ANSWERS
from gpuyard.verification.executors import Executor
from gpuyard.verification.protocol import Answers, Claims, Declined, Failed, Hash, Message, ProtocolError, Ready
from gpuyard.verification.standing import stands
from gpuyard.verification.taking import Taken, take_for_all
from gpuyard.verification.times import now

log = structlog.get_logger(__name__)

SETTINGS: Mapping[str, Any] = {"temperature": 0.5, "top_p": 0.8, "max_tokens": 256}
"""How every solver samples (S0-41)."""
# Answers that come after the deadline are kept; after so many times the deadline nobody waits any more.
_LATE_FACTOR = 2
# What a solver without a stream writes comes in pieces, as an engine hands on its jobs' output.
_IN_PIECES_S = 5.0
# So many answer files are read at a time, once they have begun to come; the others wait in their senders. A file that
# is on its way takes no longer.
_READING, _FILE_S = 32, 60.0


@dataclass(frozen=True, slots=True)
class Terms:
    """What a class is held to: `deadline_s` from the seed to the answers' hash, and `expected` of its GPU."""

    deadline_s: float
    expected: Expected


@dataclass(frozen=True, slots=True)
class Ports:
    """What a batch works with: `terms` by class; `excuse`, which leaves in a declined check the receipts that count;
    the `folder` for answer files, which belongs to whoever runs the batch.

    `keep` is given the checks when all are judged, before they count; `tell` when they do, and says whether that was
    passed on. Until it was the batch is not over, so that one whose process dies is told of by another.
    """

    context: Context
    opens: Opens
    holder: str
    terms: Mapping[Class, Terms]
    excuse: Callable[[Check], Awaitable[None]]
    folder: Path
    keep: Callable[[Sequence[Check]], Awaitable[None]]
    tell: Callable[[Sequence[Check]], Awaitable[bool]]


class Batch:
    """One batch, run once."""

    def __init__(self, ports: Ports) -> None:
        self._ports, self._context = ports, ports.context
        self._reading = asyncio.Semaphore(_READING)
        self.id = ""

    @property
    def holder(self) -> str:
        """The process, or part of one, whose batch it is."""
        return self._ports.holder

    async def run(self, executors: Sequence[Executor]) -> list[Check]:
        """Verify each executor once; its checks, judged. Who is of a class without samples has none."""
        records = self._context.records
        self.id = await call(records.new_batch, self._ports.holder)
        checks = list[Check]()
        try:
            checks = await self._take(executors)
            await call(records.add_checks, [check.row() for check in checks])
            await _all(self._prepare, checks)
            await call(records.release_batch, self.id)
            await _all(self._solve, checks)
            await self._judge(checks)
            await self._ports.keep(checks)
        except BaseException:
            with suppress(DatabaseError):  # the next batch ends it, as it does when a process has died
                await asyncio.shield(self._finish(checks, "abandoned"))
            raise
        await asyncio.shield(self._finish(checks, "done"))
        return checks

    async def _finish(self, checks: Sequence[Check], outcome: str) -> None:
        if outcome != "done":
            for check in checks:
                check.fault = "the verification was interrupted"
                check.judge()
        try:
            await call(self._context.records.close_checks, [check.row() for check in checks], stands)
            if outcome != "done" or await self._ports.tell(checks):
                await call(self._context.records.end_batch, self.id, outcome)
        finally:
            await asyncio.gather(*(check.channel.close() for check in checks if check.channel))

    async def _take(self, executors: Sequence[Executor]) -> list[Check]:
        """A sample for each executor."""
        groups = {cls: list(group) for cls, group in groupby(sorted(executors, key=_class), key=_class)}
        taken = await take_for_all(self._context, {cls: len(group) for cls, group in groups.items()}, self.id)
        return [
            self._check(one, executor)
            for cls, group in groups.items()
            for one, executor in zip(taken[cls], group, strict=False)
        ]

    def _check(self, taken: Taken, executor: Executor) -> Check:
        terms, traits = self._ports.terms[executor.gpu_class], TRAITS[executor.gpu_class]
        trusted = self._context.trusted(executor.gpu_class)
        expected, extra_s = terms.expected, 0.0
        if executor.delivery == "stdin":
            # A solver that starts with its seed uses it from the first moment on, so all of its time counts.
            extra_s = traits.prepare_s
            if expected.claims_s:
                expected = replace(expected, claims_s=expected.claims_s + _IN_PIECES_S)
        order = {
            "version": 1, "check": taken.check_id, "task": "solve", "settings": dict(SETTINGS),
            "engine": executor.engine, "seed": None, "claims": _asked(terms.expected),
        }  # fmt: skip
        name = trusted.name if trusted else ""
        return Check(taken, self.id, executor, name, terms.deadline_s + extra_s, order, expected)

    # --- before the barrier ---

    async def _prepare(self, check: Check) -> None:
        order: Order = {**check.order, "prompts": list(check.taken.series)}
        check.channel = self._ports.opens.open(check.executor, check.id, order)
        with _explained(check):
            first = await check.channel.ready()
            check.job_id = check.channel.job_id
            if isinstance(first, Ready):
                check.ready_at = now()
            elif first is not None:
                await self._refused(check, first)

    async def _refused(self, check: Check, message: Message) -> None:
        if isinstance(message, Declined):
            # By the clock of the day, as receipts are dated by others: `now` stands still while a machine sleeps.
            check.declined_at, check.receipts = time.time(), tuple(message.receipts)
            check.silence = f"it declined: {message.reason}"
            await self._ports.excuse(check)
        else:
            check.silence = f"its solver failed: {message.reason}" if isinstance(message, Failed) else message.type

    # --- the barrier, and after it ---

    async def _solve(self, check: Check) -> None:
        """Reveal the seed, and hear what comes of it; nobody waits for those whose jobs begin only now."""
        assert check.channel is not None
        with _explained(check):
            check.released_at = await check.channel.reveal(check.taken.seed)
            check.job_id = check.channel.job_id
            async with asyncio.timeout(_LATE_FACTOR * check.deadline_s):
                hashed = await self._hash(check)
            if hashed:
                async with asyncio.timeout(AFTER_S):
                    first = await self._claims(check)
                if first:
                    async with self._reading, asyncio.timeout(_FILE_S):
                        await self._answers(check, first)

    async def _hash(self, check: Check) -> bool:
        assert check.channel is not None
        message = await check.channel.receive()
        if isinstance(message, Ready):  # who has no stream says it only now
            check.ready_at = now()
            message = await check.channel.receive()
        if not isinstance(message, Hash):
            await self._refused(check, message)
            return False
        check.hashed_at, check.sha256 = now(), message.sha256
        return True

    async def _claims(self, check: Check) -> Answers | None:
        """Keep the claims that were asked for; the first piece of the answers, or None when it refuses."""
        assert check.channel is not None
        message = await check.channel.receive()
        if isinstance(message, Claims):
            if asked := check.expected.asked:
                check.claims, check.claimed_at = message.model_dump(include=asked), now()
            message = await check.channel.receive()
        if isinstance(message, Answers):
            return message
        await self._refused(check, message)
        return None

    async def _answers(self, check: Check, first: Answers) -> None:
        """Take in the file that begins so, and judge it while it is at hand."""
        assert check.channel is not None
        parcel = Parcel(min(most_bytes(check.taken.series, SETTINGS["max_tokens"]), LONGEST_ANSWERS))
        try:
            parcel.add(first)
            while not parcel.complete:
                message = await check.channel.receive()
                if not isinstance(message, Answers):
                    return await self._refused(check, message)
                parcel.add(message)
            check.answered_at = now()
            await call(self._keep, check, parcel.read())
        finally:
            parcel.close()

    def _keep(self, check: Check, answers: bytes) -> None:
        """Put aside what came, since all files of a batch would be too much for memory, and judge it."""
        check.answers = self._ports.folder / check.id
        check.answers.write_bytes(answers)
        check.judge()

    # --- at the end ---

    async def _judge(self, checks: Sequence[Check]) -> None:
        """Hold what solvers said of their GPUs against one another, and ask again where an answer differs."""
        await ask_for_digest(self._context, checks)
        shared = shared_uuids({check.executor.name: check.claims for check in checks if check.claims})
        for check in checks:
            if others := shared.get(check.executor.name):
                check.expected = replace(check.expected, shared=others)
            if others or not check.lines:
                await call(check.judge)
        suspects = [check for check in checks if check.suspect]
        await ask_again(self._context, suspects)
        for check in suspects:
            await call(check.judge)


@contextmanager
def _explained(check: Check) -> Generator[None]:
    """What goes wrong in this block is written into the check."""
    try:
        yield
    except NotStartedError as error:
        check.fault = str(error)
    except (ProtocolError, AnswersError) as error:
        if check.sha256:
            check.unread = str(error)
        else:
            check.silence = str(error)
    except GoneError as error:
        check.silence = check.unread = str(error)
    except TimeoutError:
        check.silence = "its solver did not get ready in time" if check.ready_at is None else "nothing came in time"
        check.unread = "the file did not follow its hash"
    except (GpuyardError, OSError) as error:
        check.fault = f"it could not be asked: {error}"
    except Exception as error:  # whatever it is, it must not be everybody's
        log.exception("verification_check_failed", check=check.id)
        check.fault = f"a fault of ours: {type(error).__name__}: {error}"


async def _all(step: Callable[[Check], Awaitable[None]], checks: Iterable[Check]) -> None:
    """A step of every check of which something is still to be heard, at once."""

    async def one(check: Check) -> None:
        await step(check)
        if check.channel and not check.under_way:
            await check.channel.close()  # its GPU may be what another one waits for

    await asyncio.gather(*(one(check) for check in checks if check.under_way))


def _class(executor: Executor) -> Class:
    return executor.gpu_class


def _asked(expected: Expected) -> dict[str, Any]:
    if not expected.asked:
        return {}
    return {"inventory": expected.inventory, "vram_gb": expected.vram_gb,
            "speed": expected.speed}  # fmt: skip
