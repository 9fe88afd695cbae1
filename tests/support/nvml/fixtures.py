"""Pytest fixtures of the fake GPUs: a conftest imports them by name."""

from pathlib import Path

import pytest

from tests.support.nvml import FakeGpus, build


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fake NVML library, built once per session."""
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def fake_gpus(nvml_library: Path, tmp_path: Path) -> FakeGpus:
    """A fake host without GPUs yet."""
    return FakeGpus(tmp_path / "gpus.txt", nvml_library)
