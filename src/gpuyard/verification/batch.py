"""A verification batch: executors solve their series at once, behind one start barrier.

All classes take part together; a class without samples is left out alone. The verdicts
are stored together at the end, so a batch whose process dies counts for no executor.
"""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from gpuyard.verification import fingerprints
from gpuyard.verification.answers import IncomingFile, most_bytes
from gpuyard.verification.attested_chips import earlier_chips, shared_chips
from gpuyard.verification.batch_samples import BatchSample, take_samples_by_class
from gpuyard.verification.blame import explained
from gpuyard.verification.channels import AFTER_S, ChannelOpener
from gpuyard.verification.check import Check
from gpuyard.verification.claims import Expected, shared_uuids
from gpuyard.verification.classes import TRAITS, Class
from gpuyard.verification.clock import steady_now
from gpuyard.verification.context import Context, call
from gpuyard.verification.database import DatabaseError
from gpuyard.verification.evidence import longest_answers
from gpuyard.verification.executors import Executor
from gpuyard.verification.protocol import (
    SAMPLING,
    AnswersPiece,
    Claims,
    Declined,
    Failed,
    FingerprintsPiece,
    Hash,
    Message,
    OrderDocument,
    Ready,
)
from gpuyard.verification.recheck import (
    ask_again,
    ask_every_prompt,
    ask_for_digests,
    ask_for_engines,
)
from gpuyard.verification.solver.order import VERSION
from gpuyard.verification.tolerance import Limits
from gpuyard.verification.tolerant_check import follow_tokens, note_runtimes
from gpuyard.verification.trust import record_after
from gpuyard.verification.verdict import IN_PIECES_S

# Answers after the deadline are kept as well, but only up to this many times the
# deadline is waited for.
_LATE_FACTOR = 2
# How many answer files are received at a time; the other solvers wait.
_READING = 32
FILE_S = 60.0
"""How long one answer file may take."""
_SALT_BYTES = 16


@dataclass(frozen=True, slots=True)
class ClassTerms:
    """What a class is held to.

    `deadline_s`: the time from the seed to the answers' hash. `expected`: what is
    expected of its GPU. `prepare_s`: the time from the start of a job until its solver
    is ready, None to take that of the class's traits. `limits`: how much fingerprints
    may differ, None where answers are only compared exactly. `accepts_unknown_draws`:
    also where the trusted engine cannot tell which tokens a seed gives.
    """

    deadline_s: float
    expected: Expected
    prepare_s: float | None = None
    limits: Limits | None = None
    accepts_unknown_draws: bool = False


@dataclass(frozen=True, slots=True)
class BatchSetup:
    """What a batch works with.

    `excuse` keeps in a declined check only the receipts that are valid. `folder` holds
    the answer files and belongs to the process that runs the batch. `keep` is called
    with the judged checks before they count, `tell` after they count; `tell` returns
    whether the instance accepted all of them. Until then the batch stays open, so that
    another process reports it when this one dies. `every_prompt`: the trusted executor
    answers all prompts of each check afterwards, and all are compared. `places` tells
    the place of an executor by its name.
    """

    context: Context
    opens: ChannelOpener
    holder: str
    terms: Mapping[Class, ClassTerms]
    excuse: Callable[[Check], Awaitable[None]]
    folder: Path
    keep: Callable[[Sequence[Check]], Awaitable[None]]
    tell: Callable[[Sequence[Check]], Awaitable[bool]]
    every_prompt: bool = False
    places: Callable[[str], str] = str


