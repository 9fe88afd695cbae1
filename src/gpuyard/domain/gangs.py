"""Attempts on several nodes with agents: each node runs a share of it.

An agent knows a share by an id of its own. That of the first share is the id of the
attempt.
"""

import zlib

# Below those that Linux gives to connections that go out.
_PORTS = range(20_000, 32_768)


def share_id(attempt_id: str, rank: int) -> str:
    """The id of a share; `rank` counts from 0."""
    return f"{attempt_id}.{rank}" if rank else attempt_id


def attempt_and_rank(share: str) -> tuple[str, int]:
    """The inverse of `share_id`. An id that is none is that of an attempt."""
    attempt_id, separator, rank = share.rpartition(".")
    if separator and rank.isdecimal() and len(rank) <= 5:
        return attempt_id, int(rank)
    return share, 0


def share_variables(
    attempt_id: str, rank: int, count: int, address: str
) -> dict[str, str]:
    """The variables by which launchers such as torchrun find the other shares.
    `address`: the host of the first one.
    """
    port = _PORTS[zlib.crc32(attempt_id.encode()) % len(_PORTS)]
    return {
        "NODE_RANK": str(rank),
        "NNODES": str(count),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }
