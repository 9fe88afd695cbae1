"""Whether a place of `gpuyard dev` is used."""

import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gpuyard.cli import dev_place
from tests.support.wait import wait_until


@pytest.fixture(autouse=True)
def attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUYARD_ATTEMPT_ID", f"attempt_{uuid.uuid4().hex}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@contextmanager
def program(code: str) -> Iterator[int]:
    """A program of the attempt; its pid."""
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", code]) as process:
        yield process.pid
        process.kill()


def test_only_a_program_that_works_uses_the_place() -> None:
    with program("import time; time.sleep(600)") as pid:
        wait_until(lambda: dev_place.pids_of_attempt() == [pid])
        usage = dev_place.PlaceUse()
        # Its own start may still count.
        wait_until(lambda: not usage.used())
        with program("while True: pass"):
            wait_until(usage.used)


@pytest.mark.parametrize(
    ("said", "busy"),
    [
        ("GPU-a, 0, 3\nGPU-b, 1, 90\n", False),
        ("GPU-a, 0, 90\nGPU-b, 1, 0\n", True),
        ("GPU-a, 0, [N/A]\n", False),
        ("", False),
    ],
)
def test_a_gpu_of_its_own_that_works_uses_the_place(
    said: str, busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a")
    assert dev_place.busy_gpus(said) == (["GPU-a"] if busy else [])
