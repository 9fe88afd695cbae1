"""What a job has that repeats another one, and what it leaves to that one."""

from typing import Any, cast

from gpuyard.controller.submissions import Submissions
from gpuyard.domain.jobs import Job
from gpuyard.domain.jobspec import JobKind
from gpuyard.domain.states import JobState
from gpuyard.server.run_records import rerun_body

# It asks nothing of it: the spec takes nothing along.
NO_SUBMISSIONS = cast("Submissions", None)


def repeated(labels: dict[str, str], **fields: Any) -> dict[str, Any]:
    job = Job(
        id="job_1",
        name="a",
        kind=JobKind.COMMAND,
        state=JobState.COMPLETED,
        priority=3,
        created_at=1.0,
        labels=labels,
    )
    spec = {"command": ["true"], **fields}
    (body, _) = rerun_body(NO_SUBMISSIONS, job, spec, is_own=True)
    return body


def test_neither_the_deadline_nor_who_is_told_is_repeated() -> None:
    body = repeated({}, deadline=1.0, notify=["slack:https://example.org/a"])
    assert body == {"command": ["true"], "labels": {"rerun_of": "job_1"}}


def test_it_belongs_to_no_sweep_no_flow_and_no_schedule() -> None:
    own = {"team": "vision", "param.lr": "0.1"}
    groups = dict.fromkeys(
        ("schedule", "study", "sweep", "sweep-id", "sweep-run", "flow", "flow-key"), "x"
    )
    assert repeated(own | groups)["labels"] == {**own, "rerun_of": "job_1"}
