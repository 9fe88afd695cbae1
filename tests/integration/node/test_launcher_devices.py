"""Control groups refuse the devices that a job must not open, in both versions.

The device files are made here, with the numbers of GPUs. Without a driver the kernel
says "no such device" where it lets a process through, and "not permitted" where the
group refuses it.
"""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuyard.devices.access import DeviceRule
from gpuyard.node.launcher import Cgroup, can_confine_devices, device_filter
from gpuyard.node.launcher.cgroup import _confine
from gpuyard.node.launcher.hierarchy import hierarchies
from tests.support.components import require

OPEN = """
import json, os, sys
def error(path):
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as failed:
        return os.strerror(failed.errno)
    return "opened"
print(json.dumps({path.rsplit("/", 1)[1]: error(path) for path in sys.argv[1:]}))
"""
REFUSED = "Operation not permitted"
# No module of the kernel has this one.
UNUSED_MAJOR = 239
RULES = (
    DeviceRule(195, frozenset({1, 255}), frozenset({0, 1, 2, 255})),
    DeviceRule(UNUSED_MAJOR, frozenset(), frozenset({7})),
)


@pytest.fixture
def devices(tmp_path: Path) -> Iterator[list[str]]:
    """Device files by which a process tries what it may open."""
    require("other-users", os.getuid() == 0)
    numbers = {
        "nvidia0": (195, 0),
        "nvidia1": (195, 1),
        "nvidia2": (195, 2),
        "nvidiactl": (195, 255),
        "caps7": (UNUSED_MAJOR, 7),
    }
    for name, (major, minor) in numbers.items():
        device = os.makedev(major, minor)
        os.mknod(tmp_path / name, 0o666 | stat.S_IFCHR, device)
    yield [str(tmp_path / name) for name in numbers]


def expected(answers: dict[str, str]) -> None:
    assert answers.pop("nvidia0") == REFUSED
    assert answers.pop("nvidia2") == REFUSED
    assert answers.pop("caps7") == REFUSED
    assert answers.pop("null") == "opened"
    assert answers.pop("urandom") == "opened"
    # These may exist: this machine may have a driver.
    assert answers.keys() == {"nvidia1", "nvidiactl"}
    assert REFUSED not in answers.values()


def test_a_job_opens_its_own_gpu_only(
    start: Callable, ended: Callable, log: Path, python: str, devices: list[str]
) -> None:
    assert can_confine_devices()
    words = (*devices, "/dev/null", "/dev/urandom")
    process = start(python, "-c", OPEN, *words, devices=RULES)
    assert process.enforcement["devices"].startswith("cgroup v")
    assert ended(process).code == 0, log.read_text()
    expected(json.loads(log.read_text()))


@pytest.mark.parametrize("version", [1, 2])
def test_either_version_of_control_groups_does_it(
    version: int, attempt_id: str, devices: list[str]
) -> None:
    available = [tree for tree in hierarchies() if tree.version == version]
    confined = _confine(available, attempt_id, RULES)
    if confined is None:
        pytest.skip(f"no control groups of version {version} here refuse devices")
    group = Cgroup((confined[0],))
    words = (*devices, "/dev/null", "/dev/urandom")
    process = subprocess.Popen(
        [sys.executable, "-c", f"input()\n{OPEN}", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    group.join(process.pid)
    output, _ = process.communicate("\n")
    expected(json.loads(output))
    assert group.remove()


def test_rules_of_a_group_above_stay_in_force(
    attempt_id: str, devices: list[str]
) -> None:
    """A container or systemd may have a program of its own on the group above."""
    trees = [tree for tree in hierarchies() if tree.version == 2]
    confined = _confine(trees, attempt_id, RULES)
    if confined is None:
        pytest.skip("no control groups of version 2 here refuse devices")
    outer = confined[0]
    inner = outer / "inner"
    inner.mkdir()
    device_filter.attach(inner, (DeviceRule(195, frozenset({0, 1})),))
    group = Cgroup((inner,))
    process = subprocess.Popen(
        [sys.executable, "-c", f"input()\n{OPEN}", *devices],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    group.join(process.pid)
    output, _ = process.communicate("\n")
    answers = json.loads(output)
    refused = {name for name, answer in answers.items() if answer == REFUSED}
    assert refused == {"nvidia0", "nvidia2", "nvidiactl", "caps7"}
    assert Cgroup((outer,)).remove()
