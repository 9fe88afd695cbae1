"""The values in messages between server and agent, with their limits.

What an agent says is kept in the ledger: a value that the ledger cannot hold would stop
the commits of others. The decoders refuse it.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

LARGEST = 2**53
Whole = Annotated[int, Meta(ge=-LARGEST, le=LARGEST)]
Count = Annotated[int, Meta(ge=0, le=LARGEST)]
Amount = Annotated[float, Meta(ge=-1e18, le=1e18)]
Duration = Annotated[float, Meta(ge=0.0, le=1e11)]
Time = Annotated[float, Meta(ge=0.0, le=1e11)]
Capability = Annotated[
    str, Meta(pattern=r"^([0-9]{1,2}(\.[0-9]{1,2})?)?\Z", max_length=5)
]
Word = Annotated[str, Meta(max_length=256)]
# An attempt's id names files on the node.
AttemptId = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*\Z", max_length=200)
]
Sha256 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z", max_length=64)]
# With what a program runs: the host, the driver, and so on, by name.
Facts = Annotated[
    dict[Word, Annotated[str, Meta(max_length=32_768)]], Meta(max_length=64)
]
# What a person should know of a node.
Problem = Annotated[str, Meta(max_length=32_768)]
# How each limit is enforced, by its name.
Limits = Annotated[dict[Word, Problem], Meta(max_length=64)]


class DiskUser(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a running attempt takes of a disk, in bytes: all of it, and its log alone.

    `growth`: bytes per second.
    """

    attempt_id: AttemptId
    used: Count
    log: Count = 0
    growth: Amount = 0.0


class DiskStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """The disk that `folder`, the home of a node, lies on: its size and what is free
    for its user, in bytes; and who takes most of it, the largest first.
    """

    folder: Annotated[str, Meta(max_length=4096)]
    total: Count
    free: Count
    users: list[DiskUser] = []


class SeriesPoint(msgspec.Struct, frozen=True, array_like=True):
    """One value of a metric series. `n` is its number in the series, so that a log that
    is read twice gives the same keys.
    """

    name: str
    n: Whole
    step: Whole | None
    value: float
    at: Time
