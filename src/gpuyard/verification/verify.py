"""Verify executors once, or again and again; and make the samples for it."""

import asyncio
import math
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from gpuyard.client import calls
from gpuyard.client.connection import find_server
from gpuyard.config.dialling import is_loopback
from gpuyard.config.verification import VerificationSettings
from gpuyard.domain.errors import (
    GpuyardError,
    InvalidInputError,
    UnreachableError,
    quoted,
)
from gpuyard.domain.gpus import GPUClass
from gpuyard.domain.own_nodes import OWN_NODES
from gpuyard.domain.trust import check_place
from gpuyard.verification.check import Check
from gpuyard.verification.claims import Claim
from gpuyard.verification.classes import TRAITS, Class
from gpuyard.verification.comparable import comparable
from gpuyard.verification.context import (
    LeaseLost,
    call,
    leased,
)
from gpuyard.verification.database import DatabaseError
from gpuyard.verification.executors import (
    Executor,
    judging_executors,
    knows_no_draws,
    tolerance_of,
)
from gpuyard.verification.pipelines.dispatcher import PIPELINES, Dispatcher
from gpuyard.verification.pipelines.step import StepOutcome
from gpuyard.verification.preparation import PreparationProgress
from gpuyard.verification.records.events import PipelineEventKind
from gpuyard.verification.records.executors import ExecutorRecord
from gpuyard.verification.session import (
    Session,
    with_policy,
)
from gpuyard.verification.settlement import Settlement, forget_evidence, lock_of
from gpuyard.verification.trusted_changes import TrustedChangedError, silence_of
from gpuyard.verification.trusted_places import keep_trusted_free
from gpuyard.verification.verdict import CheckOutcome

Say = Callable[[str], None]
# A turn makes at most 25 series, then workloads, then answers. Other processes may use
# the samples up, or hold the locks.
_TURNS = 40
_IDLE_TURNS = 3
_PAUSE_S = 0.5


class NotPreparedError(GpuyardError):
    """A class does not have enough samples, and no more can be made."""

    code = "verification_not_prepared"
    exit_code = 4


class BatchLostError(GpuyardError):
    """The database was away so long that the lock of the batch may be lost."""

    code = "verification_interrupted"
    exit_code = 4


@dataclass(frozen=True, slots=True)
class VerificationReport:
    """The result of a run.

    `executors`: the records of all executors. `left_out`: executors for which there was
    no sample, or whose trusted executor has changed. `faults`: in words, which trusted
    executor has changed or does not answer, which evidence was not kept and what was
    not reported to the instance. `changed`: the classes that were not verified, because
    their trusted executors have changed or the limits of their tolerance are not
    measured.
    """

    checks: list[Check]
    executors: dict[str, ExecutorRecord]
    left_out: list[str]
    faults: list[str]
    changed: list[str]

    @property
    def failed(self) -> bool:
        """Whether an executor failed."""
        return any(check.outcome is CheckOutcome.FAILED for check in self.checks)

    @property
    def unjudged(self) -> list[str]:
        """The executors of which this run shows neither a pass nor a failure."""
        clear = (CheckOutcome.PASSED, CheckOutcome.FAILED)
        unclear = [one.executor.name for one in self.checks if one.outcome not in clear]
        return [*unclear, *self.left_out]


