"""The solver's processes: errors are told, and nothing stays behind.

They run in a program of its own, since the solver ends every process that becomes its
child.
"""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import run_program

FOLDER = Path(__file__).parents[3] / "src/gpuyard/verification"
PROGRAM = """
import json, os, subprocess, sys
from solver.engines import EngineError
from solver.processes import SolverProcess, SolverProcessError

def echoes(talk):
    talk.send(os.getpid())
    talk.send(talk.receive())

def lacks_a_model(talk):
    raise EngineError("engine.model: none")

def raises(talk):
    raise ValueError("too much")

def is_killed(talk):
    os.kill(os.getpid(), 9)

def leaves_processes(talk):
    # Its child is not waited for, and has a child and a session of its own.
    program = (
        "import subprocess; null = subprocess.DEVNULL;"
        " print(subprocess.Popen(['sleep', '1000'], stdout=null, stderr=null).pid)"
    )
    child = ["setsid", sys.executable, "-c", program]
    talk.send(int(subprocess.run(child, stdout=subprocess.PIPE).stdout))

def what_is_told(work):
    try:
        with SolverProcess(work) as worker:
            worker.receive()
    except (EngineError, SolverProcessError) as error:
        return [type(error).__name__, str(error)]

def echo():
    with SolverProcess(echoes) as worker:
        another = worker.receive() != os.getpid()
        worker.send("words")
        return [another, worker.receive()]

def left_behind():
    with SolverProcess(echoes) as other, SolverProcess(leaves_processes) as worker:
        other.receive()
        left = worker.receive()
        worker.end()
        return [os.path.exists(f"/proc/{left}"), other._process.is_alive()]

print(json.dumps(EXPRESSION))
"""


def evaluate(expression: str) -> Any:
    """What the program finds."""
    program = PROGRAM.replace("EXPRESSION", expression)
    return json.loads(run_program([sys.executable, "-c", program], cwd=FOLDER).stdout)


def test_work_is_done_in_another_process() -> None:
    assert evaluate("echo()") == [True, "words"]


@pytest.mark.parametrize(
    ("work", "told"),
    [
        ("lacks_a_model", ["EngineError", "engine.model: none"]),
        ("raises", ["SolverProcessError", "ValueError: too much"]),
        ("is_killed", ["SolverProcessError", "a process ended with exit code -9"]),
    ],
)
def test_how_work_fails_is_told(work: str, told: list[str]) -> None:
    assert evaluate(f"what_is_told({work})") == told


def test_what_an_engine_leaves_behind_is_ended_and_no_other_process() -> None:
    assert evaluate("left_behind()") == [False, True]
