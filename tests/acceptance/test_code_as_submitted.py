"""What runs is what was submitted: an edit while a job waits does not reach it."""

import asyncio
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuyard.client.aio import AsyncClient
from gpuyard.domain.errors import RefusedError
from tests.support.instance import TestInstance, make_instance

PROGRAM = (
    "import pathlib, helper\n"
    "pathlib.Path('out/result.txt').write_text(helper.WORD)\n"
    "pathlib.Path('new.txt').write_text(helper.WORD)\n"
    "print(helper.WORD, pathlib.Path('data.bin').read_text())\n"
)
Release = Callable[[], None]


@pytest.fixture(scope="module")
def instance() -> Iterator[TestInstance]:
    with make_instance() as made:
        made.home.create()
        script = made.work / "scripts" / "say.py"
        made.home.settings.write_text(
            f'[jobs]\ncode_files = 20\n[scripts.say]\nfile = "{script}"\ngpus = 0\n'
        )
        made.ok("up")
        yield made


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with a program, a module, data and a folder for output."""
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "helper.py").write_text("WORD = 'before'\n")
    (tmp_path / "data.bin").write_text("data")
    (tmp_path / "out").mkdir()
    (tmp_path / ".gitignore").write_text("out/\n*.bin\nnew.txt\n")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *words], check=True)
    return tmp_path


def held(instance: TestInstance, name: str) -> tuple[str, Release]:
    """A job that runs until it is released; others can wait for it."""
    go = instance.work / name
    command = ["sh", "-c", f"until test -e {go}; do sleep 0.05; done"]
    return instance.submit(command), go.touch


def test_a_job_that_waited_runs_the_code_as_submitted(
    instance: TestInstance, project: Path
) -> None:
    before, release = held(instance, "go-1")
    words = ["run", "-d", "--after", before, "--", "train.py"]
    job_id = instance.ok(*words, cwd=project).strip()
    (project / "helper.py").write_text("WORD = 'after'\n")
    shown = instance.ok("show", job_id)
    assert "changed since: helper.py" in shown
    release()
    assert instance.wait(job_id).state == "completed"
    assert instance.ok("logs", job_id) == "before data\n"
    assert (project / "out/result.txt").read_text() == "before"
    code = instance.json("show", job_id)["code"]
    assert (code["changed"], code["dirty"]) == (["helper.py"], False)
    folder = Path(code["folder"])
    assert (folder / "new.txt").read_text() == "before"
    assert not (project / "new.txt").exists()
    shown = instance.ok("show", job_id)
    assert f"commit {code['commit'][:7]}" in shown
    assert f"ran in {folder}" in shown


def test_the_python_clients_store_the_code_when_they_are_asked_to(
    instance: TestInstance, project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    before, release = held(instance, "go-sdk")
    command = ["python3", "train.py"]
    work = {"command": command, "workdir": str(project), "depends_on": [before]}

    async def awaited() -> str:
        async with AsyncClient(instance.address()) as client:
            return (await client.run(work, snapshot=True)).id

    with instance.client() as client:
        jobs = [client.run(work, snapshot=True).id, asyncio.run(awaited())]
        live = client.run(work).id
        (project / "helper.py").write_text("WORD = 'after'\n")
        large = tmp_path_factory.mktemp("large")
        for number in range(21):
            (large / f"{number}.py").touch()
        with pytest.raises(RefusedError, match="21 files of code"):
            client.run(["true"], workdir=str(large), snapshot=True)
    release()
    assert instance.wait(live).state == "completed"
    assert instance.ok("logs", live) == "after data\n"
    for job_id in jobs:
        assert instance.wait(job_id).state == "completed"
        assert instance.ok("logs", job_id) == "before data\n"


def test_a_module_on_the_pythonpath_is_as_submitted(
    instance: TestInstance, project: Path
) -> None:
    before, release = held(instance, "go-3")
    module = project / "lib" / "extra.py"
    module.parent.mkdir()
    module.write_text("WORD = 'before'\n")
    words = ["run", "-d", "--after", before, "--"]
    code = "import extra; print(extra.WORD)"
    shell = {"PYTHONPATH": str(module.parent)}
    job_id = instance.ok(*words, "python3", "-c", code, cwd=project, env=shell).strip()
    module.write_text("WORD = 'after'\n")
    release()
    instance.wait(job_id)
    assert instance.ok("logs", job_id) == "before\n"


@pytest.fixture
def script(instance: TestInstance) -> Path:
    """A registered script, which edits itself and dies at its first item."""
    file = instance.work / "scripts" / "say.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text(SCRIPT)
    return file


SCRIPT = """
import os, pathlib
WORD = "before"
def load(args):
    def run(args, folder, progress):
        name = pathlib.Path(args.get("path", "")).stem
        marker = pathlib.Path(args.get("live", "") + ".edited")
        if name == "crash" and not marker.exists():
            marker.touch()
            pathlib.Path(args["live"]).write_text(
                pathlib.Path(args["live"]).read_text().replace("before", "after")
            )
            os._exit(1)
        if name == "wrong" and WORD != "after":
            raise ValueError("it has to be mended")
        return WORD
    return run
