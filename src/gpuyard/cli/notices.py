"""Whom to tell of an end: what `--notify` says, else the settings."""

import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, cast

from gpuyard.domain.errors import InvalidInputError

NOBODY = "none"
_VARIABLE = "GPUYARD_DEFAULTS__NOTIFY"
_RIGHT = 'write notify = ["mail:ana@example.org"]'


def named(words: Sequence[str] | None) -> list[str] | None:
    """The addresses of `--notify`; empty for `none`, None without the option."""
    if not words:
        return None
    return [] if list(words) == [NOBODY] else list(words)


def usual() -> list[str]:
    """The addresses of `[defaults] notify`; InvalidInputError. Only these are read:
    other settings may need variables that only the server has.
    """
    from gpuyard.config.paths import Home

    path = Home.find().settings
    field = f"{path}: defaults.notify"
    try:
        if _VARIABLE in os.environ:
            field = _VARIABLE
            return _addresses(json.loads(os.environ[_VARIABLE]))
        if not path.is_file():
            return []
        sections: Any = tomllib.loads(path.read_text(encoding="utf-8"))
        return _addresses(sections.get("defaults", {}).get("notify", []))
    except (OSError, ValueError, AttributeError) as error:
        fault = f"cannot be read: {error}"
        raise InvalidInputError.of(field, fault, _RIGHT) from None


def _addresses(given: Any) -> list[str]:
    """ValueError if it is no list of texts."""
    if not isinstance(given, list):
        raise ValueError(f"{given!r} is no list of addresses")
    words = cast("list[Any]", given)
    if not all(isinstance(word, str) for word in words):
        raise ValueError(f"{words!r} is no list of addresses")
    return words


def with_usual(body: Mapping[str, Any]) -> dict[str, Any]:
    """A job that says whom to tell of its end, if anybody has said it."""
    # Jobs in the forms of other programs have no command.
    if "notify" in body or "command" not in body:
        return dict(body)
    addresses = usual()
    return {**body, "notify": addresses} if addresses else dict(body)
