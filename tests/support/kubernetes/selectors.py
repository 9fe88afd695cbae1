"""Label and field selectors."""

import re
from collections.abc import Callable
from typing import Any

from tests.support.kubernetes.errors import bad_request
from tests.support.kubernetes.kinds import Kind
from tests.support.kubernetes.objects import Object, labels

Test = Callable[[Object], bool]
_KEY = r"(?:[A-Za-z0-9.-]+/)?[A-Za-z0-9](?:[A-Za-z0-9_.-]*[A-Za-z0-9])?"
_SET = re.compile(rf"({_KEY})\s+(in|notin)\s+\(([^()]*)\)")
_EQUAL = re.compile(rf"({_KEY})\s*(==|!=|=)\s*([A-Za-z0-9_.-]*)")
_EXISTS = re.compile(rf"(!?)\s*({_KEY})")


def by_labels(text: str) -> Test:
    """`a=b,c in (d,e),!f`; 400 where it cannot be read."""
    tests = [
        _requirement(part.strip())
        for part in re.split(r",(?![^()]*\))", text)
        if part.strip()
    ]
    return lambda obj: all(test(labels(obj)) for test in tests)


def _requirement(text: str) -> Callable[[dict[str, str]], bool]:
    if match := _SET.fullmatch(text):
        key = match[1]
        values = {value.strip() for value in match[3].split(",")}
        if match[2] == "in":
            return lambda found: found.get(key) in values
        return lambda found: found.get(key) not in values
    if match := _EQUAL.fullmatch(text):
        key = match[1]
        value = match[3]
        if match[2] == "!=":
            return lambda found: found.get(key) != value
        return lambda found: found.get(key) == value
    if match := _EXISTS.fullmatch(text):
        key = match[2]
        wanted = not match[1]
        return lambda found: (key in found) == wanted
    raise bad_request(
        f"unable to parse requirement: found '{text}', expected: a label selector"
    )


def by_fields(kind: Kind, text: str) -> Test:
    """`spec.nodeName=a,status.phase!=Running`; 400 for a field that this kind has no
    index of.
    """
    tests: list[Test] = []
    for part in filter(None, text.split(",")):
        match = re.fullmatch(r"([^=!]+)(==|!=|=)(.*)", part)
        if not match:
            raise bad_request(f"invalid selector: '{part}'; can't understand '{part}'")
        field = match[1].strip()
        equal = match[2] != "!="
        value = match[3].strip()
        if field not in ("metadata.name", "metadata.namespace", *kind.fields):
            raise bad_request(f"field label not supported: {field}")
        tests.append(lambda obj, f=field, e=equal, v=value: (_field(obj, f) == v) == e)
    return lambda obj: all(test(obj) for test in tests)


def _field(obj: Object, path: str) -> str:
    value: Any = obj
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def matches_expressions(found: dict[str, str], expressions: list[Object]) -> bool:
    """The `matchExpressions` of an affinity or a label selector."""
    return all(_expression(found, each) for each in expressions)


def _expression(found: dict[str, str], rule: Object) -> bool:
    value = found.get(rule["key"])
    values = rule.get("values") or []
    operator = rule["operator"]
    if operator == "In":
        return value in values
    if operator == "NotIn":
        return value not in values
    if operator in ("Exists", "DoesNotExist"):
        return (value is not None) == (operator == "Exists")
    try:
        number = int(value or "")
    except ValueError:
        return False
    return number > int(values[0]) if operator == "Gt" else number < int(values[0])
