"""Jobs of sweeps and flows that start after the deadline of all of them."""

from typing import Any

import pytest

from gpuyard.client.bodies import submit_late
from gpuyard.domain.deadlines import refuse_past
from gpuyard.domain.errors import Fault, InvalidInputError

# By the clock of the server; ours may say anything.
NOW = 1_790_000_000.0
JOB = {"command": ["true"]}


def submit(body: dict[str, Any]) -> dict[str, Any]:
    """The job that the server takes."""
    if "deadline" in body:
        refuse_past(body["deadline"], NOW, "jobs.0.deadline")
    return body


def test_only_the_clock_of_the_server_says_whether_a_deadline_has_passed() -> None:
    assert submit_late(submit, JOB) == JOB
    late = {**JOB, "deadline": NOW - 1}
    assert submit_late(submit, late) == JOB
    assert late["deadline"] == NOW - 1
    later = {**JOB, "deadline": NOW + 60}
    assert submit_late(submit, later) == later


def test_what_else_is_wrong_is_told() -> None:
    asked: list[object] = []

    def refuse(body: dict[str, Any]) -> None:
        asked.append(body)
        past = Fault("deadline", "is 2026, which is past", "")
        raise InvalidInputError([past, Fault("command", "is missing", "")])

    with pytest.raises(InvalidInputError, match="is missing"):
        submit_late(refuse, {"deadline": NOW})
    assert len(asked) == 1
