"""Seeds of the simulation keep every promise, and a seed is always the same world."""

import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest

from tests.simulation.run import run

pytestmark = pytest.mark.timeout(300)
SEEDS = int(os.environ.get("GPUYARD_SEEDS", "20"))


def simulate(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.simulation", *words]
    running = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said, errors = running.communicate(timeout=280)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)  # its workers as well
    return subprocess.CompletedProcess(command, running.returncode, said, errors)


@pytest.mark.slow
def test_every_promise_holds_whatever_is_killed_cut_lost_or_full():
    done = simulate("--seeds", f"0:{SEEDS}")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_models_prompts_and_batches_keep_every_promise_too():
    """All of them end, and no GPU is idle while somebody waits for it."""
    done = simulate("--models", "--seeds", f"0:{max(SEEDS // 4, 1)}")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_seed_is_the_same_world_each_time_and_another_seed_another():
    first = run(7)
    other = run(8)
    assert first.trace != other.trace
    assert len(first.trace) > 20
    assert run(7).trace == first.trace


def test_a_product_that_is_broken_in_any_of_these_ways_is_found_out():
    """Each mutant of the product (mutants.py) breaks a promise within 300 seeds."""
    done = simulate("--mutants", "--seeds", "0:300")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "TypeError" not in done.stdout, (
        f"a mutant does not fit the product any more: {done.stdout}"
    )


def test_the_command_shows_the_trace_of_a_seed():
    done = simulate("--seed", "7", "--trace")
    assert done.returncode == 0, done.stderr
    assert "server of epoch 1 is ready" in done.stdout
