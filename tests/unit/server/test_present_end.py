"""What `gpuyard why` says of a job that does not wait."""

import pytest

from gpuyard.domain.jobs import Attempt, Job
from gpuyard.server.present import present_end


def ended(state: str, reason: str | None, message: str | None = None) -> Job:
    attempt = Attempt(
        id="attempt_1",
        number=1,
        token=1,
        provider="local",
        state="ended",
        created_at=0.0,
        message=message,
    )
    return Job(
        id="job_1",
        name="a",
        kind="command",
        state=state,
        reason=reason,
        priority=3,
        created_at=0.0,
        attempts=[attempt],
    )


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (ended("running", None), "it is running."),
        (ended("cancelled", "cancelled"), "it is cancelled."),
        (
            ended("failed", "exit_code"),
            "it is failed (exit_code: the program ended with an exit code other than"
            " 0).",
        ),
        (
            ended("failed", "no_image", "Manifest unknown."),
            "it is failed (no_image: Manifest unknown).",
        ),
        (ended("failed", "from_elsewhere"), "it is failed (from_elsewhere)."),
    ],
)
def test_the_reason_is_explained(job: Job, words: str) -> None:
    assert present_end(job) == f"The job is not waiting: {words}"
