"""A real Hugging Face Trainer, unmodified, in a folder of its own: progress, series, checkpoints that are folders."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.support.yard import TestYard

PROGRAM = Path(__file__).parents[1] / "programs" / "huggingface"
PACKAGES = ("torch==2.13.0", "transformers==5.23.0", "accelerate==1.15.0")


@pytest.fixture(scope="session")
def trainer_python() -> Path:
    """The interpreter of an environment with the Trainer; built once (about a minute) and kept in the cache."""
    cache = Path(os.environ.get("GPUYARD_CACHE") or "~/.cache/gpuyard").expanduser() / "tests"
    key = hashlib.sha256(repr((PACKAGES, sys.version_info[:2])).encode()).hexdigest()[:12]
    folder, done = cache / f"trainer-{key}", cache / f"trainer-{key}.complete"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            subprocess.run([folder / "bin/pip", "install", "-q", *PACKAGES], check=True)
            done.touch()
    return folder / "bin" / "python"


@pytest.mark.timeout(500)
def test_a_trainer_run_shows_progress_series_and_checkpoints(yard: TestYard, trainer_python: Path) -> None:
    shutil.copytree(PROGRAM, yard.work, dirs_exist_ok=True)
    done = yard.run(
        "run", "--name", "trainer", "--env", "OMP_NUM_THREADS=1", "--checkpoint", "out/checkpoint-*", "--",
        str(trainer_python), "train.py", timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    job = yard.json("show", "trainer")
    assert (job["progress"]["step"], job["progress"]["total"], job["progress"]["epoch"]) == (100, 100, 2)
    with yard.client() as client:
        handle = client.job("trainer")
        series = handle.metrics()
        saved = handle.checkpoints()
        target = client.download(saved[-1], yard.work)
    assert len(series["loss"]) == 20
    assert series["loss"][-1]["value"] < series["loss"][0]["value"]
    assert len(series["eval_loss"]) == 2
    assert [item.step for item in saved] == sorted(item.step or 0 for item in saved)
    assert (saved[-1].path, saved[-1].directory) == ("out/checkpoint-100", True)
    with tarfile.open(target) as archive:
        assert "model.safetensors" in archive.getnames()
