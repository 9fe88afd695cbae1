"""Cells of a notebook as jobs: a shell of IPython in this process, a real server."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import ExecutionResult, InteractiveShell
from traitlets.config import Config

from gpuyard.cli import notebook_program
from gpuyard.cli.notebooks import notebook_command
from tests.support.instance import TestInstance, gpuyard

GUIDE = Path(__file__).parents[2] / "docs/guides/notebooks.md"


class Notebook:
    """A notebook in the work folder of an instance; `run` runs a cell of it."""

    def __init__(self, instance: TestInstance) -> None:
        self.instance = instance
        InteractiveShell.clear_instance()
        quiet = Config({"HistoryManager": {"enabled": False}})
        self.shell = InteractiveShell.instance(config=quiet)
        self.shell.display_pub = CapturingDisplayPublisher()

    def run(self, cell: str) -> ExecutionResult:
        return self.shell.run_cell(cell)

    def job(self, cell: str) -> Any:
        """The job that a cell returns."""
        done = self.run(cell)
        assert done.success, done.error_in_exec
        return done.result

    def refusal(self, cell: str) -> str:
        """What is wrong with a cell that fails."""
        return str(self.run(cell).error_in_exec)

    @property
    def pages(self) -> list[tuple[str, bool]]:
        """The HTML that was shown, and whether in the place of an earlier one."""
        outputs = self.shell.display_pub.outputs
        return [
            (output["data"]["text/html"], output.get("update", False))
            for output in outputs
            if "text/html" in output["data"]
        ]


@pytest.fixture
def notebook(
    shared_instance: TestInstance, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Notebook]:
    instance = shared_instance
    for name, value in instance.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("GPUYARD_URL", raising=False)
    monkeypatch.chdir(instance.work)
    # A fork that starts at once.
    monkeypatch.setattr("gpuyard.notebook.command.COMMAND", gpuyard())
    monkeypatch.setenv("IPYTHONDIR", str(instance.work.parent / "ipython"))
    notebook = Notebook(instance)
    assert notebook.run("%load_ext gpuyard").success
    yield notebook
    InteractiveShell.clear_instance()


def test_a_cell_is_a_job_with_output_and_curves(
    notebook: Notebook, capsys: pytest.CaptureFixture[str]
) -> None:
    (notebook.instance.work / "helper.py").write_text("STEPS = 3\n")
    job = notebook.job(
        "%%gpuyard --name curve --cpus 1\n"
        "from helper import STEPS\n"
        "for step in range(1, STEPS + 1):\n"
        "    print(f'step {step}/3 loss={1 / step}')\n"
    )
    assert (job.info.name, job.state, job.info.progress.step) == (
        "curve",
        "completed",
        3,
    )
    assert job.info.spec["resources"]["cpus"] == 1
    assert capsys.readouterr().out.splitlines()[:3] == [
        f"step {step}/3 loss={1 / step}" for step in (1, 2, 3)
    ]
    (last, updated) = notebook.pages[-1]
    assert updated == (len(notebook.pages) > 1)
    assert "completed · step 3 of 3" in last
    assert "<h2>loss</h2>" in last
    # A front end that shows no HTML gets letters.
    notebook.shell.display_formatter.active_types = ["text/plain"]
    shown = len(notebook.pages)
    notebook.job("%%gpuyard\nfor step in (1, 2): print('step', step, 'loss', step)")
    assert len(notebook.pages) == shown
    assert "│" in capsys.readouterr().out


def test_a_cell_that_fails_is_an_error_and_none_that_is_no_job(
    notebook: Notebook,
) -> None:
    failed = notebook.run("%%gpuyard\nraise SystemExit(3)").error_in_exec
    assert failed.job.info.exit_code == 3
    assert "failed · exit code 3" in str(failed)
    for cell, words in (
        ("%%gpuyard\n  \n", "cell: is empty"),
        ("%%gpuyard\nx = 1\n!pip install x", "line 2: is a command of IPython: !pip"),
        ("%%gpuyard\nx = = 1", "line 1: is not valid Python: invalid syntax"),
        ("%%gpuyard --gpus many\nprint(1)", "no GPU class 'many'"),
        ("%gpuyard show 'nothing", "no closing quotation"),
        ("%gpuyard show nothing", "gpuyard show nothing left with 3"),
    ):
        assert words in notebook.refusal(cell)


def test_a_cell_that_is_stopped_leaves_its_job_alone(
    notebook: Notebook, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("gpuyard.notebook.magics.follow", interrupt)
    job = notebook.job("%%gpuyard\nimport time; time.sleep(600)")
    assert not job.refresh().state.terminal
    assert job.cancel().state.terminal or job.wait(60).state == "cancelled"


def test_every_cell_of_the_guide_runs(notebook: Notebook) -> None:
    cells = re.findall(r"```ipython\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert cells
    for cell in cells:
        done = notebook.run(cell)
        assert done.success, cell


def test_a_whole_notebook_may_use_ipython_and_keeps_pictures(tmp_path: Path) -> None:
    lines = ["%env PICTURE=dot", "from IPython.display import Image, display"]
    lines += ["display(Image(data=b'dots', format='png'))", "!echo $PICTURE", "40 + 2"]
    source = "\n".join(lines)
    cells = [{"cell_type": "code", "metadata": {}, "source": source}]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells}))
    program = Path(notebook_program.__file__).read_text()
    done = subprocess.run(
        [sys.executable, *notebook_command(["a.ipynb"])[1:]],
        cwd=tmp_path,
        env={**os.environ, "IPYTHONDIR": str(tmp_path / "ipython")},
        input=program,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "dot" in done.stdout.splitlines()
    assert done.stdout.endswith("42\n")
    (cell,) = json.loads((tmp_path / "a.executed.ipynb").read_text())["cells"]
    shown = {kind: item for item in cell["outputs"] for kind in item.get("data", {})}
    assert shown["image/png"]["data"]["image/png"].strip() == "ZG90cw=="
    assert shown["text/plain"]["data"]["text/plain"] == "42"
