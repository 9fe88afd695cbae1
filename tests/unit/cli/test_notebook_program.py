"""The program that runs the cells of a notebook, without IPython."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuyard.cli import notebook_program
from gpuyard.cli.notebook_program import assignments
from gpuyard.cli.notebooks import notebook_command, notebook_fields
from gpuyard.domain.errors import InvalidInputError

Notebook = Callable[..., Path]
Done = subprocess.CompletedProcess[str]


def cell(*lines: str, tags: list[str] | None = None) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "metadata": {"tags": tags or []},
        "source": [f"{line}\n" for line in lines],
        "outputs": [{"output_type": "stream", "name": "stdout", "text": "old"}],
        "execution_count": 9,
    }


@pytest.fixture
def notebook(tmp_path: Path) -> Notebook:
    def write(*cells: dict[str, Any], **more: Any) -> Path:
        path = tmp_path / "train.ipynb"
        path.write_text(json.dumps({"nbformat": 4, "cells": cells, **more}))
        return path

    return write


def run(path: Path, *arguments: str) -> Done:
    """Run it as a job does: the program is its input. No IPython is found."""
    (path.parent / "IPython.py").write_text("raise ImportError")
    command = notebook_command([path.name, *arguments])
    return subprocess.run(
        [sys.executable, *command[1:]],
        cwd=path.parent,
        input=Path(notebook_program.__file__).read_text(),
        capture_output=True,
        text=True,
        check=False,
    )


def executed(path: Path) -> list[dict[str, Any]]:
    """The cells with code of the copy, with what they have shown."""
    found = json.loads((path.parent / "train.executed.ipynb").read_text())
    return [item for item in found["cells"] if item["cell_type"] == "code"]


def test_cells_share_their_variables_and_show_what_they_print(
    notebook: Notebook,
) -> None:
    path = notebook(
        {"cell_type": "markdown", "metadata": {}, "source": "# Training"},
        cell("import helper", "total = helper.add(1, 2)", "print('at once')"),
        cell(""),
        cell("total"),
    )
    (path.parent / "helper.py").write_text("def add(a, b): return a + b\n")
    before = path.read_text()
    done = run(path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "at once\n3\n"
    first, empty, last = executed(path)
    assert first["outputs"] == [
        {"output_type": "stream", "name": "stdout", "text": "at once\n"}
    ]
    assert (empty["outputs"], empty["execution_count"]) == ([], None)
    assert last["outputs"] == [
        {
            "output_type": "execute_result",
            "execution_count": 2,
            "data": {"text/plain": "3"},
            "metadata": {},
        }
    ]
    assert path.read_text() == before


def test_a_cell_that_fails_ends_the_run_and_is_in_the_copy(
    notebook: Notebook,
) -> None:
    path = notebook(
        cell("1 / 0", tags=["raises-exception"]),
        cell("raise ValueError('too large')"),
        cell("print('never')"),
    )
    done = run(path)
    assert done.returncode == 1
    assert "error: cell 2 of train.executed.ipynb has failed" in done.stdout
    assert "ValueError: too large" in done.stderr
    assert "never" not in done.stdout
    _, failed, never = executed(path)
    assert failed["outputs"][0]["ename"] == "ValueError"
    assert failed["outputs"][-1]["name"] == "stderr"
    assert never["execution_count"] is None


def test_arguments_set_parameters_and_are_those_of_the_program(
    notebook: Notebook,
) -> None:
    path = notebook(
        cell("lr = 1.0", "name = 'a'", tags=["parameters"]),
        cell("import sys", "print(lr, name, sys.argv)"),
    )
    done = run(path, "--lr", "0.1", "--name=b c")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "0.1 b c ['train.ipynb', '--lr', '0.1', '--name=b c']\n"
    words = ["--learning-rate", "0.1", "--flag", "--n=3", "x", "--not a name", "y"]
    assert assignments(words).splitlines() == [
        "learning_rate = 0.1",
        "flag = True",
        "n = 3",
    ]


def test_ipython_is_named_where_it_is_needed(notebook: Notebook) -> None:
    done = run(notebook(cell("%matplotlib inline")))
    assert done.returncode == 1
    assert "install ipython in the Python of the job" in done.stdout


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("not JSON", "train.ipynb is no notebook: it is no JSON"),
        ("[]", "is a notebook without cells"),
        ('{"cells": []}', "has no cells with code"),
        (
            '{"cells": [], "metadata": {"kernelspec": {"language": "R"}}}',
            "is written in R; only Python can be run",
        ),
    ],
)
def test_what_is_no_notebook_is_one_line(
    tmp_path: Path, content: str, said: str
) -> None:
    path = tmp_path / "train.ipynb"
    path.write_text(content)
    done = run(path)
    assert done.returncode == 2
    assert said in done.stdout
    assert len(done.stdout.splitlines()) == 1


def test_a_job_gets_the_program_and_keeps_the_copy(tmp_path: Path) -> None:
    (tmp_path / "a.ipynb").touch()
    fields = notebook_fields("a.ipynb", tmp_path, {"artifacts": ["out/*"]})
    assert fields["artifacts"] == ["out/*", "a.executed.ipynb"]
    assert fields["artifacts_always"]
    for given, said in (
        ({"stdin": "x"}, "--stdin: is given"),
        ({"interactive": True}, "--interactive: is given"),
    ):
        with pytest.raises(InvalidInputError, match=said):
            notebook_fields("a.ipynb", tmp_path, given)
    with pytest.raises(InvalidInputError, match="COMMAND: there is no"):
        notebook_fields("b.ipynb", tmp_path, {})
