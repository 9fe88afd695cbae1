"""Fields of the cluster's objects, any of which may be missing."""

from typing import Any, cast

Json = dict[str, Any]


def at(item: Any, *path: str) -> Any:
    """The value at the end of a path of keys; None where it breaks off."""
    for key in path:
        if not isinstance(item, dict):
            return None
        item = cast("Json", item).get(key)
    return item


def table(item: Any, *path: str) -> Json:
    """The object at the end of a path; an empty one where there is none."""
    found = at(item, *path)
    return cast("Json", found) if isinstance(found, dict) else {}


def rows(item: Any, *path: str) -> list[Json]:
    """The objects of a list at the end of a path; none where it breaks off."""
    found = at(item, *path)
    found = cast("list[Any]", found) if isinstance(found, list) else []
    return [cast("Json", row) for row in found if isinstance(row, dict)]


def text(item: Any, *path: str) -> str:
    """The value as text; empty where there is none."""
    found = at(item, *path)
    return "" if found is None else str(found)


def name_of(item: Json) -> str:
    """What the object is called."""
    return text(item, "metadata", "name")
