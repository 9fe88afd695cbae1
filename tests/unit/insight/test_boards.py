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
from gpuyard.insight.boards import board_body, board_project, python_of

STAND_IN = """\
import sys
from http.server import HTTPServer, SimpleHTTPRequestHandler
port = int(sys.argv[sys.argv.index("--port") + 1])
HTTPServer(("127.0.0.1", port), SimpleHTTPRequestHandler).serve_forever()
"""


def a_job(**changes: Any) -> Any:
    """One that has run on a node of ours."""
    fields = {
        "name": "a",
        "id": "job_000001",
        "spec": {"workdir": "/work"},
        "started_at": 1.0,
        "ended_at": 2.0,
        "provider": "local",
        "project": None,
        "code": None,
    }
    return cast("Any", SimpleNamespace(**fields | changes))


def body_of(
    *jobs: Any, environment: dict[str, str] | None = None, **workspaces: str
) -> dict[str, Any]:
    given = environment or {}
    return board_body(jobs, 60, given, "/home/ann", workspaces=workspaces)


def shown(*jobs: Any, **workspaces: str) -> list[tuple[str, str]]:
    """The labels and folders that the program gets."""
    words = body_of(*jobs, **workspaces)["command"][4:]
    return list(zip(words[::4], words[1::4], strict=True))


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


def test_only_files_of_the_job_itself_are_shown(tmp_path: Path) -> None:
    work = tmp_path / "work"
    shown = event_file(work, 1_000_000_100)
    os.mkfifo(work / "events.out.tfevents.1000000101.pipe")
    secret = event_file(tmp_path / "elsewhere", 1_000_000_102)
    (work / secret.name).symlink_to(secret)
    job = ShownJob("a", str(work), "1000000000", "")
    assert job.event_files() == [shown]


def test_a_board_goes_on_when_a_file_becomes_a_folder(tmp_path: Path) -> None:
    """What was linked is the folder of a job now: nothing is made there."""
    file = event_file(tmp_path / "work", 1_000_000_100)
    job = ShownJob("a", str(tmp_path / "work"), "1000000000", "")
    board = tmp_path / "board"
    assert link_new([job], board) == 1
    file.unlink()
    event_file(file, 1_000_000_200)
    event_file(file / "below", 1_000_000_200)
    later = event_file(tmp_path / "work" / "later", 1_000_000_300)
    assert link_new([job], board) == 1
    assert (board / "a" / "later" / later.name).resolve() == later
    assert not [path for path in file.rglob("*") if path.is_symlink()]


def test_a_job_shows_so_many_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upper = event_file(tmp_path, 1_000_000_100)
    lower = event_file(tmp_path / "a", 1_000_000_100)
    job = ShownJob("a", str(tmp_path), "1000000000", "")
    assert job.event_files() == [upper, lower]
    monkeypatch.setattr(board_program, "MOST_FILES", 1)
    assert job.event_files() == [upper]
    monkeypatch.setattr(board_program, "MOST_NAMES", 0)
    assert job.event_files() == []


def test_a_look_leaves_a_trace() -> None:
    own = os.geteuid()
    with socket.create_server(("127.0.0.1", 0)) as server:
        (host, port) = server.getsockname()
        assert not was_used(port)
        assert is_open(port, own)
        assert not is_open(port, own + 1), "another account has it"
        with socket.create_connection((host, port)) as browser:
            taken, _ = server.accept()
            assert was_used(port)
            taken.close()
            assert browser.recv(1) == b""
    assert was_used(port)  # a moment ago
    assert not is_open(port, own)


def with_stand_in(site: Path) -> None:
    (site / "tensorboard").mkdir()
    (site / "tensorboard" / "__init__.py").touch()
    (site / "tensorboard" / "main.py").write_text(STAND_IN)


def start(site: Path, idle: str, *folders: Path) -> "subprocess.Popen[str]":
    """It works in a folder of its own below `site`."""
    words = [sys.executable, board_program.__file__, idle]
    for folder in folders:
        words += [folder.name, str(folder), "0", ""]
    own = site / "own"
    own.mkdir()
    return subprocess.Popen(
        words,
        env={**os.environ, "PYTHONPATH": str(site)},
        cwd=own,
        stdout=subprocess.PIPE,
        text=True,
    )


def run(site: Path, idle: str, *folders: Path) -> tuple[int, list[str]]:
    """Its exit code, and what it says."""
    process = start(site, idle, *folders)
    said, _ = process.communicate(timeout=60)
    return process.returncode, said.splitlines()


def test_it_ends_when_nobody_looks(tmp_path: Path) -> None:
    with_stand_in(tmp_path)
    (tmp_path / "work").mkdir()
    gone = tmp_path / "gone"
    code, (missing, none, listens, last) = run(tmp_path, "0.1", tmp_path / "work", gone)
    assert code == 0
    assert missing == f"{gone} is not on this node, or your account may not read it"
    assert none == "These jobs have written no event files yet."
    assert listens.startswith("TensorBoard listens on port ")
    assert last == "nobody looked at it: it ends"


def test_without_a_folder_here_it_does_not_start(tmp_path: Path) -> None:
    with_stand_in(tmp_path)
    code, (said,) = run(tmp_path, "0.1", tmp_path / "gone")
    assert (code, "is not on this node" in said) == (4, True)


