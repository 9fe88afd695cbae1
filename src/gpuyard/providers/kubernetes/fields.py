"""Reads fields of the cluster's objects, any of which may be missing."""

from typing import Any, cast

Json = dict[str, Any]


def value_at(item: Any, *path: str) -> Any:
    """The value at a path of keys; None when the path does not exist."""
    for key in path:
        if not isinstance(item, dict):
            return None
        item = cast("Json", item).get(key)
    return item


def object_at(item: Any, *path: str) -> Json:
    """The object at a path; an empty one when there is none."""
    found = value_at(item, *path)
    return cast("Json", found) if isinstance(found, dict) else {}


def objects_at(item: Any, *path: str) -> list[Json]:
    """The objects of the list at a path; an empty list when there is none."""
    found = value_at(item, *path)
    found = cast("list[Any]", found) if isinstance(found, list) else []
    return [cast("Json", row) for row in found if isinstance(row, dict)]


def text_at(item: Any, *path: str) -> str:
    """The value at a path as text; empty when there is none."""
    found = value_at(item, *path)
    return "" if found is None else str(found)


def name_of(item: Json) -> str:
    """The object's name."""
    return text_at(item, "metadata", "name")
