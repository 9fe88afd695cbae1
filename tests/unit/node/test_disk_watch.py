"""What a job takes of the disk: its log, its checkpoints, and what it wrote."""

import os
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpuyard.domain import wire, wire_frames
from gpuyard.domain.wire_types import DiskUser
from gpuyard.insight.usage_points import UsageSampler
from gpuyard.node import disk_watch
from gpuyard.node.disk_watch import DiskWatch, JobFiles

MIB = 1 << 20


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def watch(home: Path) -> DiskWatch:
    return DiskWatch(home, 30.0, list, lambda _: None)


def write(path: Path, size: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(os.urandom(size))
    with path.open("rb") as file:
        os.fsync(file)  # only then are the blocks counted
    return path


def job(attempt_id: str, folder: Path, log: Path, **more) -> JobFiles:
    fields = {"began_at": time.time() - 10, **more}
    return JobFiles(attempt_id, log, (folder,), **fields)


def test_who_takes_most_comes_first(home: Path, tmp_path: Path) -> None:
    log = write(home / "a.log", MIB)
    write(tmp_path / "b" / "deep" / "er" / "model.pt", 2 * MIB)
    found = watch(home).look(
        [
            job("a", tmp_path / "nothing", log),
            job("b", tmp_path / "b", home / "no.log"),
            job("c", tmp_path / "nothing", home / "no.log", stored=5 * MIB),
        ],
        time.time(),
    )
    assert [(user.attempt_id, user.used, user.log) for user in found.users] == [
        ("c", 5 * MIB, 0),
        ("b", 2 * MIB, 0),
        ("a", MIB, MIB),
    ]
    assert found.folder == str(home)
    assert 0 < found.free < found.total


def test_what_each_job_takes_is_a_curve_of_its_own(home: Path) -> None:
    used: dict[str, int] = {}
    files = job(
        "a",
        home / "nothing",
        write(home / "a.log", 2 * MIB),
        note=partial(used.__setitem__, "a"),
    )
    usage = SimpleNamespace(cpu_s=0.0, rss_mb=1.0)
    process = cast("Any", SimpleNamespace(usage=lambda: usage))
    sampler = UsageSampler(process, [], list, 0.0, 1.0, partial(used.get, "a"))

    def curves(at: float) -> dict[str, float]:
        return {point.name: point.value for point in sampler.sample(at)}

    assert curves(1.0) == {"system/memory_mb": 1.0}
    watch(home).look([files], time.time())
    assert curves(2.0)["system/disk_mb"] == 2.0


def test_how_fast_it_grows(home: Path, tmp_path: Path) -> None:
    """First evenly since it began, then since the last look."""
    looked = watch(home)
    files = job("a", tmp_path / "a", write(home / "a.log", MIB))
    (first,) = looked.look([files], files.began_at + 10).users
    assert first.growth == pytest.approx(MIB / 10, rel=0.01)
    (second,) = looked.look([files], files.began_at + 11).users
    assert second.growth == 0


def test_what_was_there_before_it_began_is_not_its_own(
    home: Path, tmp_path: Path
) -> None:
    write(tmp_path / "work" / "data.bin", MIB)
    files = job("a", tmp_path / "work", home / "no.log", began_at=time.time() + 60)
    (user,) = watch(home).look([files], time.time() + 70).users
    assert user.used == 0


def test_a_file_in_a_shared_folder_belongs_to_who_writes_it(
    home: Path, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    write(work / "by-nobody-known", MIB)
    looked = watch(home)
    jobs = [
        job("idle", work, home / "no.log"),
        job("writer", work, home / "no.log", pids=lambda: [os.getpid()]),
    ]
    with write(work / "growing", 2 * MIB).open("ab"):
        first = looked.look(jobs, time.time()).users
    # It stays its own when it was closed.
    second = looked.look(jobs, time.time()).users
    for users in (first, second):
        assert [(user.attempt_id, user.used) for user in users] == [
            ("writer", 3 * MIB),
            ("idle", MIB),
        ]


def test_neither_links_nor_the_home_itself_are_followed(
    home: Path, tmp_path: Path
) -> None:
    write(home / "ledger.db", MIB)
    write(tmp_path / "elsewhere" / "data.bin", MIB)
    (tmp_path / "work").mkdir()
    home.rename(tmp_path / "work" / "home")
    (tmp_path / "work" / "link").symlink_to(tmp_path / "elsewhere")
    inside = tmp_path / "work" / "home"
    files = job("a", tmp_path / "work", inside / "no.log")
    (user,) = watch(inside).look([files], time.time()).users
    assert user.used == 0


def test_of_a_folder_with_very_many_files_only_the_first_are_looked_at(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_watch, "_MOST_ENTRIES", 2)
    for folder in ("one", "one/two", "one/two/three"):
        write(tmp_path / "work" / folder / "file", MIB)
    files = job("a", tmp_path / "work", home / "no.log")
    (user,) = watch(home).look([files], time.time()).users
    assert 0 < user.used < 3 * MIB


def test_what_is_told_can_be_read_by_a_server() -> None:
    told = wire.DiskStatus("/home", 10, 1, [DiskUser("a", 5, 2, 0.5)])
    report = wire.NumberedReport(1, wire.GpusSeen([], None, told))
    read = wire_frames.decode_from_agent(wire_frames.encode(report)[4:])
    assert isinstance(read, wire.NumberedReport)
    assert read.body == wire.GpusSeen([], None, told)
