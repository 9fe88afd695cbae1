"""How the jobs of a node are kept apart from each other."""

from enum import StrEnum


class Separation(StrEnum):
    """What holds between jobs of different projects. Part of the API: a value is never
    changed.
    """

    AGREEMENT = "agreement"
    """Nothing: they run under one account, and leave each other alone by agreement."""
    ACCOUNTS = "accounts"
    """They run under accounts of their own, and reach every GPU."""
    ACCOUNTS_AND_DEVICES = "accounts and devices"
    """They run under accounts of their own, and reach only their own GPUs."""
