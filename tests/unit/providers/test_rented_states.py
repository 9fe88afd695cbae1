"""What the cloud and the agent say of a rented machine, as the state of its attempt."""

from dataclasses import replace
from typing import Any

import pytest

from gpuyard.domain import wire
from gpuyard.domain.jobconfig import JobResult, JobStatus
from gpuyard.providers.instances.api import Instance, InstanceState
from gpuyard.providers.instances.settings import InstanceSettings
from gpuyard.providers.instances.states import MachineFacts, result_of

NOW = 2000.0
RUNNING = Instance(
    "i-1", "here", "here-1a", "g5", False, InstanceState.RUNNING, "attempt_1", 1000.0
)
GONE = replace(RUNNING, state=InstanceState.GONE, why="it was shut down")
SETTINGS = InstanceSettings(boot_timeout_s=300.0, silence_s=200.0)


def said(**fields: Any) -> wire.Ended:
    return wire.Ended("attempt_1", 1900.0, 1500.0, **fields)


def result(instance: Instance | None = RUNNING, **fields: Any) -> JobResult:
    facts = MachineFacts("cloud", instance, fields.pop("known_s", 10.0), **fields)
    return result_of("here/i-1", facts, SETTINGS, NOW)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"instance": replace(RUNNING, state=InstanceState.PENDING)}, "starts"),
        ({}, "boots, and has not joined yet (g5 in here-1a)"),
        ({"joined": True}, "is about to start"),
        ({"known_s": 299.0}, "boots"),
        ({"joined": True, "known_s": 3000.0, "away_s": 199.0}, "about to start"),
    ],
)
def test_it_waits_and_says_for_what(fields: dict[str, Any], words: str):
    waiting = result(**fields)
    assert waiting.status is JobStatus.PENDING
    assert waiting.error_message is not None
    assert words in waiting.error_message


def test_it_runs_once_its_agent_has_said_so():
    running = result(joined=True, started_at=1500.0, node_id="node_1")
    assert running.status is JobStatus.RUNNING
    assert running.started_at == 1500.0
    assert running.node == "node_1"


@pytest.mark.parametrize(
    ("fields", "reason", "words"),
    [
        ({"known_s": 301.0}, "node_lost", "has not joined within 300 s"),
        ({"fault": "it shows 0 GPUs"}, "node_lost", "cannot run it: it shows 0 GPUs"),
        ({"joined": True, "away_s": 201.0}, "node_silent", "said nothing for 201 s"),
        ({"instance": GONE}, "node_lost", "has ended (it was shut down)"),
        (
            {"instance": replace(GONE, interrupted=True)},
            "preempted",
            "cloud took i-1 back",
        ),
    ],
)
def test_a_lost_machine_says_why_and_what_it_has_cost(
    fields: dict[str, Any], reason: str, words: str
):
    lost = result(**fields)
    assert (lost.status, lost.reason) == (JobStatus.FAILED, reason)
    assert lost.error_message is not None
    assert words in lost.error_message
    assert lost.paid_s == 1000.0
    assert lost.completed_at == NOW


def test_a_machine_that_was_ended_for_a_person_is_cancelled():
    assert result(GONE, stopped=True).status is JobStatus.CANCELLED
    taken = result(replace(GONE, interrupted=True), stopped=True)
    assert taken.reason == "preempted"


def test_a_machine_that_the_cloud_does_not_know_is_unknown():
    assert result(None).status is JobStatus.UNKNOWN


@pytest.mark.parametrize(
    ("end", "status", "exit_code", "reason"),
    [
        (said(exit_code=0), JobStatus.COMPLETED, 0, ""),
        (said(exit_code=3), JobStatus.FAILED, 3, ""),
        (said(signal=9), JobStatus.FAILED, -9, ""),
        (said(reason="out_of_memory"), JobStatus.FAILED, None, "out_of_memory"),
        (said(stopped="timed_out"), JobStatus.FAILED, None, "timed_out"),
        (said(stopped="cancelled"), JobStatus.CANCELLED, None, "cancelled"),
    ],
)
def test_what_the_agent_says_of_an_end_counts_before_all_else(
    end: wire.Ended, status: JobStatus, exit_code: int | None, reason: str
):
    ended = result(replace(GONE, interrupted=True), end=end)
    assert ended.status is status
    assert ended.exit_code == exit_code
    assert ended.reason == reason
    assert (ended.started_at, ended.completed_at) == (1500.0, 1900.0)
    # From its launch, not from the start of the program.
    assert ended.paid_s == 1000.0


def test_a_clock_that_runs_ahead_at_the_cloud_costs_nothing():
    ahead = replace(RUNNING, launched_at=NOW + 60)
    assert result(ahead, end=said(exit_code=0)).paid_s == 0.0
