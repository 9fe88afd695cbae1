"""An environment with PyTorch, Hugging Face's programs and DeepSpeed, built once (a
minute) and kept in the cache.
"""

from pathlib import Path

import pytest

from tests.support.environments import make_python
from tests.support.forkserver import start_fork_server

PACKAGES = (
    "torch==2.13.0",
    "transformers[serving]==5.23.0",
    "accelerate==1.15.0",
    "openai==3.54.0",
    "av==18.1.0",
    "sentence-transformers==6.2.0",
    "deepspeed==0.19.8",
)


@pytest.fixture(scope="session")
def trainer_python() -> Path:
    """Its interpreter."""
    return make_trainer_python()


@pytest.fixture(scope="session")
def fast_trainer_python() -> Path:
    """The same, with PyTorch imported: its scripts are forks of a fork server."""
    return make_fast_trainer_python()


def make_fast_trainer_python() -> Path:
    """A program that stands for the interpreter until this process ends."""
    imports = (
        "openai",
        "torch",
        "torch.distributed",
        "safetensors.torch",
        "transformers.cli.serve",
        "transformers.generation.utils",
        "transformers.models.auto",
        "transformers.models.llama.modeling_llama",
    )
    launchers = (
        "torch.distributed.run",
        "deepspeed.launcher.runner",
        "deepspeed.launcher.launch",
    )
    python = str(make_trainer_python())
    return Path(start_fork_server(python, imports, launchers, programs=True))


def make_trainer_python() -> Path:
    """The interpreter of the environment, which is made if it is not there."""
    return make_python("trainer", PACKAGES)
