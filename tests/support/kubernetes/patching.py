"""Patches."""

from typing import Any

from tests.support.kubernetes.errors import ApiError, bad_request
from tests.support.kubernetes.objects import clone

_MERGE = ("application/merge-patch+json", "application/strategic-merge-patch+json")
_JSON = "application/json-patch+json"


def patched(old: Any, patch: Any, content: str) -> Any:
    """A new object; 400 and 415.

    A strategic patch merges as the other does: lists are replaced.
    """
    content = content.split(";")[0].strip()
    if content in _MERGE:
        return _merged(clone(old), patch)
    if content != _JSON:
        raise ApiError(
            415,
            "UnsupportedMediaType",
            "the body of the request was in an unknown format - accepted media "
            f"types include: {', '.join((_JSON, *_MERGE))}",
        )
    new = clone(old)
    for operation in patch:
        _operate(new, operation)
    return new


def _merged(old: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return clone(patch)
    result = old if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merged(result.get(key), value)
    return result


def _operate(obj: Any, operation: dict[str, Any]) -> None:
    *way, last = [
        part.replace("~1", "/").replace("~0", "~")
        for part in operation["path"].split("/")[1:]
    ]
    try:
        for part in way:
            obj = obj[int(part)] if isinstance(obj, list) else obj[part]
        key: Any = (
            last if isinstance(obj, dict) else len(obj) if last == "-" else int(last)
        )
        _apply(obj, key, operation)
    except (KeyError, IndexError, ValueError, TypeError):
        raise bad_request(
            "the server rejected our request due to an error in our request:"
            f" {operation}"
        ) from None


def _apply(obj: Any, key: Any, operation: dict[str, Any]) -> None:
    word = operation["op"]
    if word == "test" and obj[key] != operation["value"]:
        raise ValueError(key)
    if word == "remove":
        del obj[key]
    elif word == "add" and isinstance(obj, list):
        obj.insert(key, operation["value"])
    elif word in ("add", "replace"):
        obj[key] = operation["value"]
