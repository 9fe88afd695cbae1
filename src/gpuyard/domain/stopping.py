"""Stopping a server."""

from enum import StrEnum


class RunningJobs(StrEnum):
    """What to do with running jobs when the server stops."""

    REFUSE = "refuse"
    LEAVE = "leave"
    CANCEL = "cancel"
