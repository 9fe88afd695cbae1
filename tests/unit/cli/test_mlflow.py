"""The program that runs MLflow on a node; a small web server stands for it."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gpuyard.cli import mlflow_program
from gpuyard.cli.mlflow import server_body
from gpuyard.domain.errors import InvalidInputError

# It says how it was started, and ends with the first request.
STAND_IN = """\
import sys
from http.server import HTTPServer, SimpleHTTPRequestHandler
print(*sys.argv[1:], flush=True)
port = int(sys.argv[sys.argv.index("--port") + 1])
server = HTTPServer(("127.0.0.1", port), SimpleHTTPRequestHandler)
server.handle_request()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run(work: Path, port: int) -> subprocess.CompletedProcess[str]:
    program = Path(mlflow_program.__file__).read_text()
    return subprocess.run(
        [sys.executable, "-", str(port), str(work / "kept")],
        input=program,
        env={**os.environ, "PYTHONPATH": str(work / "site")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_it_keeps_runs_and_artifacts_in_its_folder(tmp_path: Path) -> None:
    (tmp_path / "site" / "mlflow").mkdir(parents=True)
    (tmp_path / "site" / "mlflow" / "__init__.py").touch()
    (tmp_path / "site" / "mlflow" / "__main__.py").write_text(STAND_IN)
    port = free_port()
    done = run(tmp_path, port)
    assert done.returncode == 0, done.stderr
    started, listens = done.stdout.splitlines()
    assert listens == f"MLflow listens on port {port}"
    assert started.startswith(f"server --host 127.0.0.1 --port {port} ")
    assert f"sqlite:///{tmp_path}/kept/mlflow.db" in started
    assert (tmp_path / "kept").stat().st_mode & 0o077 == 0


def test_without_mlflow_or_on_a_taken_port_it_says_so(tmp_path: Path) -> None:
    done = run(tmp_path, free_port())
    assert (done.returncode, done.stdout) == (3, f"{sys.executable} has no mlflow\n")
    (tmp_path / "site" / "mlflow").mkdir(parents=True)
    (tmp_path / "site" / "mlflow" / "__init__.py").touch()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run(tmp_path, taken.getsockname()[1])
    assert done.returncode == 4
    assert "is in use: choose another with --node-port" in done.stdout


def test_its_folder_has_a_whole_path() -> None:
    assert server_body(5000, "~/kept", "d")["command"][-2:] == ["5000", "~/kept"]
    with pytest.raises(InvalidInputError, match="--folder: is kept"):
        server_body(5000, "kept", "d")
