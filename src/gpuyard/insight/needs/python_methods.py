"""What methods of texts, lists, dicts and tensors give."""

# The values of a followed program can be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import ast
from collections.abc import Callable, Mapping
from typing import Any

from gpuyard.insight.needs.expressions import MOST_ROUNDS
from gpuyard.insight.needs.operators import LONGEST, compare, product
from gpuyard.insight.needs.values import UNKNOWN, Parameter, Tensor, Thing, Value

# What an array of NumPy's has, which is followed as a list.
_OF_NUMBERS: Mapping[str, Callable[[list[Any]], Any]] = {
    "prod": product,
    "sum": sum,
    "max": max,
    "min": min,
}
PLAIN = (int, float, str, bool, type(None))


def is_plain(value: Value) -> bool:
    """Whether a value is a number, a text, or a list of these."""
    if isinstance(value, list | tuple):
        return all(isinstance(each, PLAIN) for each in value)
    return isinstance(value, PLAIN)


def python_method(receiver: Value, thing: Thing) -> Value:
    """The result of a method of a text, list, dict or tensor."""
    name = thing.name
    arguments = thing.arguments
    match receiver:
        case list():
            return _list_method(receiver, name, arguments)
        case dict():
            return _dict_method(receiver, name, thing)
        case str():
            return _text_method(receiver, name, arguments)
        case Tensor() | Parameter():
            return receiver
        case _:
            return UNKNOWN


def _list_method(receiver: list[Value], name: str, arguments: list[Value]) -> Value:
    if name == "append" and arguments and len(receiver) < LONGEST:
        receiver.append(arguments[0])
    if len(receiver) > MOST_ROUNDS * 4 or name == "append":
        return None
    if name == "extend" and arguments and isinstance(arguments[0], list | tuple):
        receiver.extend(arguments[0])
    elif name == "insert" and len(arguments) == 2 and isinstance(arguments[0], int):
        receiver.insert(arguments[0], arguments[1])
    elif name == "pop" and receiver:
        return receiver.pop()
    elif name in _OF_NUMBERS and all(type(each) in (int, float) for each in receiver):
        return _OF_NUMBERS[name](receiver) if receiver else UNKNOWN
    elif name in ("copy", "tolist"):
        return list(receiver)
    elif name == "index" and arguments:
        is_there = compare(ast.In, arguments[0], receiver) is True
        return receiver.index(arguments[0]) if is_there else UNKNOWN
    return None


def _dict_method(receiver: dict[Value, Value], name: str, thing: Thing) -> Value:
    key = thing.argument(0, default=None)
    match name:
        case "items":
            return list(receiver.items())
        case "keys":
            return list(receiver)
        case "values":
            return list(receiver.values())
        case "get" | "pop" if isinstance(key, str | int):
            default = thing.argument(1, "default", default=None)
            return receiver.get(key, default)
        case "setdefault" if isinstance(key, str | int):
            return receiver.setdefault(key, thing.argument(1, default=None))
        case "update":
            receiver.update(key if isinstance(key, dict) else {})
            receiver.update(thing.keywords)
            return None
        case "copy":
            return dict(receiver)
        case _:
            return UNKNOWN


def _text_method(receiver: str, name: str, arguments: list[Value]) -> Value:
    if name in ("encode", "join", "format") or not all(map(is_plain, arguments)):
        return UNKNOWN
    if name not in _TEXT_METHODS:
        return UNKNOWN
    # What takes the place of each letter may be as long as the text.
    longest = max((len(each) for each in arguments if isinstance(each, str)), default=0)
    if name == "replace" and (len(receiver) + 1) * (longest + 1) > LONGEST:
        return UNKNOWN
    try:
        return getattr(receiver, name)(*arguments)
    except (TypeError, ValueError, IndexError):
        return UNKNOWN


_TEXT_METHODS = frozenset(
    {"split", "lower", "upper", "strip", "startswith", "endswith", "replace", "rstrip"}
    | {"lstrip", "partition", "rpartition", "removeprefix", "removesuffix", "isdigit"}
)