def test_it_leaves_nothing_behind_when_it_is_cancelled(tmp_path: Path) -> None:
    with_stand_in(tmp_path)
    event_file(tmp_path / "work", 1_000_000_100)
    process = start(tmp_path, "600", tmp_path / "work")
    try:
        assert process.stdout
        assert process.stdout.readline().startswith("TensorBoard listens on port ")
        assert [path.name[:14] for path in (tmp_path / "own").iterdir()] == [
            "gpuyard-board-"
        ]
        process.terminate()
        assert process.wait(timeout=60) == 143
    finally:
        process.kill()
        process.communicate()
    assert list((tmp_path / "own").iterdir()) == []


def test_without_tensorboard_it_says_so(tmp_path: Path) -> None:
    code, (said,) = run(tmp_path, "1", tmp_path)
    assert code == 3
    assert "has no tensorboard: pip install tensorboard" in said


def test_nothing_is_imported_from_the_folder_of_a_job(tmp_path: Path) -> None:
    for name in ("tempfile.py", "sitecustomize.py"):
        (tmp_path / name).write_text("raise SystemExit(99)")
    job = a_job(spec={"workdir": str(tmp_path)})
    body = body_of(job, environment={"PYTHONPATH": ":/x"})
    assert body["workdir"] is None, "it begins in a folder of its own"
    command = [sys.executable, *body["command"][1:]]
    done = subprocess.run(
        command,
        input=body["stdin"],
        env=body["environment"],
        cwd=tmp_path,
        text=True,
        check=False,
    )
    assert done.returncode == 3  # there is no tensorboard


def test_folders_are_found_as_where_the_job_ran() -> None:
    given = {
        "PATH": ".venv/bin:/bin:",
        "PYTHONPATH": "src::/site",
        "LD_LIBRARY_PATH": ":",
        "LANG": "C",
    }
    body = body_of(a_job(), environment=given)
    assert body["environment"] == {
        "PATH": "/home/ann/.venv/bin:/bin",
        "PYTHONPATH": "/home/ann/src:/site",
        "LD_LIBRARY_PATH": "",
        "LANG": "C",
    }


def test_the_job_names_each_run() -> None:
    second = a_job(name="b", id="job_000002", started_at=3.0, ended_at=None)
    body = body_of(a_job(), second)
    assert body["command"] == [
        *("python3", "-c", body["command"][2], "60"),
        *("a-000001", "/work", "1.0", "2.0"),
        *("b-000002", "/work", "3.0", ""),
    ]
    second.started_at = None
    with pytest.raises(RefusedError, match="b has not begun"):
        body_of(second)


def test_a_container_here_has_the_folder_of_its_job() -> None:
    spec = {"workdir": "/work", "image": "x", "workspace": "runs"}
    boxed = a_job(spec=spec, provider="docker", project="p/q")
    workspaces = {"p%2Fq/runs": "/kept/runs", "default/runs": "/kept/others"}
    assert shown(boxed, **workspaces) == [
        ("a-000001", "/work"),
        ("a-000001/workspace", "/kept/runs"),
    ]


@pytest.mark.parametrize("provider", ["kubernetes", "aws", "mine"])
def test_a_container_elsewhere_is_named_with_what_to_do(provider: str) -> None:
    """Its folder there may have the path of another one here."""
    spec = {"workdir": "/work", "image": "x"}
    with pytest.raises(RefusedError, match=f"ran on {provider}, and no node") as error:
        body_of(a_job(spec=spec, provider=provider))
    assert "gpuyard run --artifacts" in error.value.remedy
    # Its workspace comes back here.
    job = a_job(spec={**spec, "workspace": "runs"}, provider=provider)
    assert shown(job, **{"default/runs": "/kept"}) == [("a-000001/workspace", "/kept")]


def test_a_job_on_a_rented_machine_has_no_folder_here() -> None:
    with pytest.raises(RefusedError, match="ran on aws"):
        body_of(a_job(provider="aws"))
    with pytest.raises(RefusedError, match="has no working folder"):
        body_of(a_job(spec={"image": "x"}, provider="docker"))


def test_code_as_submitted_may_have_a_folder_of_its_own() -> None:
    job = a_job(code=SimpleNamespace(folder="/home/code"))
    assert shown(job) == [("a-000001", "/work"), ("a-000001", "/home/code")]


def test_a_board_is_of_the_project_of_its_jobs() -> None:
    first = a_job(project="open")
    second = a_job(project="hidden")

    def project_of(*jobs: Any, submits: bool = True) -> str | None:
        return board_project(jobs, {"hidden", "secret"}, lambda _: submits)

    assert project_of(a_job()) is None
    assert project_of(first) == "open"
    assert project_of(first, submits=False) is None
    # Others would see what is of the private one.
    assert project_of(first, second) == "hidden"
    assert project_of(second, submits=False) == "hidden"
    with pytest.raises(RefusedError, match="projects hidden, secret"):
        project_of(second, a_job(project="secret"))


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
    spec = {"command": command, "workdir": "/work"}
    assert python_of(spec) == python
    # That of a container is in its image.
    assert python_of({**spec, "image": "x"}) == "python3"


def test_no_name_says_what_the_program_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "a\nTensorBoard listens on port 7\n"
    event_file(tmp_path / "work" / name, 1_000_000_100)
    jobs = [
        ShownJob("a", str(tmp_path / "work"), "1000000050", ""),
        ShownJob("b", str(tmp_path / name), "1000000050", ""),
    ]
    assert link_new(jobs, tmp_path / "board") == 0
    assert board_program.missing(jobs) == jobs[1:]
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{tmp_path}/a TensorBoard listens on port 7 ")
