"""Operators on known values. A result that would be huge, or cannot be computed, is
`UNKNOWN`.
"""

# The values of a followed program can be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import ast
import operator
from collections.abc import Callable, Iterable, Mapping

from gpuyard.insight.needs.values import UNKNOWN, Tensor, Thing, Value

# No number of a program's shape is larger; Python's own may take minutes to compute.
_LARGEST = 10**24
LONGEST = 10_000
_DEEPEST = 100

_BINARY: Mapping[type, Callable[[Value, Value], Value]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.BitOr: operator.or_,
    ast.BitAnd: operator.and_,
}
_UNARY: Mapping[type, Callable[[Value], Value]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}
_COMPARE: Mapping[type, Callable[[Value, Value], Value]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}
_PLAIN = (int, float, str, bool, list, tuple, dict, set, type(None))


def binary(kind: type, left: Value, right: Value) -> Value:
    """`left` and `right` joined by an operator of `ast`."""
    if isinstance(left, Tensor):
        return left
    if not isinstance(left, _PLAIN) or not isinstance(right, _PLAIN):
        return UNKNOWN
    if kind is ast.Pow and not _small_power(left, right):
        return UNKNOWN
    if kind is ast.Mult and not _small_product(left, right):
        return UNKNOWN
    if kind is ast.Mod and isinstance(left, str):
        return UNKNOWN
    function = _BINARY.get(kind)
    if function is None:
        return UNKNOWN
    try:
        return _bounded(function(left, right))
    except (TypeError, ValueError, ArithmeticError):
        return UNKNOWN


def unary(kind: type, operand: Value) -> Value:
    """A sign or `~` before a value."""
    function = _UNARY.get(kind)
    if function is None or not isinstance(operand, int | float):
        return UNKNOWN
    try:
        return function(operand)
    except TypeError:
        return UNKNOWN


def compare(kind: type, left: Value, right: Value) -> Value:
    """Whether two values compare so; `UNKNOWN` if nobody can tell."""
    if kind in (ast.Is, ast.IsNot):
        return _identity(kind, left, right)
    if not isinstance(left, _PLAIN) or not isinstance(right, _PLAIN):
        return UNKNOWN
    if not is_small(left) or not is_small(right):
        return UNKNOWN
    try:
        return _COMPARE[kind](left, right)
    except TypeError:
        return UNKNOWN


def is_small(value: Value) -> bool:
    """Whether a value has so few parts, those of its parts included, that comparing or
    hashing it ends soon: lists that hold one list twice double with each level.
    """
    waiting = [(value, 0)]
    for _ in range(LONGEST):
        if not waiting:
            return True
        (each, depth) = waiting.pop()
        if depth > _DEEPEST:
            return False
        parts = each.values() if isinstance(each, dict) else each
        if isinstance(each, list | tuple | dict) and len(each) <= LONGEST:
            waiting += [(part, depth + 1) for part in parts]
        elif isinstance(each, list | tuple | dict):
            return False
    return not waiting


def truth(value: Value) -> Value:
    """Whether a value counts as true: True, False or `UNKNOWN`."""
    if value is UNKNOWN:
        return UNKNOWN
    if isinstance(value, _PLAIN):
        return bool(value)
    return True


def decided(value: Value) -> Value:
    """The same, for a condition: what a function of a library answers is not known."""
    if isinstance(value, Thing) and value.user_class is None:
        is_plain = not {"is_model", "layer", "data", "loader"} & value.facts.keys()
        if is_plain and value.last_name[:1].islower():
            return UNKNOWN
    return truth(value)


def _identity(kind: type, left: Value, right: Value) -> Value:
    if left is UNKNOWN or right is UNKNOWN:
        return UNKNOWN
    same = left is right
    return same if kind is ast.Is else not same


def _small_power(base: Value, exponent: Value) -> bool:
    if not isinstance(base, int | float) or not isinstance(exponent, int | float):
        return False
    return abs(base) <= 10**6 and abs(exponent) <= 64


def _small_product(left: Value, right: Value) -> bool:
    for sequence, times in ((left, right), (right, left)):
        if isinstance(sequence, str | list | tuple):
            length = len(sequence)
            return isinstance(times, int) and length * times <= LONGEST
    return True


def product(numbers: Iterable[Value], *_: Value) -> Value:
    """The product of numbers; `UNKNOWN` if it would be huge."""
    found: float = 1
    for each in numbers:
        if not isinstance(each, int | float):
            return UNKNOWN
        found *= each
        if abs(found) > _LARGEST:
            return UNKNOWN
    return found


def _bounded(value: Value) -> Value:
    if isinstance(value, int) and abs(value) > _LARGEST:
        return UNKNOWN
    if isinstance(value, str | list | tuple) and len(value) > LONGEST:
        return UNKNOWN
    return value
