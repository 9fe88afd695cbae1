"""An environment with PyTorch, Hugging Face's programs and DeepSpeed, built once (a
minute) and kept in the cache.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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
    imports = (
        "torch",
        "torch.distributed",
        "safetensors.torch",
        "transformers.generation.utils",
        "transformers.models.auto",
        "transformers.models.llama.modeling_llama",
    )
    return Path(start_fork_server(str(make_trainer_python()), imports, programs=True))


def make_trainer_python() -> Path:
    """The interpreter of the environment, which is made if it is not there."""
    cache = (
        Path(os.environ.get("GPUYARD_CACHE") or "~/.cache/gpuyard").expanduser()
        / "tests"
    )
    key = hashlib.sha256(repr((PACKAGES, sys.version_info[:2])).encode()).hexdigest()[
        :12
    ]
    folder = cache / f"trainer-{key}"
    done = cache / f"trainer-{key}.complete"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            subprocess.run(
                [folder / "bin/pip", "install", "-qq", *PACKAGES], check=True
            )
            done.touch()
    return folder / "bin" / "python"
