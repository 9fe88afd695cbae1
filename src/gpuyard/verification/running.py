"""What the commands do: verify executors once, calibrate a class."""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpuyard.client import calls
from gpuyard.domain.errors import GpuyardError, InvalidInputError, quoted
from gpuyard.domain.gpus import GPUClass
from gpuyard.domain.trust import check_place
from gpuyard.verification.calibration import Calibration, calibrate
from gpuyard.verification.check import Check
from gpuyard.verification.claims import Claim
from gpuyard.verification.classes import TRAITS, Class
from gpuyard.verification.context import Busy, LeaseLost, call, leased, when_free
from gpuyard.verification.dispatcher import PIPELINES, Dispatcher
from gpuyard.verification.ending import Ending, forget_evidence, lock_of
from gpuyard.verification.executors import Executor
from gpuyard.verification.files import read_file
from gpuyard.verification.records.events import Kind
from gpuyard.verification.records.executors import ExecutorRecord
from gpuyard.verification.session import Session, with_policy
from gpuyard.verification.step import Outcome as StepOutcome
from gpuyard.verification.trusted import ExecutorFault
from gpuyard.verification.vram import gigabytes_to_ask

Say = Callable[[str], None]
# Series, then workloads, then answers; a turn makes 25 series at most. Others may use up what was made, or be at it.
_TURNS, _IDLE_TURNS, _PAUSE_S = 40, 3, 0.5


class NotPreparedError(GpuyardError):
    """A class has not enough samples, and more cannot be made."""

    code = "verification_not_prepared"
    exit_code = 4


class BatchLostError(GpuyardError):
    """The database was away for so long that others may take this process for dead."""

    code = "verification_interrupted"
    exit_code = 4


@dataclass(frozen=True, slots=True)
class Report:
    """What came of a batch: its checks, how everybody stands now, who had no sample after all, and in words what
    evidence could not be kept and what the yard could not be told."""

    checks: list[Check]
    standing: dict[str, ExecutorRecord]
    left_out: list[str]
    faults: list[str]


async def verify(session: Session, executors: Sequence[Executor], *, claims: frozenset[Claim], say: Say) -> Report:
    """Verify each executor once, with samples that are made now where there are none; InvalidInputError."""
    await check_places(session, executors)
    ending = Ending(session.client, session.store, session.context)
    await ending.settle()
    checks, left = list[Check](), list(executors)
    for _ in range(_TURNS):
        for cls, count in Counter(executor.gpu_class for executor in left).items():
            await prepare(session, cls, count, say)
        say(f"{len(left)} executors begin together" if len(left) > 1 else f"{left[0].name} begins")
        fresh = await _run_batch(session, left, claims=claims, ending=ending)
        checks += fresh
        # Another server may have taken the samples that were ready.
        done = {check.executor.name for check in fresh}
        left = [executor for executor in left if executor.name not in done]
        if not left:
            break
    records = await call(session.context.records.executors)
    return Report(checks, {record.name: record for record in records}, [one.name for one in left], ending.faults)


async def _run_batch(
    session: Session, executors: Sequence[Executor], *, claims: frozenset[Claim], ending: Ending
) -> list[Check]:  # fmt: skip
    store = session.store
    with TemporaryDirectory(prefix="answers-", dir=store.folder) as folder:
        batch = session.batch(executors, Path(folder), claims=claims, ending=ending)
        try:
            checks = await leased(session.context, lock_of(batch.holder), partial(batch.run, executors))
        except LeaseLost as error:
            raise BatchLostError(f"The batch was given up: {error}.") from error
    await asyncio.to_thread(forget_evidence, store.evidence, time.time() - store.settings.keep_events_s)
    return checks