async def verify(
    session: Session,
    executors: Sequence[Executor],
    *,
    claims: frozenset[Claim],
    say: Say,
    every_prompt: bool = False,
) -> VerificationReport:
    """Verify each executor once, after making samples where they are missing.

    `every_prompt`: compare all answers. Raises InvalidInputError, and
    TrustedChangedError if nobody can be compared with anything.
    """
    await check_places(session, executors)
    check_claims(session, executors, claims, say)
    check_tolerances(session, executors, say)
    for words in unreachable_streams(session.store.settings, executors):
        say(words)
    ending = Settlement(session.client, session.store, session.context)
    await ending.settle()

    async def batch(left: Sequence[Executor]) -> list[Check]:
        return await _run_batch(
            session, left, claims=claims, ending=ending, every_prompt=every_prompt
        )

    try:
        checks, changed = await _in_turns(session, executors, batch, say)
    except NotPreparedError:
        await _silences(session, executors)  # maybe other jobs keep it from answering
        raise
    if changed and not checks:
        raise TrustedChangedError(" ".join(changed.values()))
    # One that has changed only during the batch was compared with nobody, either.
    changed |= (await comparable(session, executors))[1]
    silent = await _silences(session, executors)
    done = {check.executor.name for check in checks}
    records = await call(session.context.records.executors)
    return VerificationReport(
        checks,
        {record.name: record for record in records},
        [one.name for one in executors if one.name not in done],
        [*changed.values(), *silent, *ending.faults],
        [cls.value for cls in changed],
    )


async def _silences(session: Session, executors: Sequence[Executor]) -> list[str]:
    """Which trusted executors of these do not answer, in words. Those that other jobs
    keep from it get no new ones.
    """
    records = session.store.records
    classes = sorted({executor.gpu_class for executor in executors})
    judges = [(cls, session.trusted[cls]) for cls in classes if cls in session.trusted]
    told = [await call(silence_of, records, cls, judge.name) for cls, judge in judges]
    failed = await keep_trusted_free(session.client, records, judges)
    return [*filter(None, told), *failed]


async def _in_turns(
    session: Session,
    executors: Sequence[Executor],
    batch: Callable[[Sequence[Executor]], Awaitable[list[Check]]],
    say: Say,
) -> tuple[list[Check], dict[Class, str]]:
    """Verify each executor in as few batches as the samples allow.

    Returns the checks, and why classes that cannot be compared have none.
    """
    checks = list[Check]()
    left, changed = await comparable(session, executors)
    for _ in range(_TURNS):
        for cls, count in Counter(executor.gpu_class for executor in left).items():
            await prepare(session, cls, count, say)
        # Its trusted executor may just have answered as another engine.
        left, more = await comparable(session, left)
        changed |= more
        if not left:
            break
        say(_beginning(left))
        fresh = await batch(left)
        checks += fresh
        # Another process may have taken the samples that were ready.
        done = {check.executor.name for check in fresh}
        left = [executor for executor in left if executor.name not in done]
        if not left:
            break
    return checks, changed


def _beginning(executors: Sequence[Executor]) -> str:
    """Who begins, and what that costs: answers are used for one batch only."""
    counts = Counter(executor.gpu_class for executor in executors)
    used = 0
    for cls, count in counts.items():
        size = TRAITS[cls].prompts
        used += math.ceil(count / size) * size
    names = (
        f"{len(executors)} executors begin together"
        if len(executors) > 1
        else f"{executors[0].name} begins"
    )
    return f"{names}; this uses up {used} trusted answers, enough for as many executors"


async def _run_batch(
    session: Session,
    executors: Sequence[Executor],
    *,
    claims: frozenset[Claim],
    ending: Settlement,
    every_prompt: bool,
) -> list[Check]:
    store = session.store
    with TemporaryDirectory(prefix="answers-", dir=store.folder) as folder:
        batch = session.batch(
            executors,
            Path(folder),
            claims=claims,
            ending=ending,
            every_prompt=every_prompt,
        )
        try:
            checks = await leased(
                session.context, lock_of(batch.holder), partial(batch.run, executors)
            )
        except LeaseLost as error:
            raise BatchLostError(f"The batch was given up: {error}.") from error
    await asyncio.to_thread(
        forget_evidence, store.evidence, time.time() - store.settings.keep_events_s
    )
    return checks


