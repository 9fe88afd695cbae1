"""What each way of ending makes of a job, and what the events carry."""

from decimal import Decimal

import pytest

from gpuyard.controller import owner_transitions, transitions
from gpuyard.controller.attempt_outcome import (
    AttemptOutcome,
    final_state,
    wants_retry,
)
from gpuyard.controller.intake import PreparedJob, Template
from gpuyard.domain.errors import IllegalMoveError
from gpuyard.domain.events import EventKind, Table
from gpuyard.domain.jobspec import JobSpec
from gpuyard.domain.shape import Shape
from gpuyard.domain.states import JobState
from gpuyard.scheduler.jobs import LiveJob, retries_of
from tests.support.life import Life, plain


@pytest.fixture
def life() -> Life:
    return Life()


def job(*, retry_count=0, retry_on=None, **fields) -> LiveJob:
    retries = retries_of(retry_count, retry_on)
    return LiveJob(
        "job_1", JobState.RUNNING, Shape(), 3, 0.0, retries=retries, **fields
    )


@pytest.mark.parametrize(
    ("outcome", "state", "reason"),
    [
        ({"exit_code": 0}, "completed", None),
        ({"exit_code": 3}, "failed", "exit_code"),
        ({"signal": 11}, "failed", "killed_by_signal"),
        ({"signal": 9, "reason": "out_of_memory"}, "failed", "out_of_memory"),
        ({"exit_code": 0, "reason": "exit_status_lost"}, "failed", "exit_status_lost"),
        ({"reason": "command_not_found"}, "failed", "command_not_found"),
        ({"stopped": "timed_out", "signal": 15}, "timed_out", "timed_out"),
        ({"stopped": "timed_out", "exit_code": 0}, "timed_out", "timed_out"),
        ({"stopped": "cancelled", "signal": 15}, "cancelled", "cancelled"),
        ({"stopped": "preempted", "signal": 15}, "failed", "preempted"),
        ({"stopped": "preempted", "exit_code": 0}, "failed", "preempted"),
    ],
)
def test_the_final_state(outcome, state, reason):
    assert final_state(job(), AttemptOutcome(1.0, **outcome)) == (state, reason)


@pytest.mark.parametrize(
    ("outcome", "state"),
    [
        ({"exit_code": 0}, "completed"),
        ({"exit_code": 1}, "cancelled"),
        ({"lost": True, "reason": "attempt_lost"}, "cancelled"),
    ],
)
def test_a_cancel_loses_to_a_clean_exit_only(outcome, state):
    cancelled = job(cancel_requested=True)
    assert final_state(cancelled, AttemptOutcome(1.0, **outcome))[0] == state


@pytest.mark.parametrize(
    ("fields", "outcome", "granted"),
    [
        ({"retry_count": 1}, {"exit_code": 1}, True),
        ({"retry_count": 0}, {"exit_code": 1}, False),
        ({"retry_count": 2, "failures": 2}, {"exit_code": 1}, False),
        ({"retry_count": 1}, {"exit_code": 0}, False),
        ({"retry_count": 1}, {"reason": "command_not_found"}, False),
        ({"retry_count": 1}, {"reason": "bad_resume"}, False),
        ({"retry_count": 1}, {"reason": "invalid_argument"}, False),
        ({"retry_count": 1}, {"reason": "no_image"}, False),
        ({"retry_count": 1}, {"reason": "acme_quota_exceeded"}, True),
        ({"retry_count": 1}, {"stopped": "timed_out"}, True),
        ({"retry_count": 0}, {"stopped": "timed_out"}, False),
        ({"retry_count": 1, "retry_on": {"failure"}}, {"stopped": "timed_out"}, False),
        ({"retry_count": 1, "retry_on": {"timeout"}}, {"stopped": "timed_out"}, True),
        ({"retry_count": 1, "retry_on": {"timeout"}}, {"exit_code": 1}, False),
        ({"retry_count": 1, "retry_on": {"lost"}}, {"reason": "node_lost"}, True),
        ({"retry_count": 1, "retry_on": {"failure"}}, {"reason": "node_lost"}, False),
        ({"retry_count": 0, "retry_on": {"lost"}}, {"stopped": "preempted"}, True),
        (
            {"retry_count": 1, "cancel_requested": True},
            {"stopped": "timed_out"},
            False,
        ),
        ({"retry_count": 1}, {"stopped": "cancelled"}, False),
        ({"retry_count": 1, "cancel_requested": True}, {"exit_code": 1}, False),
        ({"retry_count": 1}, {"reason": "attempt_lost", "lost": True}, True),
        ({"retry_count": 0, "failures": 0}, {"stopped": "preempted"}, True),
        ({"retry_count": 0, "failures": 0}, {"reason": "storage_unreachable"}, True),
        ({"cancel_requested": True}, {"reason": "storage_unreachable"}, False),
    ],
)
def test_when_another_attempt_is_granted(fields, outcome, granted):
    assert wants_retry(job(**fields), AttemptOutcome(1.0, **outcome)) is granted


