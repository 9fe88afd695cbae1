"""Whom to tell of an end: what `--notify` says, else the settings."""

from collections.abc import Mapping, Sequence
from typing import Any

NOBODY = "none"


def named(words: Sequence[str] | None) -> list[str] | None:
    """The addresses of `--notify`; empty for `none`, None without the option."""
    if not words:
        return None
    return [] if list(words) == [NOBODY] else list(words)


def usual() -> list[str]:
    """The addresses of `[defaults] notify`."""
    from gpuyard.config.paths import Home
    from gpuyard.config.settings import load_settings

    return list(load_settings(Home.find()).defaults.notify)


def with_usual(body: Mapping[str, Any]) -> dict[str, Any]:
    """A job that says whom to tell of its end, if anybody has said it."""
    if "notify" in body:
        return dict(body)
    addresses = usual()
    return {**body, "notify": addresses} if addresses else dict(body)
