"""The program that runs TensorBoard on a node; a small web server stands for it."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuyard.domain.errors import RefusedError
from gpuyard.insight import board_program
from gpuyard.insight.board_program import ShownJob, is_open, link_new, was_used
from gpuyard.insight.boards import board_body, python_of

STAND_IN = """\
import sys
from http.server import HTTPServer, SimpleHTTPRequestHandler
port = int(sys.argv[sys.argv.index("--port") + 1])
HTTPServer(("127.0.0.1", port), SimpleHTTPRequestHandler).serve_forever()
"""


def event_file(folder: Path, at: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"events.out.tfevents.{at}.host.1.0"
    file.touch()
    return file


def test_a_job_has_the_event_files_that_it_has_begun(tmp_path: Path) -> None:
    work = tmp_path / "work"
    first = event_file(work / "out" / "run", 1_000_000_100)
    second = event_file(work / "out" / "run", 1_000_000_300)
    event_file(work / ".venv" / "lib", 1_000_000_100)
    jobs = [
        ShownJob("a", str(work), "1000000050.5", "1000000200"),
        ShownJob("b", str(work), "1000000250", ""),
    ]
    board = tmp_path / "board"
    assert link_new(jobs, board) == 2
    links = {p.relative_to(board): p.resolve() for p in board.rglob("events*")}
    assert links == {
        Path("a/out/run", first.name): first,
        Path("b/out/run", second.name): second,
    }
    event_file(work / "late", 1_000_000_400)
    assert link_new(jobs, board) == 3


def test_a_look_leaves_a_trace() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        (host, port) = server.getsockname()
        assert not was_used(port)
        assert is_open(port)
        with socket.create_connection((host, port)) as browser:
            taken, _ = server.accept()
            assert was_used(port)
            taken.close()
            assert browser.recv(1) == b""
    assert was_used(port)  # a moment ago
    assert not is_open(port)


def run(site: Path, idle: str, work: Path) -> subprocess.CompletedProcess[str]:
    program = Path(board_program.__file__).read_text()
    words = [sys.executable, "-", idle, "a", str(work), "0", ""]
    return subprocess.run(
        words,
        input=program,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_it_ends_when_nobody_looks(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").mkdir()
    (tmp_path / "tensorboard" / "__init__.py").touch()
    (tmp_path / "tensorboard" / "main.py").write_text(STAND_IN)
    done = run(tmp_path, "0.1", tmp_path / "work")
    assert done.returncode == 0, done.stderr
    (none, listens, last) = done.stdout.splitlines()
    assert none == "These jobs have written no event files yet."
    assert listens.startswith("TensorBoard listens on port ")
    assert last == "nobody looked at it: it ends"


def test_without_tensorboard_it_says_so(tmp_path: Path) -> None:
    done = run(tmp_path, "1", tmp_path)
    assert done.returncode == 3
    assert "has no tensorboard: pip install tensorboard" in done.stdout


def test_nothing_is_imported_from_the_folder_of_a_job(tmp_path: Path) -> None:
    (tmp_path / "tempfile.py").write_text("raise SystemExit(99)")
    spec = {"workdir": str(tmp_path)}
    job = SimpleNamespace(
        name="a", id="job_000001", spec=spec, started_at=1.0, ended_at=2.0
    )
    body = board_body(cast("Any", [job]), 60, {})
    command = [sys.executable, *body["command"][1:]]
    done = subprocess.run(
        command, input=body["stdin"], cwd=tmp_path, text=True, check=False
    )
    assert done.returncode == 3  # there is no tensorboard


def test_the_job_names_each_run() -> None:
    spec = {"workdir": "/work"}
    first = SimpleNamespace(
        name="a", id="job_000001", spec=spec, started_at=1.0, ended_at=2.0
    )
    second = SimpleNamespace(
        name="b", id="job_000002", spec=spec, started_at=3.0, ended_at=None
    )
    body = board_body(cast("Any", [first, second]), 60, {"PATH": "/bin"})
    assert body["environment"] == {"PATH": "/bin"}
    assert body["command"] == [
        *("python3", "-c", body["command"][2], "60"),
        *("a-000001", "/work", "1.0", "2.0"),
        *("b-000002", "/work", "3.0", ""),
    ]
    second.started_at = None
    with pytest.raises(RefusedError, match="b has not begun"):
        board_body(cast("Any", [second]), 60, {})
    first.spec = {"workdir": "/work", "image": "x"}
    with pytest.raises(RefusedError, match="it runs in a container"):
        board_body(cast("Any", [first]), 60, {})


@pytest.mark.parametrize(
    ("command", "python"),
    [
        (["/opt/env/bin/python3.12", "train.py"], "/opt/env/bin/python3.12"),
        ([".venv/bin/python", "train.py"], "/work/.venv/bin/python"),
        (["python", "train.py"], "python3"),
        (["./train"], "python3"),
        ([], "python3"),
    ],
)
def test_tensorboard_is_that_of_the_python_of_the_job(
    command: list[str], python: str
) -> None:
    assert python_of({"command": command, "workdir": "/work"}) == python