async def check_places(session: Session, executors: Sequence[Executor]) -> None:
    """InvalidInputError when the yard has no such provider or place: nothing is begun that cannot be done."""
    configured = {one["name"] for one in await session.client.call(calls.listing("providers"))}
    for executor in executors:
        provider = executor.settings.provider
        if provider not in configured:
            known = f"configured are: {', '.join(sorted(configured))}"
            raise InvalidInputError.of("EXECUTOR", f"{executor.name} is on {quoted(provider)}, no provider here", known)
        try:
            check_place(executor.place, configured)
        except InvalidInputError as error:
            field = f"verification.executors.{executor.name}.place"
            raise InvalidInputError([replace(fault, field=field) for fault in error.faults]) from None


async def prepare(session: Session, cls: Class, count: int, say: Say) -> None:
    """See to it that a class has `count` samples; NotPreparedError."""
    records, size = session.context.records, TRAITS[cls].prompts
    target = -(-count // size) * size
    # As few series as hide a prompt of each workload; the pipelines that run for long make many more.
    small = with_policy(session, target=target, max_series=max(size, await call(records.series_count, cls)))
    dispatcher = Dispatcher(small.context, [cls])
    steps = [pipeline for pipeline in PIPELINES if pipeline.kind is not Kind.EVICTION]
    turns = idle = 0
    told = -1
    while turns < _TURNS and idle < _IDLE_TURNS:
        ready = await call(records.samples_ready, cls)
        if ready >= count:
            return
        if ready != told:  # it may be a while before there are more
            say(f"class {cls}: {ready} of {count} samples are ready")
        told = ready
        outcomes = [await dispatcher.turn(step, cls) for step in steps]
        if StepOutcome.DONE in outcomes:
            turns, idle = turns + 1, 0
        else:
            idle += StepOutcome.BUSY not in outcomes
            await session.context.clock.sleep(_PAUSE_S)
    newest = (await call(records.events, cls))[-len(steps) :]
    reasons = "; ".join(dict.fromkeys(str(event.data["reason"]) for event in newest if "reason" in event.data))
    raise NotPreparedError(
        f"class {cls} has {await call(records.samples_ready, cls)} of {count} samples, and no more come: {reasons}.",
        "`gpuyard verify status` shows what the pipelines did; a class needs an executor that is trusted.",
    )


async def calibrate_class(session: Session, executor: Executor, runs: int, say: Say) -> Calibration:
    """Have the trusted executor solve `runs` series, and write down what the class is held to from now on."""
    cls, records = executor.gpu_class, session.context.records
    trusted = session.trusted.get(cls)
    if trusted is None or trusted.name != executor.name:
        fault, remedy = f"{executor.name} is not trusted for {cls}", f"set trusted = true for {executor.name}"
        raise InvalidInputError.of("--trusted", fault, remedy)
    await check_places(session, [executor])
    await prepare(session, cls, 1, say)
    found = await call(records.series, cls)
    wanted = {"vram_gb": gigabytes_to_ask(cls), "speed": True} if isinstance(cls, GPUClass) else {}
    times, claims_s, probes = list[float](), list[float](), list[dict[str, float]]()
    for number in range(runs):
        series = await read_file(session.context, found[number % len(found)].blob, TRAITS[cls].prompts)
        seed = secrets.randbits(64) - 2**63
        try:
            _, run = await when_free(
                session.context, trusted, lambda series=series, seed=seed: trusted.solve_timed(series, seed, wanted)
            )
        except (ExecutorFault, LeaseLost, Busy) as error:
            raise NotPreparedError(f"{error}.") from error
        times.append(run.solve_s)
        speed: Mapping[str, Any] = run.claims.get("speed") or {}
        if "tflops" in speed and "bandwidth_gbs" in speed:
            probes.append({name: float(speed[name]) for name in ("tflops", "bandwidth_gbs")})
            if "digest" in (run.claims.get("vram") or {}):
                claims_s.append(run.claims_s)
        say(f"{number + 1} of {runs}: {run.solve_s:.2f} s")
    result = calibrate(times, probes, claims_s)
    ranges = {name: (one.low, one.high) for name, one in result.ranges.items()}
    ranges["solve_s"] = (min(times), result.deadline_s)
    if result.claims_s:
        ranges["claims_s"] = (min(claims_s), result.claims_s)
    await call(records.put_ranges, cls, ranges)
    return result
