"""Lock files."""

import stat
from pathlib import Path

from gpuyard.config.locks import is_locked, lock_exclusively, open_lock


def test_nobody_else_can_open_a_lock_and_so_hold_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.touch(mode=0o666)
    with open_lock(path) as lock:
        lock_exclusively(lock)
        assert is_locked(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not is_locked(path)
