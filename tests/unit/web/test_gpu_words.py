"""What the page says of a GPU: its work, how far that is, and what is wrong."""

from typing import Any

import pytest

from tests.support.page_code import evaluate

NOW = 1000.0
PLAIN: dict[str, Any] = {
    "node": "desk",
    "index": 1,
    "state": "idle",
    "problem": None,
    "warnings": [],
    "job_id": None,
}
MODEL = {"models": ["qwen:72b"], "paired_with": [0], "since": 400.0}


def said(expression: str, **gpu: Any) -> Any:
    given = {"gpu": PLAIN | gpu, "now": NOW}
    return evaluate(["screens/gpu-words.ts"], expression, given)


@pytest.mark.parametrize(
    ("gpu", "work", "far"),
    [
        ({}, None, ""),
        (MODEL | {"idle_s": 90.0}, "qwen:72b (with GPU 0)", "idle for 1m30s"),
        (MODEL | {"idle_s": None}, "qwen:72b (with GPU 0)", "for 10m00s"),
        ({"models": ["a", "b"], "paired_with": []}, "a + b", ""),
        (MODEL | {"expected_at": 1012.0}, "qwen:72b (with GPU 0)", "ready in 12s"),
        ({"expected_at": 1030.0}, None, "ready in 30s"),
        ({"script": "train", "since": 990.0}, "train", "for 10s"),
        (
            {"script": "train", "since": 1.0, "progress": 0.456, "eta_s": 60.0},
            "train",
            "45 %, 1m00s left",
        ),
        ({"script": "train", "since": 995.0, "progress": 0}, "train", "0 %, for 5s"),
    ],
)
def test_a_tile_says_what_a_gpu_does_and_how_far_it_is(
    gpu: dict[str, Any], work: str | None, far: str
) -> None:
    found = said("[workOf(given.gpu), howFar(given.gpu, given.now)]", **gpu)
    assert found == [work, far]


def test_what_is_wrong_now_is_said_once() -> None:
    hot = PLAIN | {"warnings": ["is hot (91 °C)", "its memory is nearly full"]}
    lost = PLAIN | {"index": 2, "problem": "fell off the bus"}
    machines = [
        {"name": "desk", "disk": {"problem": "3 GB are free"}},
        {"name": "lab", "disk": {"problem": None}},
        {"name": "away", "disk": None},
    ]
    given = {"gpus": [hot, hot, PLAIN, lost], "machines": machines}
    expression = "alarmsOf(given.gpus, given.machines)"
    assert evaluate(["screens/gpu-words.ts"], expression, given) == [
        "GPU 1 of desk: is hot (91 °C); its memory is nearly full",
        "GPU 2 of desk: fell off the bus",
        "desk: 3 GB are free",
    ]
