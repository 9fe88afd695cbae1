"""Reads the times of the cluster's objects."""

from datetime import datetime


def instant(stamp: str) -> float | None:
    """A Kubernetes timestamp in UTC seconds; None for an empty one."""
    if not stamp:
        return None
    return datetime.fromisoformat(stamp.replace("Z", "+00:00")).timestamp()
