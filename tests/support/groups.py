"""The control groups that a killed agent leaves to one that never comes."""

import time
from contextlib import suppress
from pathlib import Path

from gpuyard.config.paths import Home
from gpuyard.node.launcher.hierarchy import hierarchies, remove

# A process that was killed is in its group until it has ended.
_PATIENCE_S = 2.0


def remove_groups(home: Home) -> None:
    """Remove the groups of a home's node and of its attempts. One whose processes do
    not end stays.
    """
    left: list[Path] = []
    with suppress(OSError):
        left = _groups(home)
    deadline = time.monotonic() + _PATIENCE_S
    while left and time.monotonic() < deadline:
        left = [group for group in left if not remove(group)]
        time.sleep(0.01 * bool(left))


def _groups(home: Home) -> list[Path]:
    pool = (home.node / "id").read_text().strip() + "-"
    attempts = {log.stem for log in (home.node / "attempts").glob("*.log")}
    return [
        group
        for tree in hierarchies()
        for group in tree.root.iterdir()
        if group.name in attempts or group.name.startswith(pool)
    ]
