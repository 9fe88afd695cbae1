"""Curves for trackers: a server that fails or hangs does not stop the training. A module
with the calls of MLflow that the templates use stands for it.
"""

import importlib
import socket
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from gpuyard import templates

SHARED = Path(templates.__file__).parent / "shared"
MLFLOW = """
import os, urllib.request
from types import SimpleNamespace
told = []
def start_run():
    if "MLFLOW_ASKS" in os.environ:
        urllib.request.urlopen(os.environ["MLFLOW_TRACKING_URI"])
    return SimpleNamespace(info=SimpleNamespace(run_id="r"))
def log_params(params):
    told.append(params)
def metric(name, value, at, step):
    return step, {name: value}
entities = SimpleNamespace(Metric=metric)
class MlflowClient:
    def log_batch(self, run_id, metrics):
        if metrics[0][1]["loss"] < 0:
            raise OSError("the server is gone")
        told.extend(metrics)
def end_run():
    told.append("end")
"""


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ModuleType]:
    (tmp_path / "mlflow.py").write_text(MLFLOW)
    monkeypatch.syspath_prepend(SHARED)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    yield importlib.import_module("report")
    for name in ("report", "mlflow"):
        sys.modules.pop(name, None)


def test_a_tracker_gets_every_step_in_order(report: ModuleType, tmp_path: Path) -> None:
    made = report.Report(Namespace(steps=2, out=tmp_path), first=1)
    made.step(1, {"loss": 0.5})
    made.step(2, {"loss": 0.25})
    made.close()
    steps = [(1, {"loss": 0.5}), (2, {"loss": 0.25})]
    params = {"steps": 2, "out": str(tmp_path)}
    assert sys.modules["mlflow"].told == [params, *steps, "end"]


def test_a_tracker_that_never_answers_does_not_stop_the_training(
    report: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MLFLOW_ASKS", "1")
    monkeypatch.setattr(report, "PATIENCE_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", url)
        made = report.Report(Namespace(steps=1, out=tmp_path), first=1)
        made.step(1, {"loss": 0.5})
        connection, _ = silent.accept()
        made.close()
        told = capsys.readouterr().out
        connection.close()
    assert "step 1/1 loss=0.5" in told
    assert "note: MLflow does not answer" in told


def test_a_tracker_that_fails_is_told_once(
    report: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = report.Report(Namespace(steps=2, out=tmp_path), first=1)
    made.step(1, {"loss": -1.0})
    made.step(2, {"loss": 0.5})
    made.close()
    assert (
        capsys.readouterr().out.count("note: no more MLflow: the server is gone") == 1
    )
