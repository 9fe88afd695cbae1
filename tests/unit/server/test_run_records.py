"""The job that repeats another one."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuyard.domain.jobspec import JobKind
from gpuyard.server.run_records import rerun_body

SPEC = {
    "command": ["python3", "train.py"],
    "environment": {"SEED": "7", "HF_TOKEN": "abc"},
}


@pytest.mark.parametrize("is_own", [True, False])
def test_who_repeats_a_job_of_others_gets_no_keys_of_theirs(is_own: bool) -> None:
    job = SimpleNamespace(kind=JobKind.COMMAND, array_id=None, labels={}, id="job_1")
    given = cast("Any", job)
    (body, notes) = rerun_body(cast("Any", None), given, SPEC, is_own=is_own)
    assert body["command"] == SPEC["command"]
    assert ("HF_TOKEN" in body["environment"]) is is_own
    assert body["environment"]["SEED"] == "7"
    note = "it lacks HF_TOKEN: their values are shown to nobody else"
    assert notes == ([] if is_own else [note])
