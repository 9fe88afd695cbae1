"""Which event files are an attempt's, and how they are read while they grow."""

import os
import shutil
import time
from pathlib import Path

import pytest

from gpuyard.insight import scalar_files
from gpuyard.insight.event_files import Scalar
from gpuyard.insight.scalar_files import ScalarReader
from gpuyard.node.logged_scalars import scalar_reader

FILES = Path(__file__).parents[1] / "insight" / "event_files"
OWN = os.getpid()
NOW = int(time.time())


def event_file(folder: Path, begun: int, writer: str = f".{OWN}.0") -> Path:
    """A file that this process has begun, or another one."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"events.out.tfevents.{begun}.host{writer}"
    shutil.copy(FILES / "tensorboardX", file)
    return file


def reader(folder: Path, **options: int) -> ScalarReader:
    return scalar_reader(folder, NOW, lambda: {OWN}, **options)


def test_the_files_that_its_processes_have_begun_are_read(tmp_path: Path) -> None:
    event_file(tmp_path / "runs" / "now", NOW + 1)
    event_file(tmp_path / "runs" / "before", NOW - 60)
    event_file(tmp_path / "runs" / "of-others", NOW + 1, ".1.0")
    event_file(tmp_path / "runs" / "of-nobody", NOW + 1, "")
    event_file(tmp_path / ".git", NOW + 1)
    (tmp_path / "link").symlink_to(tmp_path / "runs" / "now")
    reading = reader(tmp_path)
    found = reading.look()
    assert found
    assert [(p.name, p.n, p.step) for p in found.points] == [
        ("tensorboard/train/loss", step, step) for step in range(4)
    ]
    assert (found.step, found.metrics) == (3, {"tensorboard/train/loss": 0.125})
    assert reading.look(last=True) is None


def test_a_file_without_a_process_in_its_name_counts_while_one_writes_it(
    tmp_path: Path,
) -> None:
    file = event_file(tmp_path, NOW + 1, "")
    reading = reader(tmp_path)
    assert reading.look() is None
    with file.open("ab"):
        found = reading.look()
    assert found
    assert len(found.points) == 4


def test_what_is_new_is_read_once_and_a_new_agent_finds_the_same(
    tmp_path: Path,
) -> None:
    file = event_file(tmp_path, NOW + 1)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    reading = reader(tmp_path)
    first = reading.look()
    file.write_bytes(whole)
    second = reading.look()
    again = reader(tmp_path).look()
    assert first
    assert second
    assert again
    assert first.points + second.points == again.points


def test_what_is_no_event_file_or_not_ones_own_is_left_alone(tmp_path: Path) -> None:
    file = event_file(tmp_path, NOW + 1)
    assert reader(tmp_path, owner=os.getuid() + 1).look() is None
    file.write_text("nothing that one could read")
    assert reader(tmp_path).look() is None


@pytest.mark.parametrize("kind", ["pipe", "folder", "link"])
def test_what_only_has_such_a_name_is_left_alone(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"events.out.tfevents.{NOW + 1}.host.{OWN}.0"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(FILES / "tensorboardX")
    assert reader(tmp_path).look() is None


def test_the_run_that_a_process_keeps_for_wandb_is_read(tmp_path: Path) -> None:
    for run in ("mine", "of-others"):
        folder = tmp_path / "wandb" / f"offline-run-{run}"
        folder.mkdir(parents=True)
        shutil.copy(FILES / "wandb", folder / f"run-{run}.wandb")
    with (tmp_path / "wandb" / "offline-run-mine" / "run-mine.wandb").open("ab"):
        found = reader(tmp_path).look()
    assert found
    assert found.step == 3
    assert found.metrics == {"wandb/loss": 0.125, "wandb/train.acc": 1.0}


def test_names_that_a_program_makes_up_fill_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scalar_files, "MAX_NAMES", 2)
    reading = reader(tmp_path)
    scalars = [Scalar(f"tag{number}", 0, 1.0, 1.0) for number in range(9)]
    names = [point.name for point in reading._points("runs/events.1", scalars)]
    assert names == ["tensorboard/tag0", "tensorboard/tag1"]
    assert len(reading._known) == 2
