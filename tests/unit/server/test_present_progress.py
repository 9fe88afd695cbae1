"""What an agent tells of a job may be anything."""

from typing import Any

import pytest

from gpuyard.domain.jobs import Progress
from gpuyard.server.present import present_progress

PAGE = {"tracker": "wandb", "run": "a1", "url": "https://wandb.ai/lab/gpt/runs/a1"}


def test_pages_of_trackers_are_shown() -> None:
    progress = present_progress({"step": 3, "links": [PAGE], "later": 1})
    assert (progress.step, progress.links[0].url) == (3, PAGE["url"])


@pytest.mark.parametrize(
    "told",
    [
        {"step": "many"},
        {"links": "x"},
        {"links": [{**PAGE, "url": "javascript:alert(1)"}]},
        {"links": [{**PAGE, "url": "https://x/\x1b[2J"}]},
        {"links": [{**PAGE, "run": "a\nb"}]},
        {"links": [PAGE] * 21},
    ],
)
def test_what_makes_no_sense_is_left_out(told: dict[str, Any]) -> None:
    assert present_progress(told) == Progress()