"""


def test_a_script_runs_as_submitted(instance: TestInstance, script: Path) -> None:
    before, release = held(instance, "go-script")
    document = instance.work / "say.json"
    document.write_text(json.dumps({"script": "say", "depends_on": [before]}))
    job_id = instance.ok("submit", str(document)).strip()
    script.write_text(SCRIPT.replace("before", "after"))
    assert "changed since: say.py" in instance.ok("show", job_id)
    release()
    assert instance.wait(job_id).state == "completed"
    assert '"output": "before"' in instance.ok("logs", job_id)


def test_the_items_of_a_batch_run_the_script_as_submitted(
    instance: TestInstance, script: Path
) -> None:
    items = instance.work / "items"
    items.mkdir()
    for name in ("crash", "later", "wrong"):
        (items / f"{name}.txt").touch()
    words = ("batch", "submit", "say", str(items), "--arg", f"live={script}")
    instance.run(*words)
    (batch,) = instance.json("batch")["items"]
    shown = instance.json("batch", "show", batch["batch_id"])
    states = {Path(i["video_path"]).stem: i["status"] for i in shown["items"]}
    assert states == {"crash": "complete", "later": "complete", "wrong": "failed"}
    results = Path(shown["results"])
    for name in ("crash", "later"):
        (result,) = results.glob(f"*-{name}.json")
        assert json.loads(result.read_text())["output"] == "before"

    # Who mends a script and tries again means the script as it is now.
    assert "completed: 3/3" in instance.ok("batch", "retry", batch["batch_id"])
    (result,) = results.glob("*-wrong.json")
    assert json.loads(result.read_text())["output"] == "after"


def test_a_live_job_runs_the_code_of_its_start(
    instance: TestInstance, project: Path
) -> None:
    before, release = held(instance, "go-2")
    words = ["run", "-d", "--live", "--after", before, "--", "train.py"]
    ids = [instance.ok(*words, cwd=project).strip()]
    (project / "job.toml").write_text(
        f'command = ["python3", "train.py"]\nlive = true\ndepends_on = ["{before}"]\n'
    )
    ids.append(instance.ok("submit", str(project / "job.toml")).strip())
    (project / "helper.py").write_text("WORD = 'after'\n")
    release()
    for job_id in ids:
        instance.wait(job_id)
        assert instance.ok("logs", job_id) == "after data\n"
    assert "as it is when the job starts" in instance.ok("show", ids[0])


def test_a_resumed_job_runs_the_code_of_the_resume(
    instance: TestInstance, project: Path
) -> None:
    (project / "helper.py").write_text("raise SystemExit(3)\n")
    done = instance.run("run", "--name", "mended", "--", "train.py", cwd=project)
    assert done.returncode == 3
    (project / "helper.py").write_text("WORD = 'mended'\n")
    instance.ok("resume", "mended")
    assert instance.wait("mended").state == "completed"
    assert (project / "out/result.txt").read_text() == "mended"


def test_an_unchanged_folder_is_where_the_job_works(
    instance: TestInstance, project: Path
) -> None:
    done = instance.run("run", "--name", "plain", "--", "train.py", cwd=project)
    assert done.returncode == 0
    assert "note" not in done.stderr
    assert (project / "new.txt").read_text() == "before"
    code = instance.json("show", "plain")["code"]
    assert (code["changed"], code["folder"]) == ([], None)


def test_a_folder_with_too_much_code_is_told(
    instance: TestInstance, tmp_path: Path
) -> None:
    for number in range(21):
        (tmp_path / f"{number}.py").touch()
    done = instance.run("run", "--", "true", cwd=tmp_path)
    assert done.returncode == 0
    assert "note: the job runs the code as it is when it starts" in done.stderr
    assert "21 files of code" in done.stderr
    assert "--live" in done.stderr
