"""Solvers as real processes: their orders, and what they said."""

import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuyard.verification.protocol import (
    AnswersPiece,
    Conversation,
    Hash,
    Message,
    SolverTask,
    parse_output,
)
from gpuyard.verification.solver.order import VERSION
from tests.support.verification import read_answers

SOLVER = Path(__file__).parents[3] / "src/gpuyard/verification/solver"
PROMPTS = [
    "What is a tide?",
    'Say "hi"\\',
    "Où est la gare ?",
    "数えて",
    "a b c",
    "Why?",
]


def order(**fields: Any) -> dict[str, Any]:
    """An order for the mock, whose seed is in it."""
    return {
        "version": VERSION,
        "check": "chk_1",
        "task": "solve",
        "prompts": PROMPTS,
        "settings": {"temperature": 0.5, "top_p": 0.8, "max_tokens": 16},
        "engine": {"kind": "mock"},
        "seed": 7,
        "stream": None,
        "claims": {},
        **fields,
    }


def start(
    python: Path | str = sys.executable,
    solver: Path = SOLVER,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:
    """A solver that waits for its order."""
    return subprocess.Popen(
        [str(python), "solve.py"],
        cwd=solver,
        env=environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def run(
    order: Mapping[str, Any] | str, timeout_s: float = 100, **options: Any
) -> tuple[int, str, str]:
    """Exit code, output and errors of a solver with this order."""
    text = order if isinstance(order, str) else json.dumps(order)
    solver = start(**options)
    try:
        output, errors = solver.communicate(text, timeout_s)
    finally:
        solver.kill()
        solver.wait()
    return solver.returncode, output, errors


def messages_in(output: str, task: SolverTask = SolverTask.SOLVE) -> list[Message]:
    """The messages, each of which must have come when it was due."""
    conversation = Conversation(task, seeded=True)
    found = [message for line in output.splitlines() if (message := parse_output(line))]
    return [conversation.take(message) for message in found]


def answers_in(output: str, prompts: Sequence[str] = PROMPTS) -> dict[str, str]:
    """The answers of a solver that has done its task."""
    said = messages_in(output)
    announced = next(message for message in said if isinstance(message, Hash))
    return read_answers(
        [piece for piece in said if isinstance(piece, AnswersPiece)],
        announced.sha256,
        prompts,
    )


def solved(order: Mapping[str, Any], **options: Any) -> dict[str, str]:
    """The answers that this order leads to."""
    code, output, errors = run(order, **options)
    assert code == 0, errors
    return answers_in(output, order["prompts"])


def digest(data: bytes) -> str:
    """As a solver announces it."""
    return hashlib.sha256(data).hexdigest()
