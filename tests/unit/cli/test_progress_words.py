"""How far a job is, in a few words."""

import pytest

from gpuyard.cli.output import progress_words
from gpuyard.domain.jobs import Progress


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ({"lr": 0.1, "loss": 0.5, "acc": 0.25}, ["loss 0.5"]),
        ({"lr": 0.1, "reward": 19.5, "acc": 1, "n": 2}, ["reward 19.5", "acc 1"]),
        ({"value": 0.5, "best_value": 0.75, "n": 3}, ["value 0.5", "best_value 0.75"]),
        ({}, []),
    ],
)
def test_a_job_without_a_loss_shows_what_else_it_has(
    metrics: dict[str, float], words: list[str]
) -> None:
    assert progress_words(Progress(metrics=metrics)) == words
