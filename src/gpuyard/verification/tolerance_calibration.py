"""Calibration of a tolerance: an honest executor, followed by the trusted one."""

from functools import partial

from gpuyard.domain.errors import InvalidInputError
from gpuyard.verification.classes import TRAITS
from gpuyard.verification.context import (
    LeaseBusy,
    LeaseLost,
    call,
    when_trusted_is_free,
)
from gpuyard.verification.executors import Executor
from gpuyard.verification.fingerprints import (
    Fingerprint,
    FingerprintError,
    PrintDifference,
    difference,
    read_fingerprints,
    total,
)
from gpuyard.verification.prompts import read_file
from gpuyard.verification.protocol import SAMPLING
from gpuyard.verification.records.series import Series
from gpuyard.verification.session import Session
from gpuyard.verification.solver.engines.fingerprints import pack_tokens
from gpuyard.verification.tolerance import Limits, sampling_of
from gpuyard.verification.tolerance_limits import limits_from, ranges_of
from gpuyard.verification.trusted_changes import accept, require_accepted
from gpuyard.verification.trusted_executor import (
    ExecutorFault,
    FollowedAnswers,
    JobTrustedExecutor,
)
from gpuyard.verification.verify import NotPreparedError, Say, check_places, prepare


async def calibrate_tolerance(
    session: Session, honest: Executor, runs: int, say: Say
) -> Limits:
    """Measure by how much an honest executor differs from the trusted one of its class.

    `honest` answers `runs` series, and the trusted executor follows. Stores the limits
    and returns them. Raises InvalidInputError and NotPreparedError.
    """
    cls = honest.gpu_class
    trusted = session.trusted.get(cls)
    if trusted is None or trusted.name == honest.name:
        raise InvalidInputError.of(
            "--against",
            f"{honest.name} has no trusted executor to be compared with",
            f"name another executor of {cls}, whose answers you trust",
        )
    await check_places(session, [honest])
    await prepare(session, cls, 1, say)
    await require_accepted(session.context, cls, trusted)
    series = await call(session.context.records.series, cls)
    patience = partial(session.store.deadline_s, cls)
    other = JobTrustedExecutor(honest, session.jobs, patience)
    found: list[list[PrintDifference]] = []
    for number in range(runs):
        one = series[number % len(series)]
        found.append(await _compared(session, trusted, other, one))
        together = total(found[-1])
        say(
            f"{number + 1} of {runs}: {together.token_share:.2%} of"
            f" {together.tokens:,} tokens, {together.id_share:.2%} of the likeliest,"
            f" {together.logprob_error:.4f} in log-probabilities"
        )
    limits = limits_from(found)
    await require_accepted(session.context, cls, trusted)
    await accept(session.context, cls, trusted.runtime)
    await call(session.context.records.put_ranges, cls, ranges_of(limits))
    return limits


async def _compared(
    session: Session,
    trusted: JobTrustedExecutor,
    other: JobTrustedExecutor,
    series: Series,
) -> list[PrintDifference]:
    """How much each answer of `other` to a series differs; NotPreparedError."""
    context = session.context
    size = TRAITS[other.gpu_class].prompts
    prompts = sorted(await read_file(context, series.blob, size))
    seed = context.draw_seed()
    try:
        answered, _ = await when_trusted_is_free(
            context, other, partial(other.print_answers, prompts, seed)
        )
        checked = _read(answered, size)
        tokens = pack_tokens(one.tokens for one in checked)
        followed, _ = await when_trusted_is_free(
            context, trusted, partial(trusted.print_answers, prompts, seed, tokens)
        )
        right = _read(followed, size)
    except (ExecutorFault, FingerprintError, LeaseLost, LeaseBusy) as error:
        raise NotPreparedError(f"{error}.") from error
    sampling = sampling_of(SAMPLING)
    pairs = zip(checked, right, strict=True)
    return [difference(one, other_one, sampling) for one, other_one in pairs]


def _read(answers: FollowedAnswers, count: int) -> list[Fingerprint]:
    return read_fingerprints(answers.fingerprints, count, SAMPLING["max_tokens"])
