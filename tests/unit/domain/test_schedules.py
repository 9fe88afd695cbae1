"""What a schedule may be."""

from typing import Any

import pytest

from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.schedules import ScheduleChanges, ScheduleSpec
from gpuyard.domain.validation import parse_model

JOB = {"command": ["true"]}


def test_what_is_left_out_has_the_defaults_of_the_guide() -> None:
    spec = parse_model(ScheduleSpec, {"cron": " @daily ", "job": JOB})
    assert (spec.cron, spec.timezone, spec.overlap) == ("@daily", "UTC", "skip")
    assert spec.starting_deadline_s == 3600


@pytest.mark.parametrize(
    ("fields", "field", "fault"),
    [
        ({"cron": "0 25 * * *"}, "cron", "its hour is '25'"),
        ({"cron": "* * */20 * 1L"}, "cron", "never comes"),
        ({"timezone": "Berlin"}, "timezone", "there is no time zone 'Berlin'"),
        ({"overlap": "forbid"}, "overlap", "is 'forbid'"),
        ({"starting_deadline_s": "5s"}, "starting_deadline_s", "is '5s'"),
        ({"job": {}}, "job.command", "is missing"),
        ({"job": {**JOB, "timeout": 3}}, "job.timeout", "is not a field"),
        (
            {"job": {**JOB, "idempotency_key": "a"}},
            "job.idempotency_key",
            "would make all of its jobs one",
        ),
        (
            {"job": {**JOB, "labels": {"schedule": "a"}}},
            "job.labels.schedule",
            "is set by gpuyard",
        ),
    ],
)
def test_a_fault_names_its_field(
    fields: dict[str, Any], field: str, fault: str
) -> None:
    with pytest.raises(InvalidInputError) as raised:
        parse_model(ScheduleSpec, {"cron": "@daily", "job": JOB, **fields})
    (found,) = raised.value.faults
    assert found.field == field
    assert fault in found.fault
    assert found.remedy


def test_changes_must_change_something() -> None:
    with pytest.raises(InvalidInputError, match="changes nothing"):
        parse_model(ScheduleChanges, {})
    changes = parse_model(ScheduleChanges, {"cron": "@hourly", "state": "paused"})
    assert changes.changes() == {"cron": "@hourly", "state": "paused"}
