"""Calibration: the deadline and the ranges that a class is held to."""

import asyncio
import math
import random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from gpuyard.config.verification import VerificationSettings
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.gpus import GPUClass
from gpuyard.verification.calibration import (
    TooLittleWorkError,
    calibrate,
    deadline_s,
    proof_limits,
    require_work,
)
from gpuyard.verification.classes import PracticeClass
from gpuyard.verification.comparable import comparable, require_limits
from gpuyard.verification.fingerprints import PrintDifference
from gpuyard.verification.session import SOLVE, SOLVE_PRINTED, deadline_range
from gpuyard.verification.tolerance_limits import limits_from, ranges_of
from gpuyard.verification.trusted_executor import TrustedRun
from tests.support.executors import executor
from tests.support.verification import LocalTrusted

if TYPE_CHECKING:
    from gpuyard.verification.session import Session


def test_the_deadline_is_a_fifth_more_than_the_95th_percentile() -> None:
    # The 95th of a hundred steps is 96.
    times = [float(number) for number in range(1, 102)]
    random.Random(1).shuffle(times)
    assert deadline_s(times) == pytest.approx(96 * 1.2)
    assert deadline_s([10.0] * 5) == pytest.approx(12)


def test_a_straggler_does_not_set_it_alone() -> None:
    assert deadline_s([10.0] * 99 + [1000.0]) == pytest.approx(12)


def test_a_class_that_is_done_at_once_has_a_second_all_the_same() -> None:
    assert calibrate([0.001] * 5).deadline_s == 1


def test_claims_have_their_time_where_every_run_could_make_them() -> None:
    assert calibrate([1.0] * 5, [20.0] * 5).claims_s == pytest.approx(24)
    assert calibrate([1.0] * 5, [0.01] * 5).claims_s == 1
    assert calibrate([1.0] * 5, [20.0] * 4).claims_s is None
    assert calibrate([1.0] * 5).claims_s is None


def run_of(claims_s: float, vram_s: object, speed_s: object) -> TrustedRun:
    """What a trusted executor showed once."""
    run = TrustedRun(1)
    run.claims_s = claims_s
    run.claims = {"vram": {"took_s": vram_s}, "speed": {"took_s": speed_s}}
    return run


def test_each_proof_has_a_time_of_its_own() -> None:
    """Otherwise a cheater had that of the products for the memory."""
    limits = proof_limits([run_of(5.5, 3.0, 2.0)] * 5)
    assert limits["vram_s"] == pytest.approx((3.5, 3.5 * 1.2))
    assert limits["speed_s"] == pytest.approx((2.5, 2.5 * 1.2))


@pytest.mark.parametrize("said", [None, "2", -1.0, 9.0])
def test_a_time_that_is_none_gives_no_limit(said: object) -> None:
    assert "vram_s" not in proof_limits([run_of(5.5, 3.0, said)] * 5)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_times_that_are_none_set_no_deadline(bad: float) -> None:
    with pytest.raises(
        InvalidInputError, match=r"solve_s: has a figure of .*, not of more than 0"
    ):
        deadline_s([1.0] * 5 + [bad])


@pytest.mark.parametrize(
    ("times", "words"),
    [([], "has no figures"), ([1.0] * 4, "has 4 times; the slowest of few")],
)
def test_too_few_times_set_no_deadline(times: list[float], words: str) -> None:
    with pytest.raises(InvalidInputError, match=f"solve_s: {words}"):
        deadline_s(times)


def test_work_that_is_too_short_to_be_timed_is_refused() -> None:
    with pytest.raises(TooLittleWorkError, match=r"in 0\.50 s"):
        require_work(GPUClass.T4, [0.5] * 5)
    require_work(GPUClass.T4, [0.9] * 5)
    require_work(PracticeClass.PRACTICE_6, [0.1] * 5)


def test_a_deadline_without_fingerprints_does_not_hold_where_they_are_made() -> None:
    settings = VerificationSettings()
    tolerant = VerificationSettings.model_validate({"tolerances": {"t4": {}}})
    assert deadline_range(settings, GPUClass.T4) == SOLVE
    assert deadline_range(tolerant, GPUClass.T4) == SOLVE_PRINTED
    run = [PrintDifference(10, 0, 50, 0, 0.1)]
    measured = {
        name: high for name, (_, high) in ranges_of(limits_from([run] * 5)).items()
    }
    trusted = LocalTrusted(GPUClass.T4)
    require_limits(GPUClass.T4, measured, trusted)
    require_limits(GPUClass.T4, {**measured, SOLVE: 9.0, SOLVE_PRINTED: 10.0}, trusted)
    # One of another class sets no deadline, and a guess holds.
    require_limits(GPUClass.A10, {**measured, SOLVE: 9.0}, trusted)
    with pytest.raises(InvalidInputError, match="calibrated without fingerprints"):
        require_limits(GPUClass.T4, {**measured, SOLVE: 9.0}, trusted)
    with pytest.raises(InvalidInputError, match="--class t4 --against EXECUTOR"):
        require_limits(GPUClass.T4, {SOLVE_PRINTED: 9.0}, trusted)


def test_a_class_whose_limits_are_forgotten_is_left_out_alone() -> None:
    """As after its trusted executor was upgraded and accepted: others are verified."""
    records: Any = SimpleNamespace(
        ranges=lambda cls: {}, trusted_runtime=lambda cls: None
    )
    tolerant = VerificationSettings.model_validate({"tolerances": {"t4": {}}})
    session: Any = SimpleNamespace(
        store=SimpleNamespace(settings=tolerant, records=records),
        context=SimpleNamespace(trusted=LocalTrusted, records=records),
        trusted={cls: LocalTrusted(cls) for cls in (GPUClass.T4, GPUClass.A10)},
    )
    asked = [executor("one", GPUClass.T4), executor("other", GPUClass.A10)]
    left, missing = asyncio.run(comparable(cast("Session", session), asked))
    assert left == asked[1:]
    assert list(missing) == [GPUClass.T4]
    assert "calibrate --class t4 --against EXECUTOR" in missing[GPUClass.T4]
