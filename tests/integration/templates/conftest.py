"""The nanogpt template written out, and runs of its program in the environment that its
own launcher makes.
"""

import json
import os
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuyard import templates
from tests.support.nanogpt import fast_torch_python as fast_python_with_torch
from tests.support.nanogpt import torch_python
from tests.support.wait import wait_until

# A step takes a few milliseconds with these, and starting Python with PyTorch a few
# seconds.
SMALL = [
    "--batch-size",
    "2",
    "--block-size",
    "16",
    "--eval-every",
    "1000000",
    "--log-every",
    "1",
]


class Run:
    """A running training program, its output in a file."""

    def __init__(self, command: list[str], env: dict[str, str], output: Path) -> None:
        self._output = output
        self._ended, lives = os.pipe()
        with output.open("wb") as file:
            self.process = subprocess.Popen(
                command,
                env=env,
                cwd=output.parent,
                stdout=file,
                stderr=subprocess.STDOUT,
                pass_fds=[lives],
            )
        os.close(lives)

    @property
    def output(self) -> str:
        return self._output.read_text()

    def wait_for(self, text: str, times: int = 1) -> None:
        """Until the output has `text` so many times; AssertionError with the output
        where the program ends before.
        """

        def printed() -> bool:
            ended = self.process.poll() is not None
            if self.output.count(text) >= times:
                return True
            assert not ended, self.output
            return False

        wait_until(printed, what=f"{text!r}, {times} times")

    def wait(self) -> int:
        return self.process.wait(timeout=60)

    def kill(self) -> None:
        """`kill -9`; returns when the program is gone, which for a fork is a moment
        after the process that stands for it.
        """
        self.process.kill()
        self.wait()
        assert os.read(self._ended, 1) == b""

    def close(self) -> None:
        """Let go of its pipe."""
        os.close(self._ended)

    @property
    def losses(self) -> dict[int, float]:
        """The loss of each step that was reported, to the last bit."""
        metrics = [
            json.loads(line.split(" ", 1)[1])
            for line in self.output.splitlines()
            if "GPUYARD_METRIC" in line
        ]
        return {metric["step"]: metric["loss"] for metric in metrics}


Train = Callable[..., Run]


@pytest.fixture(scope="session")
def nanogpt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The template as a researcher gets it."""
    folder = tmp_path_factory.mktemp("templates") / "nanogpt"
    templates.write("nanogpt", folder)
    return folder


@pytest.fixture(scope="session")
def fast_torch_python(nanogpt: Path) -> str:
    """The launcher's Python, with PyTorch imported: its scripts are forks."""
    return fast_python_with_torch(torch_python(nanogpt))


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small text with something to learn in it: words of few letters."""
    words = random.Random(1).choices(
        ["one", "two", "three", "four", "five", "six"], k=3000
    )
    path = tmp_path_factory.mktemp("text") / "words.txt"
    path.write_text(" ".join(words))
    return path


@pytest.fixture
def train(
    nanogpt: Path, fast_torch_python: str, text: Path, tmp_path: Path
) -> Iterator[Train]:
    """Starts `train.py` on the small text with more arguments and environment; ends
    with the test what it started.
    """
    runs: list[Run] = []

    def start(*arguments: str, **env: str) -> Run:
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("GPUYARD_")
        }
        clean |= {
            "OMP_NUM_THREADS": "1",
            "GPUYARD_JOB_ID": "job_1",
            "GPUYARD_CACHE": str(tmp_path / "cache"),
            **env,
        }
        command = [
            fast_torch_python,
            str(nanogpt / "train.py"),
            "--data",
            str(text),
            "--device",
            "cpu",
            *SMALL,
            *arguments,
        ]
        runs.append(Run(command, clean, tmp_path / f"output-{len(runs)}.txt"))
        return runs[-1]

    yield start
    for run in runs:
        run.kill()
        run.close()
