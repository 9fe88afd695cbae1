"""Where the environments that jobs carry are stored."""

import os
import stat
import time
from pathlib import Path

import pytest

from gpuyard.domain.carried_environment import CarriedEnvironment
from gpuyard.storage.contents import folder_stores
from gpuyard.storage.environments import EnvironmentMissingError, Environments

DAY_S = 86400.0


def file_of(home: Path, digest: str) -> Path:
    return home / "environments" / digest[:2] / digest[2:]


def test_equal_environments_are_one_file_that_only_its_owner_reads(
    tmp_path: Path,
) -> None:
    store = Environments(folder_stores(tmp_path))
    given = CarriedEnvironment({"B": "2", "A": "ä"}, ("HF_TOKEN",))
    digest = store.put(given)
    assert store.put(CarriedEnvironment({"A": "ä", "B": "2"}, ("HF_TOKEN",))) == digest
    assert store.get(digest) == given
    (file,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_missing_and_a_damaged_one_are_told(tmp_path: Path) -> None:
    store = Environments(folder_stores(tmp_path))
    with pytest.raises(EnvironmentMissingError, match="is no longer stored"):
        store.get("0" * 64)
    digest = store.put(CarriedEnvironment({"A": "1"}))
    file_of(tmp_path, digest).write_bytes(b'{"variables"')
    with pytest.raises(EnvironmentMissingError):
        store.get(digest)


def test_only_those_that_no_client_has_handed_over_lately_may_go(
    tmp_path: Path,
) -> None:
    store = Environments(folder_stores(tmp_path), clock=lambda: time.time() + 2 * DAY_S)
    old = store.put(CarriedEnvironment({"A": "1"}))
    again = store.put(CarriedEnvironment({"A": "2"}))
    later = time.time() + 2 * DAY_S
    os.utime(file_of(tmp_path, again), (later, later))
    assert store.not_handed_over() == {old}
    store.remove([old])
    assert store.not_handed_over() == set()
