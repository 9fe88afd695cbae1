"""Identifiers: a UUIDv7 (RFC 9562) in hex after a prefix for the kind of thing, such as
`job_0198c1…`.

They sort by creation time. People shorten them to their end, because the last
characters differ.
"""

import os
import threading
import time

_lock = threading.Lock()
_last = 0


def new_id(prefix: str) -> str:
    """A new id `<prefix>_<32 hex digits>`; ids made by one process are strictly
    increasing.
    """
    return f"{prefix}_{_uuid7():032x}"


def digits_of(identifier: str) -> str:
    """The digits of an id, without its prefix."""
    return identifier.rpartition("_")[2]


def made_at(identifier: str) -> float:
    """When an id was made, in UTC seconds."""
    _, _, digits = identifier.rpartition("_")
    return (int(digits, 16) >> 80) / 1000


def first_id(prefix: str, at: float) -> str:
    """An id that comes before all that are made at that time (UTC seconds) or later."""
    return f"{prefix}_{int(at * 1000) << 80:032x}"


def _uuid7() -> int:
    """A UUIDv7 as an integer: 48 bits of milliseconds, 12 bits of sub-millisecond
    order, 62 random bits.
    """
    global _last
    with _lock:
        # 4096 steps per millisecond, never the same twice: order holds within one
        # process.
        _last = max(_last + 1, time.time_ns() * 4096 // 1_000_000)
        stamp = _last
    random = int.from_bytes(os.urandom(8), "big") >> 2
    return (stamp >> 12) << 80 | 0x7 << 76 | (stamp & 0xFFF) << 64 | 0b10 << 62 | random
