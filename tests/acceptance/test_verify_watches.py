"""Watches of the settings: the server that leads verifies by itself, and what it has
started ends with it.
"""

import os
import signal
from pathlib import Path

import pytest

from tests.support.instance import TestInstance
from tests.support.verifying import configure, executor, section
from tests.support.wait import wait_until

EXECUTORS = (
    executor("trusted", "practice-6", trusted=True),
    executor("rented", "practice-6"),
    section("verification", target=6, max_series=12, series_per_run=6),
)


def log_of(instance: TestInstance) -> str:
    """What the watches have said."""
    path = instance.home.logs / "verification.log"
    return path.read_text() if path.exists() else ""


def passes(instance: TestInstance) -> int:
    """How many checks have passed, by the log."""
    return log_of(instance).count("passed")


def watchers(instance: TestInstance) -> list[int]:
    """The processes that run watches for this instance."""
    home = f"GPUYARD_HOME={instance.home.root}".encode()
    return [
        int(folder.name)
        for folder in Path("/proc").glob("[0-9]*")
        if _is_watcher(folder, home)
    ]


def _is_watcher(folder: Path, home: bytes) -> bool:
    try:
        words = (folder / "cmdline").read_bytes().split(b"\0")
        return b"--until-input-ends" in words and home in (
            folder / "environ"
        ).read_bytes().split(b"\0")
    except OSError:
        return False


@pytest.mark.timeout(200)
def test_a_server_verifies_by_itself_and_again_after_it_was_killed(
    instance: TestInstance,
) -> None:
    watch = section("verification.watches.often", executors=["rented"], every="1s")
    configure(instance, *EXECUTORS, watch)
    instance.ok("up")
    wait_until(lambda: passes(instance) > 1, 100, "two checks")
    (first,) = watchers(instance)
    instance.kill("server")
    wait_until(lambda: first not in watchers(instance), 60, "the watcher to leave")
    count = passes(instance)
    instance.ok("up")
    wait_until(lambda: passes(instance) > count, 100, "checks of the next server")
    (second,) = watchers(instance)
    os.kill(second, signal.SIGKILL)
    wait_until(
        lambda: watchers(instance) not in ([], [second]), 60, "another to be started"
    )
    instance.ok("down", "--running", "cancel")
    wait_until(lambda: not watchers(instance), 60, "all to leave with the server")
