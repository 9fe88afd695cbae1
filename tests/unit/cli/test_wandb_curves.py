"""The curves of a job, as they are sent to W&B."""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuyard.cli.wandb_curves import document_of, send_curves
from gpuyard.domain.errors import InvalidInputError, RefusedError
from gpuyard.insight.tracker_links import TrackerLink

PAGE = "https://wandb.ai/lab/gpt/runs/a1b2c3d4"
SERIES = {
    "loss": [
        {"step": 1, "value": 4.0, "at": 101.0},
        {"step": 2, "value": 2.0, "at": 102.0},
    ],
    "system/memory_mb": [{"step": None, "value": 8.0, "at": 101.0}],
    "wandb/loss": [{"step": 1, "value": 4.0, "at": 101.0}],
}
# It writes down what it is given, and says what the run has had before.
FAKE = """
import json, os, pathlib
class Run:
    summary = json.loads(os.environ["SUMMARY"])
    def __init__(self, **given): self.said = [given]
    def define_metric(self, name, step_metric): self.said.append([name, step_metric])
    def log(self, row): self.said.append(row)
    def finish(self): pathlib.Path(os.environ["SAID"]).write_text(json.dumps(self.said))
init = Run
"""


def job(**fields: Any) -> Any:
    known = {"name": "train", "id": "job_1", "started_at": 100.0, "created_at": 90.0}
    state = SimpleNamespace(terminal=True)
    spec = {"workdir": "/home/ann/gpt"}
    return SimpleNamespace(**{**known, "state": state, "spec": spec, **fields})


def test_each_curve_has_its_axis_and_rows_go_by_time() -> None:
    document = document_of(job(), [], SERIES)
    assert document["axes"] == {
        "gpuyard/loss": "gpuyard/step",
        "gpuyard/system/memory_mb": "gpuyard/seconds",
    }
    assert document["rows"] == [
        {"gpuyard/seconds": 1.0, "gpuyard/system/memory_mb": 8.0},
        {"gpuyard/seconds": 1.0, "gpuyard/step": 1, "gpuyard/loss": 4.0},
        {"gpuyard/seconds": 2.0, "gpuyard/step": 2, "gpuyard/loss": 2.0},
    ]


def test_they_go_into_the_run_of_the_job_or_into_one_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    link = TrackerLink("wandb", "a1b2c3d4", PAGE)
    known = {"entity": "lab", "project": "gpt", "id": "a1b2c3d4", "resume": "must"}
    assert document_of(job(), [link], SERIES)["run"] == known
    own = {"project": "gpt", "name": "train", "id": "job_1", "resume": "allow"}
    other = TrackerLink("wandb", "b", PAGE.replace("a1b2c3d4", "b"))
    for links in ([], [link, other], [TrackerLink("mlflow", "a", "http://a/#/x")]):
        assert document_of(job(), links, SERIES)["run"] == own
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    assert document_of(job(), [], SERIES)["run"]["project"] == "mine"


@pytest.mark.parametrize(("summary", "rows"), [({}, 3), ({"gpuyard/seconds": 1.0}, 1)])
def test_a_program_with_wandb_sends_what_was_not_sent(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    summary: dict[str, float],
    rows: int,
) -> None:
    (tmp_path / "wandb.py").write_text(FAKE)
    (tmp_path / "python3").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("SUMMARY", json.dumps(summary))
    monkeypatch.setenv("SAID", str(tmp_path / "said"))
    handle: Any = SimpleNamespace(info=job(), metrics=lambda points: SERIES)
    assert send_curves(handle, []) == 2
    run, *said = json.loads((tmp_path / "said").read_text())
    assert run["id"] == "job_1"
    assert said[0] == ["gpuyard/loss", "gpuyard/step"]
    assert [row for row in said if isinstance(row, dict)] == document_of(
        job(), [], SERIES
    )["rows"][-rows:]


def test_what_cannot_be_sent_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python3"
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/nowhere")

    def sent(leaves: int, series: Any = SERIES, **fields: Any) -> None:
        python.write_text(f"#!/bin/sh\nexit {leaves}\n")
        python.chmod(0o755)
        handle: Any = SimpleNamespace(info=job(**fields), metrics=lambda points: series)
        send_curves(handle, [])

    with pytest.raises(InvalidInputError, match="--send-curves: needs wandb"):
        sent(90)
    with pytest.raises(RefusedError, match="wandb left with 3"):
        sent(3)
    with pytest.raises(RefusedError, match="has no curves that W&B does not have"):
        sent(0, {"wandb/loss": SERIES["wandb/loss"]})
    with pytest.raises(RefusedError, match="train is not over"):
        sent(0, state=SimpleNamespace(terminal=False))
