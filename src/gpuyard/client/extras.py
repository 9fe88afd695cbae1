"""Extras: packages that only some commands need."""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from gpuyard.domain.errors import InvalidInputError

P = ParamSpec("P")
R = TypeVar("R")


def needs_extra(
    command_name: str, extra: str
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """For a command that says which extra to install when a package of it is
    missing.
    """

    def with_advice(command: Callable[P, R]) -> Callable[P, R]:
        @wraps(command)
        def explained(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return command(*args, **kwargs)
            except ModuleNotFoundError as error:
                if (error.name or "gpuyard").startswith("gpuyard"):
                    raise
                remedy = f"pip install 'gpuyard[{extra}]'"
                raise InvalidInputError.of(
                    command_name, f"needs {error.name}", remedy
                ) from None

        return explained

    return with_advice
