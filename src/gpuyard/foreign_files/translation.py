"""What a job file of another tool becomes, and what people must be told of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpuyard.domain.errors import InvalidInputError


@dataclass(frozen=True, slots=True)
class Translation:
    """The body of a job, as a client submits it; and what of the file is not used, a
    line each.
    """

    body: dict[str, Any]
    notes: Sequence[str]


def pruned(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields that say something: not those that are None or empty tables."""
    return {
        name: value
        for name, value in fields.items()
        if value is not None and value not in ({}, [], "")
    }


def refused(place: str, fault: str, remedy: str) -> InvalidInputError:
    """The error for what stands at `place` in a file."""
    return InvalidInputError.of(place, fault, remedy)
