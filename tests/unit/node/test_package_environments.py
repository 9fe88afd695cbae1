"""The environments of packages on a node: which are there, and which make room."""

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from gpuyard.domain.packages import PackageKind, PackageList
from gpuyard.domain.reasons import Reason
from gpuyard.domain.wire import Ended, StartAttempt
from gpuyard.node import build_packages
from gpuyard.node.journal import JournalEntry
from gpuyard.node.launcher import LaunchError
from gpuyard.node.package_environments import (
    PackageEnvironments,
    explained_by_packages,
)
from gpuyard.node.starter import AttemptStarter
from gpuyard.node.watch import AgentContext
from gpuyard.storage.package_lists import PackagesMissingError
from gpuyard.storage.untrusted import remove_tree

SIZE = 1 << 20
OLD = "0" * 64
NEWER = "1" * 64
NEWEST = "2" * 64


class Made:
    """Environments of 1 MB each."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.in_use: Sequence[str] = ()
        self.environments = PackageEnvironments(
            root, int(2.5 * SIZE), _read, lambda: self.in_use
        )

    def add(self, digest: str, used_at: float = 0, *, complete: bool = True) -> Path:
        place = self.environments.find(digest, None).folder
        (place / "bin").mkdir(parents=True)
        (place / "bin/data").write_bytes(os.urandom(SIZE))
        (place / "bin").chmod(0o555)
        os.utime(place, (used_at, used_at))
        if complete:
            Path(f"{place}.complete").touch()
        return place


def _read(digest: str) -> PackageList:
    if digest == OLD:
        raise PackagesMissingError("it is gone")
    files = {"requirements.txt": "", "../out": ""}
    return PackageList("requirements.txt", PackageKind.REQUIREMENTS, files)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path / "packages")


def test_what_was_not_used_for_the_longest_time_makes_room(made: Made) -> None:
    places = [made.add(digest, at) for at, digest in enumerate((OLD, NEWER, NEWEST))]
    made.in_use = [OLD]
    made.environments.make_room("3" * 64)
    assert [place.exists() for place in places] == [True, False, True]


def test_what_uv_has_kept_goes_first(made: Made) -> None:
    place = made.add(OLD)
    cache = place.parent / "cache"
    cache.mkdir()
    (cache / "wheel").write_bytes(os.urandom(2 * SIZE))
    made.in_use = [NEWER, NEWEST]
    made.environments.make_room(NEWER)
    assert cache.exists(), "another job installs just now"
    place = made.add(OLD)
    made.in_use = [NEWER]
    made.environments.make_room(NEWER)
    assert not cache.exists()
    assert place.exists()


def test_files_with_several_names_count_once(made: Made) -> None:
    place = made.add(OLD)
    for number in range(4):
        os.link(place / "bin/data", place.parent / f"more-{number}")
    made.environments.make_room(NEWER)
    assert place.exists()


def test_what_a_killed_build_has_left_goes(made: Made) -> None:
    half = made.add(OLD, complete=False)
    building = made.add(NEWER, complete=False)
    made.in_use = [NEWER]
    made.environments.make_room(NEWEST)
    assert not half.exists()
    assert building.exists()


def test_what_was_changed_is_left_to_those_that_use_it(made: Made) -> None:
    place = made.add(OLD)
    assert made.environments.find(OLD, None).folder == place
    complete = os.lstat(f"{place}.complete")
    os.utime(place / "bin", ns=(0, complete.st_mtime_ns + 1))
    other = made.environments.find(OLD, None)
    assert other.folder != place
    assert not other.is_complete


def test_an_environment_is_complete_only_when_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uv = tmp_path / "uv"
    uv.write_text(
        '#!/bin/sh\nif [ "$1" = venv ]; then\n  for folder; do :; done\n'
        '  mkdir -p "$folder/bin"\n  cp "$0" "$folder/bin/python"\nfi\n'
    )
    uv.chmod(0o755)
    complete = tmp_path / "env.complete"
    paths = (str(tmp_path / "env"), str(tmp_path), str(tmp_path / "cache"), str(uv))
    order = build_packages.BuildOrder(*paths, PackageKind.REQUIREMENTS, "a list", "")
    was_complete: list[bool] = []
    monkeypatch.setattr(os, "sync", lambda: was_complete.append(complete.exists()))
    monkeypatch.setattr(os, "execvp", lambda *_: None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["", json.dumps(order._asdict()), "true"])
    build_packages.main()
    assert was_complete == [False]
    assert complete.exists()


def test_an_attempt_keeps_the_environment_that_it_was_started_with(
    made: Made, tmp_path: Path
) -> None:
    place = made.add(NEWER)
    start = StartAttempt(
        "att_1", 1, 1, "job_1", ["true"], {}, str(tmp_path), packages=NEWER
    )
    context = SimpleNamespace(
        accounts=None,
        packages=made.environments,
        journal=SimpleNamespace(private=lambda _: tmp_path / "attempt"),
    )
    record = JournalEntry(start, "boot")
    starter = AttemptStarter(record, cast("AgentContext", context))
    starter.prepare()
    complete = os.lstat(f"{place}.complete")
    os.utime(place / "bin", ns=(0, complete.st_mtime_ns + 1))  # it installs something
    found = starter.packages
    assert found
    assert found.folder == place
    failed = Ended("att_1", 2.0, 1.0, exit_code=1)
    assert explained_by_packages(failed, found, lambda _: (0, b"")) == failed


def test_a_list_that_is_gone_or_leads_out_is_refused(
    made: Made, tmp_path: Path
) -> None:
    for digest, says in ((OLD, "it is gone"), (NEWER, "leads out")):
        with pytest.raises(LaunchError, match=says) as info:
            made.environments.prepare(digest, None, tmp_path / "attempt")
        assert info.value.reason is Reason.PACKAGES_FAILED


def test_uv_gets_the_settings_of_pip_where_its_own_say_nothing(tmp_path: Path) -> None:
    settings = tmp_path / "pip.conf"
    settings.write_text(
        "[global]\nindex-url = https://a/simple\nfind-links = /one\n  /two\n"
        "[install]\nextra-index-url = https://b https://c\nno-index = yes\n"
    )
    order = build_packages.BuildOrder("/env", "", "/cache", "uv", "", "", "")
    given = {
        "PIP_CONFIG_FILE": str(settings),
        "PIP_INDEX_URL": "https://own/simple",
        "UV_EXTRA_INDEX_URL": "https://uv",
        "PATH": "/env/bin:/usr/bin",
        "VIRTUAL_ENV": "/env",
    }
    found = build_packages.for_uv(given, order)
    assert found["UV_DEFAULT_INDEX"] == "https://own/simple"
    assert found["UV_FIND_LINKS"] == "/one,/two"
    assert "UV_INDEX" not in found
    assert found["PATH"] == "/usr/bin"
    assert "VIRTUAL_ENV" not in found
    assert build_packages.pip_arguments(given) == ["--no-index"]


def test_a_password_of_an_index_is_hidden_whatever_is_in_it() -> None:
    said = "from https://me:a@b:c@host.org/simple and https://host.org/x@1"
    shown = "from https://***@host.org/simple and https://host.org/x@1"
    assert build_packages.without_passwords(said) == shown


def test_folders_that_are_nested_deeply_are_in_nobodys_way(made: Made) -> None:
    place = made.add(OLD)
    above = os.open(place, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("deep", dir_fd=above)
        inner = os.open("deep", os.O_RDONLY, dir_fd=above)
        os.close(above)
        above = inner
    os.close(above)
    made.in_use = [OLD]
    try:
        made.environments.make_room(NEWER)
        assert place.exists()
    finally:
        remove_tree(place)  # pytest cannot
