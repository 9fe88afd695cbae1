"""How blocks of a program end, and what happens to names at calls and branches."""

import ast
from dataclasses import dataclass
from typing import cast

from gpuyard.insight.needs.values import (
    UNKNOWN,
    UNKNOWN_REST,
    Function,
    Scope,
    Thing,
    Value,
)

_TRAINING = frozenset({"backward", "step", "train_step", "training_step", "zero_grad"})


@dataclass(frozen=True, slots=True)
class Ending:
    """How a block ended early: by `return`, `break`, `continue` or `raise`."""

    kind: str
    value: Value = None


def known_value(ending: Ending) -> bool:
    """Whether a block returned something that is known."""
    return ending.value is not UNKNOWN and ending.value is not None


def add_keyword(keywords: dict[str, Value], name: str | None, value: Value) -> None:
    """Add what stands behind `name=` in a call, or behind `**`."""
    if name is not None:
        keywords[name] = value
    elif isinstance(value, dict):
        given = cast("dict[Value, Value]", value)
        keywords.update({k: v for k, v in given.items() if isinstance(k, str)})
    elif isinstance(value, Thing) and value.attributes:
        keywords.update(value.attributes)
    elif value is UNKNOWN or isinstance(value, Thing):
        keywords[UNKNOWN_REST] = UNKNOWN


def is_class_scope(scope: Scope) -> bool:
    return scope.owner is not None and scope.owner.scope is scope


def bind(
    function: Function,
    arguments: list[Value],
    keywords: dict[str, Value],
    scope: Scope,
) -> None:
    """Give the parameters of a function their values."""
    parameters = function.node.args
    names = [each.arg for each in (*parameters.posonlyargs, *parameters.args)]
    all_names = [*names, *(each.arg for each in parameters.kwonlyargs)]
    scope.names.update(dict.fromkeys(all_names, UNKNOWN))
    if UNKNOWN_REST not in keywords:
        scope.names.update(function.defaults)
    scope.names.update(zip(names, arguments, strict=False))
    scope.names.update({k: v for k, v in keywords.items() if k in all_names})
    if parameters.vararg:
        scope.names[parameters.vararg.arg] = arguments[len(names) :]
    if parameters.kwarg:
        rest = {k: v for k, v in keywords.items() if k not in all_names}
        scope.names[parameters.kwarg.arg] = rest


def merge(
    names: dict[str, Value], before: dict[str, Value], then: dict[str, Value]
) -> None:
    """Add to the names after the second branch what only the first made known."""
    for name, value in then.items():
        is_new = name not in before or before[name] is not value
        has_none = names.get(name, UNKNOWN) is UNKNOWN
        if has_none or (is_new and value is not UNKNOWN):
            names[name] = value


def public_names(scope: Scope) -> dict[str, Value]:
    return {name: v for name, v in scope.names.items() if not name.startswith("_")}


def is_suggestion(node: ast.Call) -> bool:
    """Whether it is `trial.suggest_int(…)` or the like of Optuna."""
    match node.func:
        case ast.Attribute(attr=name):
            return name.startswith("suggest_")
        case _:
            return False


def trains(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(attr=name):
            return name in _TRAINING
        case ast.Call(func=ast.Name(id=name)):
            return name.startswith("train") or name.endswith("_step")
        case _:
            return False
