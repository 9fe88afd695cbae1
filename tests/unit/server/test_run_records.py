"""What a job has that repeats another one, and what it leaves to that one."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuyard.controller.submissions import Submissions
from gpuyard.domain.jobs import Job
from gpuyard.domain.jobspec import JobKind
from gpuyard.domain.states import JobState
from gpuyard.server.run_records import rerun_body

# It keeps nothing from anybody: the spec takes nothing along.
NO_SUBMISSIONS = cast("Submissions", SimpleNamespace(kept_from=lambda *_: ""))
SPEC = {
    "command": ["python3", "train.py"],
    "environment": {"SEED": "7", "HF_TOKEN": "abc"},
}


def repeated(
    labels: dict[str, str], spec: dict[str, Any], *, is_own: bool = True
) -> tuple[dict[str, Any], list[str]]:
    job = Job(
        id="job_1",
        name="a",
        kind=JobKind.COMMAND,
        state=JobState.COMPLETED,
        priority=3,
        created_at=1.0,
        labels=labels,
    )
    return rerun_body(NO_SUBMISSIONS, job, spec, None, is_own=is_own)


def test_neither_the_deadline_nor_who_is_told_is_repeated() -> None:
    told = {"deadline": 1.0, "notify": ["slack:https://example.org/a"]}
    (body, _) = repeated({}, {"command": ["true"], **told})
    assert body == {"command": ["true"], "labels": {"rerun_of": "job_1"}}


def test_it_belongs_to_no_sweep_no_flow_and_no_schedule() -> None:
    own = {"team": "vision", "param.lr": "0.1"}
    names = (
        "schedule study study-part sweep sweep-id sweep-run flow flow-key flow-need-0"
    )
    groups = dict.fromkeys(names.split(), "x")
    (body, _) = repeated(own | groups, {"command": ["true"]})
    assert body["labels"] == {**own, "rerun_of": "job_1"}


@pytest.mark.parametrize("is_own", [True, False])
def test_who_repeats_a_job_of_others_gets_no_keys_of_theirs(is_own: bool) -> None:
    (body, notes) = repeated({}, SPEC, is_own=is_own)
    assert body["command"] == SPEC["command"]
    assert ("HF_TOKEN" in body["environment"]) is is_own
    assert body["environment"]["SEED"] == "7"
    note = "it lacks HF_TOKEN: their values are shown to nobody else"
    assert notes == ([] if is_own else [note])