def test_a_retry_waits_goes_on_from_the_newest_checkpoint_and_is_counted(life):
    job_id = life.submit(retry_count=1)
    event = life.end(life.run(job_id), delay_s=8.0, exit_code=1)
    row = life.row(job_id)
    assert event.kind is EventKind.JOB_REQUEUED
    assert (row["state"], row["failures"], row["resume_from"], row["reason"]) == (
        "queued",
        1,
        transitions.NEWEST,
        "exit_code",
    )
    assert row["not_before"] == event.at + 8.0


def test_a_preemption_costs_no_retry(life):
    job_id = life.submit(retry_count=0)
    life.end(life.run(job_id), stopped="preempted")
    assert (life.row(job_id)["state"], life.row(job_id)["failures"]) == ("queued", 0)


def test_a_checkpoint_that_cannot_be_fetched_costs_no_retry_and_stays_the_one_to_go_on_from(
    life,
):
    job_id = life.submit(retry_count=0)
    life.end(life.run(job_id), stopped="cancelled")
    life.record(owner_transitions.resumed(life.row(job_id), "ckpt_7", life.now))
    life.end(life.run(job_id), reason="storage_unreachable")
    row = life.row(job_id)
    assert (row["state"], row["failures"], row["resume_from"]) == (
        "queued",
        0,
        "ckpt_7",
    )


def test_an_end_pays_for_the_seconds_that_were_run(life):
    job_id = life.submit()
    attempt_id = life.run(job_id)
    began = life.attempts[attempt_id].started_at
    life.now = began + 1000.0
    life.end(attempt_id, exit_code=0)
    assert life.tables[Table.ATTEMPTS][attempt_id]["cost"] == "1.000000"


def test_an_attempt_that_never_started_costs_nothing(life):
    attempt_id = life.intend(life.submit())
    life.end(attempt_id, reason="command_not_found")
    assert Decimal(life.tables[Table.ATTEMPTS][attempt_id]["cost"]) == 0


@pytest.mark.parametrize(("lost", "state"), [(True, "lost"), (False, "ended")])
def test_an_attempt_is_ended_or_lost(life, lost, state):
    attempt_id = life.run(life.submit())
    life.end(attempt_id, lost=lost, reason="attempt_lost")
    assert life.tables[Table.ATTEMPTS][attempt_id]["state"] == state


def test_a_resumed_job_starts_counting_anew_and_keeps_its_attempts(life):
    job_id = life.submit(retry_count=0)
    life.end(life.run(job_id), exit_code=1)
    assert life.row(job_id)["state"] == "failed"
    life.resume(job_id)
    row = life.row(job_id)
    assert (
        row["state"],
        row["failures"],
        row["attempts"],
        row["exit_code"],
        row["ended_at"],
    ) == (
        "queued",
        0,
        1,
        None,
        None,
    )
    assert life.attempts[life.run(job_id)].token == 2


def test_a_completed_job_is_never_resumed(life):
    job_id = life.submit()
    life.end(life.run(job_id), exit_code=0)
    with pytest.raises(IllegalMoveError, match="completed"):
        life.resume(job_id)


@pytest.mark.parametrize("state", ["queued", "assigned", "running", "unknown"])
def test_a_job_that_is_not_over_is_never_resumed(life, state):
    job_id = life.submit()
    if state != "queued":
        attempt_id = life.intend(job_id)
        if state != "assigned":
            life.start(attempt_id)
        if state == "unknown":
            life.lose_sight(job_id)
    assert life.row(job_id)["state"] == state
    with pytest.raises(IllegalMoveError, match="Only a job that is over"):
        life.resume(job_id)


def test_the_first_start_of_a_job_is_remembered_over_its_retries(life):
    job_id = life.submit(retry_count=1)
    life.end(life.run(job_id), exit_code=1)
    first = life.row(job_id)["started_at"]
    life.run(job_id)
    assert first is not None
    assert life.row(job_id)["started_at"] == first


def test_a_submission_carries_the_whole_spec_and_its_shape():
    spec = JobSpec.model_validate(
        {"command": ["a"], "labels": {"x": "y"}, "resources": {"cpus": 2}}
    )
    job = PreparedJob.of(Template.of(spec, ["careful"]), spec)
    job.parents = ("job_0",)
    event = plain(transitions.submitted(job, 5.0))
    row = {change.table: change.values for change in event.changes}
    assert JobSpec.model_validate(row[Table.SPECS]["body"]) == spec
    assert (row[Table.JOBS]["shape"], row[Table.JOBS]["labels"]) == (
        {"cpus": 2.0, "portable": True},
        {"x": "y"},
    )
    assert (row[Table.JOBS]["depends_on"], row[Table.JOBS]["warnings"]) == (
        ["job_0"],
        ["careful"],
    )
