"""What each of the clients asks for."""

import json
import sys
from collections.abc import Callable
from typing import Any

MESSAGES = [{"role": "user", "content": "hello there"}]
REFUSED = [{"role": "user", "content": "refuse"}]
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "the weather of a town",
        "parameters": {"type": "object", "properties": {"town": {"type": "integer"}}},
    },
}


def error_of(ask: Callable[[], object]) -> list[Any]:
    """The names of the exception's classes, its status, and what it says."""
    try:
        ask()
    except Exception as error:  # noqa: BLE001 (it is what is asked for)
        names = [kind.__name__ for kind in type(error).__mro__]
        return [names, getattr(error, "status_code", None), str(error)]
    return [[], None, "nothing was wrong"]


def tell(**found: object) -> None:
    """Print what was found."""
    sys.stdout.write(json.dumps(found))