async def check_places(session: Session, executors: Sequence[Executor]) -> None:
    """Raise InvalidInputError when the instance has no such provider or place."""
    configured = {
        one["name"] for one in await session.client.call(calls.listing("providers"))
    }
    for executor in executors:
        _check_form(session, executor)
        provider = executor.settings.provider
        if provider not in configured:
            known = f"configured are: {', '.join(sorted(configured))}"
            raise InvalidInputError.of(
                "EXECUTOR",
                f"{executor.name} is on {quoted(provider)}, no provider here",
                known,
            )
        try:
            check_place(executor.place, configured)
        except InvalidInputError as error:
            field = f"verification.executors.{executor.name}.place"
            raise InvalidInputError(
                [replace(fault, field=field) for fault in error.faults]
            ) from None


def _check_form(session: Session, executor: Executor) -> None:
    """Raise InvalidInputError if the trusted executor has a card of another form."""
    settings = session.store.settings
    trusted = judging_executors(settings).get(executor.gpu_class)
    forms = {one.settings.form for one in (executor, trusted) if one} - {None}
    if trusted and len(forms) > 1:
        fault = (
            f"is {executor.settings.form}, and {trusted.name}, which is trusted for"
            f" {executor.gpu_class}, is {trusted.settings.form}: their times differ"
        )
        remedy = "compare cards of one form; verify the others in a home of their own"
        field = f"verification.executors.{executor.name}.form"
        raise InvalidInputError.of(field, fault, remedy)


def check_claims(
    session: Session, executors: Sequence[Executor], claims: frozenset[Claim], say: Say
) -> None:
    """Say beforehand which claims cannot be judged.

    Raises InvalidInputError for classes without a GPU, of which nothing can be claimed.
    """
    for cls in sorted({executor.gpu_class for executor in executors if claims}):
        if not isinstance(cls, GPUClass):
            fault = f"{cls} is a class without a GPU, so there is nothing to claim"
            raise InvalidInputError.of("--claim", fault, "leave out --claim")
        timed = "claims_s" in session.store.records.ranges(cls)
        if claims - {Claim.INVENTORY} and not timed:
            say(
                f"class {cls} is not calibrated with claims, so they cannot be judged:"
                " `gpuyard verify calibrate` comes first"
            )


def check_tolerances(session: Session, executors: Sequence[Executor], say: Say) -> None:
    """Say beforehand what tolerance will not show.

    Raises InvalidInputError for an executor that cannot make fingerprints.
    """
    settings = session.store.settings
    for cls in sorted({executor.gpu_class for executor in executors}):
        tolerance = tolerance_of(settings, cls)
        if tolerance is None:
            continue
        trusted = session.trusted.get(cls)
        _require_fingerprints(cls, executors)
        engine = trusted.engine_kind if trusted else ""
        if knows_no_draws(engine) and not tolerance.accept_unknown_draws:
            say(
                f"class {cls}: its trusted engine {engine} cannot tell which tokens a"
                " seed gives, so who is compared by fingerprints is not judged;"
                f" accept_unknown_draws in [verification.tolerances.{cls}] accepts that"
            )


def unreachable_streams(
    settings: VerificationSettings, executors: Sequence[Executor]
) -> list[str]:
    """Which executors could hardly reach us to get their seeds, in words.

    Who does not is not ready in time, and fails.
    """
    host = settings.public_host or settings.host
    if not is_loopback(host):
        return []
    return [
        f"{one.name} gets its seed over a stream, and {host} is this machine only: set"
        " [verification] host to an address that it reaches, or stream = false for it,"
        " unless its jobs run on this machine"
        for one in executors
        if one.settings.stream and one.settings.provider != OWN_NODES
    ]


def _require_fingerprints(cls: Class, executors: Sequence[Executor]) -> None:
    """InvalidInputError for an executor of the class that cannot make them."""
    for one in executors:
        if one.gpu_class is cls and one.settings.engine.kind == "openai":
            raise InvalidInputError.of(
                f"verification.executors.{one.name}.engine.kind",
                f"is openai, which has no fingerprints, and the class {cls} allows"
                " tolerance",
                "use transformers or vllm there, or remove"
                f" [verification.tolerances.{cls}]",
            )


