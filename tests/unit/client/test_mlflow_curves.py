"""Curves of a server of MLflow: a small server that answers as it does stands for it.
`tests/acceptance/test_trackers.py` reads from a real one.
"""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from gpuyard.client.mlflow_curves import MlflowServer, joined, runs_on, thinned
from gpuyard.domain.errors import UnreachableError

# By run and metric, the steps and values of each page.
RUNS: dict[str, dict[str, list[list[tuple[int, Any]]]]] = {
    "first": {"loss": [[(1, 4.0), (2, 3.0)], [(3, 2.5)]], "lr": [[(1, 0.1)]]},
    "second": {"loss": [[(3, 2.0), (4, "NaN")]], "acc": [[(4, "NaN")]]},
}


class Handler(BaseHTTPRequestHandler):
    """Answers what is asked about RUNS."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        wanted = {name: values[0] for name, values in parse_qs(url.query).items()}
        run = RUNS[wanted["run_id"]]
        answer: dict[str, Any] = {
            "run": {"data": {"metrics": [{"key": k} for k in run]}}
        }
        if url.path.endswith("get-history"):
            pages = run[wanted["metric_key"]]
            number = int(wanted.get("page_token", "0"))
            points = [
                {"step": str(step), "value": value, "timestamp": "1000"}
                for step, value in pages[number]
            ]
            answer = {"metrics": points}
            if number + 1 < len(pages):
                answer["next_page_token"] = str(number + 1)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())

    def log_message(self, *_words: Any) -> None:
        pass


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def pairs(points: list[dict[str, Any]]) -> list[tuple[int, float]]:
    return [(point["step"], point["value"]) for point in points]


def test_the_runs_of_all_attempts_are_one_curve(url: str) -> None:
    found = MlflowServer(url).curves(["first", "second"])
    assert pairs(found["mlflow/loss"]) == [(1, 4.0), (2, 3.0), (3, 2.0)]
    assert found["mlflow/lr"] == [{"step": 1, "value": 0.1, "at": 1.0}]
    assert "mlflow/acc" not in found, "it has no finite value"
    assert MlflowServer(url).curves(["first"], ["mlflow/lr"]).keys() == {"mlflow/lr"}


def test_only_pages_of_the_named_server_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://lab:5000/")
    server = MlflowServer.named()
    assert server
    pages = [
        ("a", "http://lab:5000/#/experiments/1/runs/a"),
        ("b", "http://lab:5000.evil.example/#/experiments/1/runs/b"),
        ("c", "http://elsewhere/#/experiments/1/runs/c"),
    ]
    assert runs_on(server, pages) == ["a"]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    assert MlflowServer.named() is None


def test_a_server_that_does_not_answer_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(UnreachableError, match=r"MLflow at http://127\.0\.0\.1:1: "):
        MlflowServer("http://127.0.0.1:1").curves(["first"])


def test_extremes_stay_when_points_are_left_out() -> None:
    points = [{"step": step, "value": 0.0, "at": 0.0} for step in range(10_000)]
    points[4321]["value"] = 9.0
    points[8765]["value"] = -9.0
    kept = thinned(points, 100)
    assert len(kept) <= 101
    assert {9.0, -9.0} <= {point["value"] for point in kept}
    assert kept[-1] == points[-1]
    assert [point["step"] for point in kept] == sorted({p["step"] for p in kept})
    assert joined(points, []) == points
