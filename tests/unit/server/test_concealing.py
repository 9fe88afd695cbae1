"""What takes hidden jobs and projects out of texts, whatever they are called."""

from collections.abc import Iterable
from typing import Any, cast

import pytest

from gpuyard.controller.access import Visibility
from gpuyard.ledger.queries import Queries
from gpuyard.server.concealing import conceal

HIDDEN = f"job_{1:032x}"
OPEN = f"job_{2:032x}"


class Jobs:
    """Answers as the ledger would: one job of a hidden project, and one of none."""

    def __init__(self, name: str) -> None:
        self._name = name

    def projects_of_jobs(self, job_ids: Iterable[str]) -> dict[str, str | None]:
        known = {HIDDEN: "hush", OPEN: None}
        return {job_id: known[job_id] for job_id in job_ids if job_id in known}

    def jobs_by_id(self, job_ids: Iterable[str]) -> dict[str, Any]:
        return {job_id: {"name": self._name} for job_id in job_ids if job_id == HIDDEN}


def told(text: str, name: str = "train") -> str:
    """The text as somebody reads it for whom the project hush does not exist."""
    queries = cast(Queries, Jobs(name))
    return conceal(queries, Visibility("ben", frozenset({"hush"})), text)


@pytest.mark.parametrize(
    "name", ["train", "eval (fold 2)", "a; b", "two\nlines", "job of hush"]
)
def test_a_hidden_job_has_no_name(name: str) -> None:
    text = f"1 GPU is kept for job {name} ({HIDDEN}), which needs more"
    kept = "1 GPU is kept for a job of others, which needs more"
    assert told(text, name) == kept
    # It may have got another name since.
    assert told(text, "later") == kept


def test_a_job_that_may_be_seen_keeps_its_name() -> None:
    text = f"it waits for job open ({OPEN})"
    assert told(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("2 GPUs are reserved for project hush until then", "for others until then"),
        ("ana in project hush is before it", "others is before it"),
        ("for project hush-money until then", "for project hush-money until then"),
    ],
)
def test_a_hidden_project_has_no_name(text: str, shown: str) -> None:
    assert shown in told(text)
