"""What tests on a real NVIDIA GPU need. They are left out where there is none.

The programs run with the interpreter `GPUYARD_GPU_PYTHON`, which has PyTorch and
transformers; by default that of the tests.
"""

import os
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from pynvml import NVMLError

from gpuyard.devices.gpu import GpuReading, SourceFailedError, SourceMissingError
from gpuyard.devices.nvml import read_gpus
from tests.support.instance import TestInstance, make_instance
from tests.support.wait import wait_until

PROGRAMS = Path(__file__).parents[1] / "programs" / "gpu"


def gpus() -> list[GpuReading]:
    """The GPUs of this machine that can be read."""
    try:
        found = read_gpus()
    except (NVMLError, SourceFailedError, SourceMissingError):
        return []
    return [gpu for gpu in found if isinstance(gpu, GpuReading)]


collect_ignore_glob = [] if gpus() else ["test_*.py"]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tell a failure at once: a rented machine may be gone before the last test."""
    report = yield
    if report.failed:
        terminal = item.config.get_terminal_writer()
        terminal.line()
        report.toterminal(terminal)
        terminal.flush()
    return report


@pytest.fixture(scope="session")
def gpu_python() -> str:
    """An interpreter whose PyTorch uses the GPU."""
    python = os.environ.get("GPUYARD_GPU_PYTHON", sys.executable)
    check = "import torch, transformers; assert torch.cuda.is_available()"
    done = subprocess.run(
        [python, "-c", check], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"GPUYARD_GPU_PYTHON: {python}: {done.stderr}"
    return python


@pytest.fixture
def gpu_instance() -> Iterator[TestInstance]:
    """An instance that knows the GPUs."""
    with make_instance(
        GPUYARD_NODE__DISCOVERY_S="0.5", GPUYARD_NODE__USAGE_S="0.5"
    ) as instance:
        instance.ok("up")
        wait_until(lambda: instance.json("gpus")["items"], what="the GPUs")
        yield instance


@pytest.fixture(scope="session")
def model_folder(gpu_python: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of 0.3 billion random weights."""
    folder = tmp_path_factory.mktemp("model")
    program = PROGRAMS.parent / "tinymodel" / "make.py"
    text = PROGRAMS.parents[2] / "README.md"
    size = ["--width", "2048", "--layers", "8"]
    subprocess.run([gpu_python, program, folder, text, *size], check=True)
    return folder