async def prepare(session: Session, cls: Class, count: int, say: Say) -> None:
    """Make samples until a class has `count` of them; NotPreparedError."""
    records = session.context.records
    size = TRAITS[cls].prompts
    target = -(-count // size) * size
    # Make as few series as possible; the pipelines of `watch` make many more.
    small = with_policy(
        session,
        target=target,
        max_series=max(size, await call(records.series_count, cls)),
    )
    dispatcher = Dispatcher(small.context, [cls])
    steps = [
        pipeline
        for pipeline in PIPELINES
        if pipeline.kind is not PipelineEventKind.EVICTION
    ]
    turns = 0
    idle = 0
    solve_s = await call(session.store.deadline_s, cls)
    clock = session.context.clock
    progress = PreparationProgress(cls, count, solve_s, clock.monotonic())
    while turns < _TURNS and idle < _IDLE_TURNS:
        ready = await call(records.samples_ready, cls)
        if ready >= count:
            return
        series = await call(records.series_count, cls)
        if words := progress.words(series, ready, clock.monotonic()):
            say(words)
        outcomes = [await dispatcher.turn(step, cls) for step in steps]
        if StepOutcome.DONE in outcomes:
            turns += 1
            idle = 0
            continue
        if StepOutcome.BUSY not in outcomes:
            idle += 1
        await clock.sleep(_PAUSE_S)
    raise await _not_prepared(session, cls, count, len(steps))


async def _not_prepared(
    session: Session, cls: Class, count: int, steps: int
) -> NotPreparedError:
    """The error that says why there are no more samples, from the newest events."""
    records = session.context.records
    newest = (await call(records.events, cls))[-steps:]
    reasons = [str(event.data["reason"]) for event in newest if "reason" in event.data]
    ready = await call(records.samples_ready, cls)
    return NotPreparedError(
        f"class {cls} has {ready} of {count} samples, and no more come:"
        f" {'; '.join(dict.fromkeys(reasons))}.",
        "`gpuyard verify status` shows what the pipelines did; a class needs an"
        " executor that is trusted.",
    )


# `watch` waits while one of these lasts, with growing pauses.
_AWAY = (DatabaseError, UnreachableError, BatchLostError)
_PAUSES_S = (1.0, 60.0)


async def watch(
    session: Session,
    executors: Sequence[Executor],
    every_s: float,
    *,
    claims: frozenset[Claim],
    say: Say,
    tell: Callable[[VerificationReport], None],
) -> None:
    """Verify all executors every `every_s` until cancelled.

    Meanwhile the pipelines of their classes make samples.
    """
    await check_places(session, executors)
    check_claims(session, executors, claims, say)
    classes = sorted({executor.gpu_class for executor in executors})
    pipelines = asyncio.create_task(Dispatcher(session.context, classes).run())
    try:
        while True:
            began = time.monotonic()
            try:
                tell(
                    await verify_outlasting(session, executors, claims=claims, say=say)
                )
            except GpuyardError as error:  # the next run may succeed
                complain(f"{error}")
            await asyncio.sleep(max(0.0, began + every_s - time.monotonic()))
    finally:
        pipelines.cancel()
        await asyncio.gather(pipelines, return_exceptions=True)


async def verify_outlasting(
    session: Session,
    executors: Sequence[Executor],
    *,
    claims: frozenset[Claim],
    say: Say,
) -> VerificationReport:
    """Verify once, and repeat it while the database or the server is away.

    Each kind of trouble is reported once.
    """
    told = set[str]()
    pause, longest = _PAUSES_S
    while True:
        try:
            # The embedded server stops when it is idle; this starts it again.
            await asyncio.to_thread(find_server)
            report = await verify(session, executors, claims=claims, say=say)
        except _AWAY as error:
            if error.code not in told:
                complain(f"{error} It is tried again until it works.")
            told.add(error.code)
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)
        else:
            if told:
                complain("it works again")
            return report


def complain(words: str) -> None:
    """Print trouble to standard error, since it is not part of the result."""
    sys.stderr.write(f"gpuyard: {words}\n")
