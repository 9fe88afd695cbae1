"""A wall clock that is set by an hour while jobs with a time limit run."""

from collections.abc import Callable

from gpuyard.domain.jobs import Job
from tests.support.instance import TestInstance


def check_time_limits(
    instance: TestInstance,
    set_clock: Callable[[float], None],
    submit: Callable[..., str],
) -> None:
    """No job ends early when the clock jumps forward, or late when it jumps back, and
    what they ran and cost is not changed, although the server is killed meanwhile.
    """
    patient = submit("sleep", "4", timeout_s=600)
    instance.wait(patient, "running")
    set_clock(3600)
    check_run_time(instance.job(patient))
    instance.kill("server")
    done = instance.wait(patient)
    assert done.state == "completed"
    check_run_time(done)
    limited = submit("sleep", "600", timeout_s=3)
    instance.wait(limited, "running")
    set_clock(0)
    done = instance.wait(limited)
    assert done.state == "timed_out"
    check_run_time(done)


def check_run_time(job: Job) -> None:
    """The job ran for seconds, and costs no more."""
    (attempt,) = job.attempts
    assert attempt.ran_s is not None
    assert 0 < attempt.ran_s < 120
    assert attempt.cost.amount <= attempt.cost.price_per_hour * 120 / 3600
