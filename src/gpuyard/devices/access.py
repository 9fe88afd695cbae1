"""The device files of GPUs: which of them a job may open, and which not.

NVIDIA's GPUs are character devices of a major number of their own. A MIG instance
needs the file of its GPU, and two files that stand for its rights. AMD's GPUs are
nodes of the kernel's graphics layer, DRM. What all jobs share (`nvidiactl`,
`nvidia-uvm`, `kfd`) has other numbers and stays open.
"""

import os
import re
import stat
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from gpuyard.devices.gpu import GpuReading

NVIDIA_MAJOR = 195
DRM_MAJOR = 226
# nvidia-modeset and nvidiactl.
_NVIDIA_SHARED = frozenset({254, 255})
_FOLDERS = ("dev", "dev/nvidia-caps", "dev/dri")
_ROOT = Path("/")


@dataclass(frozen=True, slots=True, order=True)
class DeviceNumber:
    """The number of a character device."""

    major: int
    minor: int


@dataclass(frozen=True, slots=True)
class DeviceRule:
    """Of the character devices with this major number, a job may open those with the
    minor numbers `allowed`.

    `known` are the minor numbers on this host, for kernels that take no rule for all.
    """

    major: int
    allowed: frozenset[int]
    known: frozenset[int] = frozenset()

    @property
    def denied(self) -> list[int]:
        """The known minor numbers that are not allowed."""
        return sorted(self.known - self.allowed)


def numbers_of(gpu: GpuReading, root: Path = _ROOT) -> frozenset[DeviceNumber] | None:
    """The devices that belong to this GPU or MIG instance alone; None if they are not
    known.

    `root` is the file system's root.
    """
    if gpu.drm:
        return frozenset(DeviceNumber(DRM_MAJOR, minor) for minor in gpu.drm)
    if gpu.minor is None:
        return None
    own = DeviceNumber(NVIDIA_MAJOR, gpu.minor)
    if not gpu.mig:
        return frozenset({own})
    major = _caps_major(root)
    minors = _rights_of(gpu, root)
    if major is None or not minors:
        return None
    return frozenset({own, *(DeviceNumber(major, minor) for minor in minors)})


def rules_for(
    own: Collection[DeviceNumber],
    all_gpus: Iterable[DeviceNumber],
    root: Path = _ROOT,
) -> tuple[DeviceRule, ...]:
    """The rules for a job with its `own` devices among those of `all_gpus` of this
    host.
    """
    known = {*all_gpus, *own, *_device_files(root)}
    majors = [NVIDIA_MAJOR]
    caps = _caps_major(root)
    if caps is not None:
        majors.append(caps)
    # DRM's nodes are the screen's too, so they are left alone where no GPU needs them.
    if any(number.major == DRM_MAJOR for number in (*all_gpus, *own)):
        majors.append(DRM_MAJOR)
    return tuple(_rule(major, own, known) for major in majors)


def _rule(
    major: int, own: Collection[DeviceNumber], known: Collection[DeviceNumber]
) -> DeviceRule:
    allowed = {number.minor for number in own if number.major == major}
    if major == NVIDIA_MAJOR:
        allowed |= _NVIDIA_SHARED
    here = frozenset(number.minor for number in known if number.major == major)
    return DeviceRule(major, frozenset(allowed), here)


def _device_files(root: Path) -> set[DeviceNumber]:
    """The character devices in the folders where GPUs have theirs."""
    found: set[DeviceNumber] = set()
    for name in _FOLDERS:
        folder = root / name
        for file in folder.iterdir() if folder.is_dir() else ():
            status = file.lstat()
            if stat.S_ISCHR(status.st_mode):
                device = status.st_rdev
                found.add(DeviceNumber(os.major(device), os.minor(device)))
    return found


def _caps_major(root: Path) -> int | None:
    """The major number of the files that stand for rights to MIG instances."""
    text = _read(root / "proc/devices")
    found = re.search(r"^\s*(\d+) nvidia-caps$", text, re.MULTILINE)
    return int(found[1]) if found else None


def _rights_of(gpu: GpuReading, root: Path) -> list[int]:
    """The minor numbers of the files that give access to a MIG instance: one for the
    GPU instance, one for the compute instance in it.
    """
    instance = f"gpu{gpu.minor}/gi{gpu.instance}"
    wanted = {
        f"{instance}/access",
        f"{instance}/ci{gpu.compute_instance}/access",
    }
    lines = _read(root / "proc/driver/nvidia-caps/mig-minors").splitlines()
    pairs = [line.split() for line in lines]
    found = {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2}
    if not wanted <= found.keys():
        return []
    return [found[name] for name in wanted]


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
