"""The values of options of `sbatch`, in our units. Every function raises ValueError,
whose text says what is wrong.
"""

import re

from gpuyard.domain.gpus import resolve_gpu_class

_MINUTE = 60
_HOUR = 3600
_DAY = 86400
_DAYS = re.compile(r"(\d+)-(\d+)(?::(\d+)(?::(\d+))?)?")
_CLOCK = re.compile(r"(\d+)(?::(\d+)(?::(\d+))?)?")
_SIZE = re.compile(r"(\d+)([KMGT]?)B?", re.IGNORECASE)
_PER_GB = {"K": 1024**2, "": 1024, "M": 1024, "G": 1, "T": 1 / 1024}
_NODES = re.compile(r"(\d+)(?:-(\d+))?")
_UNLIMITED = ("UNLIMITED", "INFINITE", "0")


def count(text: str) -> int:
    """A number from 1 on."""
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise ValueError(f"is {text!r}, and not a number from 1 on")
    return int(text)


def time_limit(text: str) -> float | None:
    """Seconds of `minutes`, `minutes:seconds`, `hours:minutes:seconds`, `days-hours`,
    `days-hours:minutes` and `days-hours:minutes:seconds`; None for no limit.
    """
    if text.upper() in _UNLIMITED:
        return None
    if match := _DAYS.fullmatch(text):
        (days, hours, minutes, seconds) = (int(part or 0) for part in match.groups())
        return days * _DAY + hours * _HOUR + minutes * _MINUTE + seconds
    match = _CLOCK.fullmatch(text)
    if match is None:
        raise ValueError(f"is {text!r}, and not a time such as 90, 2:00:00 or 1-12")
    (first, second, third) = match.groups()
    if third is not None:
        return int(first) * _HOUR + int(second) * _MINUTE + int(third)
    return int(first) * _MINUTE + int(second or 0)


def memory_gb(text: str) -> float:
    """Gigabytes of `4000`, which are megabytes, or of `4G`."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"is {text!r}, and not a size such as 4000 or 16G")
    if int(match[1]) == 0:
        raise ValueError("is 0, which means all memory of a node")
    return int(match[1]) / _PER_GB[match[2].upper()]


def nodes(text: str) -> int:
    """A number of nodes; `2-2` is one, too."""
    match = _NODES.fullmatch(text)
    if match is None:
        raise ValueError(f"is {text!r}, and not a number of nodes")
    if match[2] not in (None, match[1]):
        raise ValueError(f"is {text!r}, and gpuyard cannot choose how many of these")
    return count(match[1])


def gpus(text: str) -> tuple[str | None, int]:
    """The class and the number that `2`, `a100` or `a100:2` say."""
    (kind, _, number) = text.rpartition(":")
    if not kind and not number.isdecimal():
        kind = number
        number = "1"
    if "," in text:
        raise ValueError(f"is {text!r}, and a job has GPUs of one kind")
    if kind:
        resolve_gpu_class(kind)
    return kind or None, int(number) if number == "0" else count(number)


def gres(text: str) -> tuple[str | None, int]:
    """The GPUs of `gpu`, `gpu:2`, `gpu:a100:2`, `gres/gpu:2` or `gres:gpu:2`."""
    (name, _, rest) = text.removeprefix("gres/").removeprefix("gres:").partition(":")
    if name != "gpu" or "," in text:
        raise ValueError(f"is {text!r}, and gpuyard knows GPUs only")
    return gpus(rest or "1")


def signal(text: str) -> tuple[str, float]:
    """The name of a signal and how many seconds before the end it is sent, of
    `B:USR1@120`, `SIGUSR1@120` or `USR1`.
    """
    (name, _, seconds) = text.rpartition(":")[2].partition("@")
    if name.isdecimal():
        raise ValueError(f"names a signal by its number, {name}")
    return name, float(count(seconds)) if seconds else 60.0
