"""How the JSON of listings is read."""

from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel

Item = TypeVar("Item", bound=BaseModel)


def items_of(kind: type[Item]) -> Callable[[Any], list[Item]]:
    """Reads the items of a listing."""

    def read(answer: Any) -> list[Item]:
        return [kind.model_validate(item) for item in answer["items"]]

    return read


def page_of(kind: type[Item]) -> Callable[[Any], tuple[list[Item], str | None]]:
    """Reads the items of one page of a listing, and the cursor of the next page."""
    items = items_of(kind)

    def read(answer: Any) -> tuple[list[Item], str | None]:
        return items(answer), answer["next"]

    return read
