"""Fake GPUs, and processes that look at them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.nvml import LIBRARY, FakeGpus
from tests.support.nvml.fixtures import fake_gpus, nvml_library
from tests.support.nvml.probe import Probe

__all__ = ["fake_gpus", "nvml_library"]


@pytest.fixture
def bin_dir(tmp_path: Path) -> Path:
    """The whole PATH of the probes: empty, so that this host's own nvidia-smi is never
    met.
    """
    path = tmp_path / "bin"
    path.mkdir()
    return path


@pytest.fixture
def start_probe(bin_dir: Path) -> Iterator[Callable[[dict[str, str]], Probe]]:
    """Starts a probe with more environment; the probes end with the test."""
    with ExitStack() as stack:
        yield lambda env: stack.enter_context(Probe(env, bin_dir))


@pytest.fixture
def probe(fake_gpus: FakeGpus, start_probe: Callable[[dict[str, str]], Probe]) -> Probe:
    """A probe on the fake host."""
    return start_probe(fake_gpus.env())


@pytest.fixture
def probe_without_nvml(
    tmp_path: Path, fake_gpus: FakeGpus, start_probe: Callable[[dict[str, str]], Probe]
) -> Probe:
    """A probe for which no NVML can be loaded, even on a host that has one: a broken
    file stands before it.
    """
    broken = tmp_path / "no-nvml" / LIBRARY
    broken.parent.mkdir()
    broken.touch()
    return start_probe(fake_gpus.env() | {"LD_LIBRARY_PATH": str(broken.parent)})
