"""What the provider makes of its agents' reports."""

import pytest

from gpuyard.domain import wire
from gpuyard.domain.jobconfig import JobStatus
from gpuyard.providers.results import AttemptResults


def ended(attempt_id="a", **fields):
    return wire.Ended(attempt_id, 20.0, 10.0, **fields)


def known(results, attempt_id="a"):
    found = results.find(attempt_id)
    assert found
    return found.result


@pytest.mark.parametrize(
    ("fields", "status", "error"),
    [
        ({"exit_code": 0}, JobStatus.COMPLETED, None),
        ({"exit_code": 7}, JobStatus.FAILED, None),
        ({"signal": 9}, JobStatus.FAILED, "killed by SIGKILL"),
        ({"signal": 36}, JobStatus.FAILED, "killed by signal 36"),
        (
            {
                "exit_code": 1,
                "reason": "gpu_out_of_memory",
                "message": "its output says so",
            },
            JobStatus.FAILED,
            "gpu_out_of_memory: its output says so",
        ),
        (
            {"reason": "command_not_found", "message": "no nope"},
            JobStatus.FAILED,
            "command_not_found: no nope",
        ),
        ({"reason": "exit_status_lost"}, JobStatus.FAILED, "exit_status_lost"),
        (
            {"stopped": "cancelled", "signal": 15},
            JobStatus.CANCELLED,
            "cancelled: killed by SIGTERM",
        ),
        ({"stopped": "cancelled", "exit_code": 0}, JobStatus.CANCELLED, "cancelled"),
        ({"stopped": "timed_out", "exit_code": 0}, JobStatus.FAILED, "timed out"),
        (
            {"stopped": "preempted", "signal": 9},
            JobStatus.FAILED,
            "preempted: killed by SIGKILL",
        ),
        ({}, JobStatus.FAILED, None),
    ],
)
def test_how_an_attempt_ended(fields, status, error):
    results = AttemptResults()
    results.update("n", [ended(**fields)])
    result = known(results)
    assert (result.status, result.error_message) == (status, error)
    assert (result.started_at, result.completed_at, result.exit_code) == (
        10.0,
        20.0,
        fields.get("exit_code"),
    )


def test_an_ended_attempt_stays_ended():
    results = AttemptResults()
    results.update("n", [ended(exit_code=0)])
    before = known(results)
    results.update("n", [wire.Started("a", 30.0, 1)])
    results.update("n", [ended(exit_code=1)])
    results.add_listed("n", "a", "running")
    results.add_listed("n", "a", "ended")
    results.add_submitted("a", "n", ())
    assert known(results) is before


def test_what_an_agent_lists_is_running_or_not_known_how_it_ended():
    results = AttemptResults()
    results.add_listed("n", "a", "running")
    results.add_listed("n", "b", "ended")
    assert known(results).status is JobStatus.RUNNING
    assert known(results, "b").status is JobStatus.UNKNOWN
    results.update("n", [ended("b", exit_code=0)])
    assert known(results, "b").status is JobStatus.COMPLETED


def test_gpus_are_held_until_the_end():
    results = AttemptResults()
    results.add_submitted("a", "n", ["g1", "g2"])
    results.add_submitted("b", "n", ["g3"])
    results.update("n", [wire.Started("a", 10.0, 1)])
    assert results.gpus_in_use() == {"g1", "g2", "g3"}
    results.update("n", [ended(exit_code=0)])
    assert results.gpus_in_use() == {"g3"}


def test_only_ended_attempts_are_ever_dropped():
    results = AttemptResults(kept=3)
    results.add_submitted("long", "n", ())
    for number in range(10):
        results.update("n", [ended(f"a{number}", exit_code=0)])
    assert known(results, "long").status is JobStatus.PENDING
    assert [number for number in range(10) if results.find(f"a{number}")] == [7, 8, 9]


def test_other_reports_change_nothing():
    results = AttemptResults()
    results.update("n", [wire.GpusSeen([])])
    results.update("n", [wire.ProgressSeen("a", {"step": 1})])
    assert results.find("a") is None
