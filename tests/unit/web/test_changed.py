"""What the page sends when somebody changes a job or an array that was submitted."""

from typing import Any

import pytest

from gpuyard.server.routers.arrays import UpdateArrayRequest
from gpuyard.server.routers.jobs import ResumeRequest, UpdateRequest
from tests.support.page_code import evaluate

# 2098-12-01 18:00 in Berlin.
DEADLINE = 4068291600.0
JOB: dict[str, Any] = {
    "name": "train",
    "priority": 3,
    "deadline": DEADLINE,
    "spec": {"timeout_s": 3600},
}
ARRAY: dict[str, Any] = {"name": "seeds", "priority": 3, "at_most": 4, "spec": {}}


def sent(known: dict[str, Any], typed: dict[str, str]) -> dict[str, Any]:
    given = {"known": known, "typed": typed}
    before = "shownOf(given.known)"
    after = f"{{...{before}, ...given.typed}}"
    expression = f"changesOf({before}, {after})"
    return evaluate(["screens/changed.ts"], expression, given, "Europe/Berlin")


@pytest.mark.parametrize(
    ("typed", "changes"),
    [
        ({"name": " twin "}, {"name": "twin"}),
        ({"priority": "5"}, {"priority": 5}),
        ({"timeout": "2h"}, {"timeout_s": "2h"}),
        ({"deadline": "2098-12-01 19:00"}, {"deadline": DEADLINE + 3600}),
        ({"deadline": "8h"}, {"deadline": "8h"}),
        ({"deadline": ""}, {"deadline": None}),
    ],
)
def test_only_what_differs_of_a_job_is_sent(
    typed: dict[str, str], changes: dict[str, Any]
) -> None:
    found = sent(JOB, typed)
    assert found == changes
    assert UpdateRequest.model_validate(found).changes().keys() == changes.keys()


@pytest.mark.parametrize(
    ("typed", "changes"),
    [
        ({"atMost": "2"}, {"at_most": 2}),
        ({"atMost": ""}, {"at_most": None}),
        ({"priority": "1", "deadline": "8h"}, {"priority": 1, "deadline": "8h"}),
    ],
)
def test_only_what_differs_of_an_array_is_sent(
    typed: dict[str, str], changes: dict[str, Any]
) -> None:
    found = sent(ARRAY, typed)
    assert found == changes
    changed = UpdateArrayRequest.model_validate(found).changes()
    assert changed.keys() == changes.keys()


def test_nothing_is_sent_of_a_form_that_nobody_changed() -> None:
    assert sent(JOB, {}) == sent(ARRAY, {}) == {}


def test_a_job_is_resumed_with_what_was_typed_only() -> None:
    typed = {"timeout": " 2h ", "deadline": "", "gpus": "A100:8", "priority": "5"}
    late = {"timeout": "", "deadline": "8h", "gpus": "", "priority": ""}
    expression = "given.map(resumedWith)"
    found, later = evaluate(["screens/changed.ts"], expression, [typed, late])
    assert found == {"timeout_s": "2h", "gpus": "A100:8", "priority": 5}
    assert later == {"deadline": "8h"}
    changes = ResumeRequest.model_validate(found).changes()
    assert changes["timeout_s"] == 7200 and changes["gpus"]["count"] == 8
