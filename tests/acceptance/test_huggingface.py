"""A real Hugging Face Trainer, unmodified, in a folder of its own: progress, series,
checkpoints that are folders.
"""

import shutil
import tarfile
from pathlib import Path

import pytest

from tests.support import huggingface
from tests.support.instance import TestInstance

PROGRAM = Path(__file__).parents[1] / "programs" / "huggingface"
fast_trainer_python = huggingface.fast_trainer_python


@pytest.mark.timeout(500)
def test_a_trainer_run_shows_progress_series_and_checkpoints(
    instance: TestInstance, fast_trainer_python: Path
) -> None:
    shutil.copytree(PROGRAM, instance.work, dirs_exist_ok=True)
    done = instance.run(
        "run",
        "--name",
        "trainer",
        "--env",
        "OMP_NUM_THREADS=1",
        "--checkpoint",
        "out/checkpoint-*",
        "--",
        str(fast_trainer_python),
        "train.py",
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    job = instance.json("show", "trainer")
    assert (
        job["progress"]["step"],
        job["progress"]["total"],
        job["progress"]["epoch"],
    ) == (100, 100, 2)
    with instance.client() as client:
        handle = client.job("trainer")
        series = handle.metrics()
        saved = handle.checkpoints()
        target = client.download(saved[-1], instance.work)
    assert len(series["loss"]) == 20
    assert series["loss"][-1]["value"] < series["loss"][0]["value"]
    assert len(series["eval_loss"]) == 2
    assert [item.step for item in saved] == sorted(item.step or 0 for item in saved)
    assert (saved[-1].path, saved[-1].directory) == ("out/checkpoint-100", True)
    with tarfile.open(target) as archive:
        assert "model.safetensors" in archive.getnames()