class VerificationBatch:
    """One batch, which is run once."""

    def __init__(self, ports: BatchSetup) -> None:
        self._ports = ports
        self._context = ports.context
        self._reading = asyncio.Semaphore(_READING)
        self.id = ""

    @property
    def holder(self) -> str:
        """The process, or the part of one, that runs the batch."""
        return self._ports.holder

    async def run(self, executors: Sequence[Executor]) -> list[Check]:
        """Verify each executor once; returns the judged checks.

        An executor whose class is short of samples has no check.
        """
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
            with suppress(DatabaseError):  # the next batch closes it, as after a crash
                await asyncio.shield(self._finish(checks, "abandoned"))
            raise
        await asyncio.shield(self._finish(checks, "done"))
        return checks

    async def _finish(self, checks: Sequence[Check], outcome: str) -> None:
        if outcome != "done":
            for check in checks:
                check.fault = "the verification was interrupted"
                check.claims = None  # nothing of it counts
                check.judge()
        try:
            await call(
                self._context.records.close_checks,
                [check.row() for check in checks],
                record_after,
            )
            if outcome != "done" or await self._ports.tell(checks):
                await call(self._context.records.end_batch, self.id, outcome)
        finally:
            await asyncio.gather(
                *(check.channel.close() for check in checks if check.channel)
            )

    async def _take(self, executors: Sequence[Executor]) -> list[Check]:
        """Take a sample for each executor and make its check."""
        groups = {
            cls: list(group)
            for cls, group in groupby(sorted(executors, key=_class), key=_class)
        }
        taken = await take_samples_by_class(
            self._context, {cls: len(group) for cls, group in groups.items()}, self.id
        )
        return [
            self._check(one, executor)
            for cls, group in groups.items()
            for one, executor in zip(taken[cls], group, strict=False)
        ]

    def _check(self, taken: BatchSample, executor: Executor) -> Check:
        terms = self._ports.terms[executor.gpu_class]
        traits = TRAITS[executor.gpu_class]
        trusted = self._context.trusted(executor.gpu_class)
        settings = executor.settings
        expected = replace(
            terms.expected,
            form=settings.form,
            attested=settings.attested,
        )
        deadline_s = terms.deadline_s
        solve_limit_s = None
        if executor.delivery == "stdin":
            # The solver has the seed from its start, so loading the model counts too.
            deadline_s += terms.prepare_s or traits.prepare_s
            solve_limit_s = terms.deadline_s
            if expected.claims_s:
                expected = replace(expected, claims_s=expected.claims_s + IN_PIECES_S)
        order: OrderDocument = {
            "version": VERSION,
            "check": taken.check_id,
            "task": "solve",
            "settings": dict(SAMPLING),
            "engine": executor.engine,
            "seed": None,
            "claims": _asked(terms.expected),
            "fingerprints": terms.limits is not None,
        }
        name = trusted.name if trusted else ""
        return Check(
            taken,
            self.id,
            executor,
            name,
            deadline_s,
            order,
            expected,
            solve_limit_s=solve_limit_s,
            limits=terms.limits,
            accepts_unknown_draws=terms.accepts_unknown_draws,
            trusted_class=trusted.gpu_class.value if trusted else None,
        )

    # --- before the barrier ---

    async def _prepare(self, check: Check) -> None:
        order: OrderDocument = {**check.order, "prompts": list(check.taken.series)}
        check.channel = self._ports.opens.open(check.executor, check.id, order)
        with explained(check):
            first = await check.channel.ready()
            check.job_id = check.channel.job_id
            if isinstance(first, Ready):
                _note_ready(check, first)
            elif first is not None:
                await self._refused(check, first)

    async def _refused(self, check: Check, message: Message) -> None:
        if isinstance(message, Declined):
            # By the system's clock, because others date the receipts. `steady_now`
            # stands still while the machine sleeps.
            check.declined_at = time.time()
            check.receipts = tuple(message.receipts)
            check.silence = f"it declined: {message.reason}"
            await self._ports.excuse(check)
        else:
            check.silence = (
                f"its solver failed: {message.reason}"
                if isinstance(message, Failed)
                else message.type
            )

    # --- the barrier, and after it ---

    async def _solve(self, check: Check) -> None:
        """Reveal the seed and receive the results.

        Jobs that start only now are not waited for by the others.
        """
        assert check.channel is not None
        with explained(check):
            check.released_at = await check.channel.reveal(check.taken.seed)
            check.job_id = check.channel.job_id
            async with asyncio.timeout(_LATE_FACTOR * check.deadline_s):
                hashed = await self._hash(check)
            if hashed:
                async with asyncio.timeout(AFTER_S):
                    first = await self._claims(check)
                if first:
                    async with self._reading, asyncio.timeout(FILE_S):
                        await self._answers(check, first)

    async def _hash(self, check: Check) -> bool:
        assert check.channel is not None
        message = await check.channel.receive()
        if isinstance(message, Ready):  # without a stream it is sent only now
            _note_ready(check, message)
            message = await check.channel.receive()
        if not isinstance(message, Hash):
            await self._refused(check, message)
            return False
        check.hashed_at = check.channel.heard_at
        check.sha256 = message.sha256
        # Where none were asked for, the nonce of the claims does not depend on them.
        check.prints_sha256 = message.fingerprints if check.limits else None
        check.said_s = message.solve_s
        if check.expected.asked:
            await self._salt(check)
        return True

    async def _salt(self, check: Check) -> None:
        """Tell the solver what it needs for its claims, and could not know before."""
        assert check.channel is not None
        salt = secrets.token_hex(_SALT_BYTES)
        if await check.channel.send_salt(salt):
            check.salt = salt
            check.salted_at = steady_now()

    async def _claims(self, check: Check) -> AnswersPiece | FingerprintsPiece | None:
        """Receive the claims, if any, and return the first part of the files.

        Only claims that were asked for are kept. Returns None when the solver stopped.
        """
        assert check.channel is not None
        message = await check.channel.receive()
        if isinstance(message, Claims):
            if asked := check.expected.asked:
                check.claims = message.model_dump(include=asked)
                check.claimed_at = check.channel.heard_at
            message = await check.channel.receive()
        if isinstance(message, AnswersPiece | FingerprintsPiece):
            return message
        await self._refused(check, message)
        return None

    async def _answers(
        self, check: Check, first: AnswersPiece | FingerprintsPiece
    ) -> None:
        """Receive the rest of the files, the answers last, and judge them."""
        assert check.channel is not None
        series = check.taken.series
        most = SAMPLING["max_tokens"]
        fits = longest_answers(check.evidence(), most)
        parcel = IncomingFile(min(most_bytes(series, most), fits))
        prints = IncomingFile(fingerprints.most_bytes(len(series), most))
        try:
            message: Message = first
            while True:
                if isinstance(message, AnswersPiece):
                    parcel.add(message)
                elif isinstance(message, FingerprintsPiece) and check.limits:
                    prints.add(message)
                else:
                    return await self._refused(check, message)
                if parcel.complete:
                    break
                message = await check.channel.receive()
            check.answered_at = steady_now()
            printed = prints.read() if prints.size else None
            await call(self._keep, check, parcel.read(), printed)
        finally:
            parcel.close()
            prints.close()

    def _keep(self, check: Check, answers: bytes, printed: bytes | None) -> None:
        """Store the answer file and judge the check.

        All files of a batch together would be too large for memory.
        """
        path = self._ports.folder / check.id
        path.write_bytes(answers)
        if printed is not None:
            prints = path.with_suffix(".fingerprints")
            prints.write_bytes(printed)
            check.prints = prints
        # Set only now: who is interrupted meanwhile judges what is there.
        check.answers = path
        check.judge()

    # --- at the end ---

    async def _judge(self, checks: Sequence[Check]) -> None:
        """Compare claims across executors, and recheck those whose answer differs."""
        await note_runtimes(self._context, checks)
        await follow_tokens(self._context, checks)
        await ask_for_digests(self._context, checks)
        shared = shared_uuids(
            {check.executor.name: check.claims for check in checks if check.claims}
        )
        places = self._ports.places
        chips = await call(shared_chips, checks)
        earlier = await call(earlier_chips, self._context.records, places, checks)
        for check in checks:
            name = check.executor.name
            is_shared = any(name in found for found in (shared, chips, earlier))
            if is_shared:
                check.expected = replace(
                    check.expected,
                    shared=shared.get(name, {}),
                    shared_chips=chips.get(name, {}),
                    earlier_chips=earlier.get(name, {}),
                )
            if is_shared or not check.lines:
                await call(check.judge)
        await ask_for_engines(self._context, checks)
        suspects = [check for check in checks if check.suspect]
        await ask_again(self._context, suspects)
        for check in suspects:
            await call(check.judge)
        # Who answered again may have said that it is of another version.
        await follow_tokens(self._context, suspects)
        if self._ports.every_prompt:
            right = [check for check in checks if check.right]
            await ask_every_prompt(self._context, right)
            for check in right:
                await call(check.judge)


def _note_ready(check: Check, message: Ready) -> None:
    assert check.channel is not None
    check.ready_at = check.channel.heard_at
    check.runtime = message.runtime


async def _all(
    step: Callable[[Check], Awaitable[None]], checks: Iterable[Check]
) -> None:
    """Run a step at once for all checks that are still waiting for something.

    In no order, so that nobody is always the last in the queue of a provider.
    """
    shuffled = [check for check in checks if check.under_way]
    secrets.SystemRandom().shuffle(shuffled)

    async def one(check: Check) -> None:
        await step(check)
        if check.channel and not check.under_way:
            await check.channel.close()  # another check may wait for its GPU

    await asyncio.gather(*map(one, shuffled))


def _class(executor: Executor) -> Class:
    return executor.gpu_class


def _asked(expected: Expected) -> dict[str, Any]:
    if not expected.asked:
        return {}
    return {"inventory": expected.inventory, **expected.proofs}
