"""The expressions of a program, evaluated as far as its text allows."""

# The values of a followed program can be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import ast
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gpuyard.insight.needs import operators
from gpuyard.insight.needs.branches import Branch, is_model, larger, leave_out
from gpuyard.insight.needs.repeats import Repeat
from gpuyard.insight.needs.sources import Sources
from gpuyard.insight.needs.values import (
    UNKNOWN,
    UNKNOWN_CLASS,
    Bound,
    External,
    Function,
    LibraryCall,
    Loop,
    Method,
    Parameter,
    Place,
    Scope,
    Super,
    Tensor,
    Thing,
    UserClass,
    Value,
)

# How many expressions and statements of a program are followed.
MOST_STEPS = 120_000
# How many rounds of a loop are followed.
MOST_ROUNDS = 260
_LONGEST_CODE = 90
# What libraries call the last layer of a classifier.
HEADS = frozenset(
    {
        "fc",
        "classifier",
        "head",
        "heads",
        "last_linear",
        "_fc",
        "output",
        "l0",
        "flatten",
    }
)


class OutOfSteps(Exception):  # noqa: N818 - no error: the program is just long
    """The program was followed far enough."""


class Expressions(ABC):
    """Evaluates expressions; calls are left to the interpreter."""

    def __init__(self, sources: Sources, arguments: Sequence[str]) -> None:
        self.sources = sources
        self.arguments = tuple(arguments)
        self.environment: dict[str, str] = {}
        self.calls: list[LibraryCall] = []
        self.loops: list[Loop] = []
        self.commands: list[Function] = []
        self.steps_left = MOST_STEPS
        # The loops of which one round is being followed for all.
        self.repeats: tuple[Repeat, ...] = ()
        self.evaluators: dict[type, Callable[[Any, Scope], Value]] = {
            ast.Constant: self._constant,
            ast.Name: self._name,
            ast.Attribute: self._attribute,
            ast.Call: self.call,
            ast.BinOp: self._binary,
            ast.UnaryOp: self._unary,
            ast.BoolOp: self._boolean,
            ast.Compare: self._compare,
            ast.IfExp: self._choice,
            ast.List: self._list,
            ast.Tuple: self._tuple,
            ast.Set: self._list,
            ast.Dict: self._dict,
            ast.Subscript: self._subscript,
            ast.JoinedStr: self._formatted,
            ast.Lambda: self.function,
            ast.NamedExpr: self._named,
            ast.Await: self._inner,
            ast.Starred: self._inner,
            ast.YieldFrom: self._inner,
            ast.Slice: self._slice,
        }

    @abstractmethod
    def call(self, node: ast.Call, scope: Scope) -> Value:
        """The result of a call."""

    @abstractmethod
    def function(self, node: Any, scope: Scope) -> Function:
        """The function that a definition makes."""

    @abstractmethod
    def assign(self, target: ast.expr, value: Value, scope: Scope) -> None:
        """Give a target a value."""

    @abstractmethod
    def call_value(
        self,
        function: Value,
        arguments: list[Value],
        keywords: dict[str, Value],
        node: ast.AST,
        scope: Scope,
    ) -> Value:
        """The result of calling a value."""

    @abstractmethod
    def run_file(self, path: str, scope: Scope) -> None:
        """Follow the statements of a file in a scope."""

    @abstractmethod
    def imported(self, path: str) -> Scope:
        """The names of a module of the program."""

    @abstractmethod
    def library_attribute(self, name: str) -> Value:
        """What a dotted name of a library means."""

    @abstractmethod
    def builtin(self, name: str, scope: Scope) -> Value:
        """What a name means that the program does not define."""

    def record(self, thing: Thing, receiver: Value = None) -> None:
        """Note a call of a library."""
        if self.repeats:
            thing.facts.setdefault("repeats", self.repeats)
        self.calls.append(LibraryCall(thing, receiver))

    def evaluate(self, node: ast.expr | None, scope: Scope) -> Value:
        """The value of an expression."""
        if node is None:
            return None
        self.steps_left -= 1
        if self.steps_left < 0:
            raise OutOfSteps
        evaluator = self.evaluators.get(type(node))
        return evaluator(node, scope) if evaluator else UNKNOWN

    def place(self, node: ast.AST, scope: Scope) -> Place:
        """Where a node stands. Its code is added when somebody wants to read it."""
        return Place(scope.module.path, getattr(node, "lineno", 0))

    def attribute(self, value: Value, name: str) -> Value:
        """An attribute of a value."""
        match value:
            case Thing():
                return self._attribute_of_thing(value, name)
            case External():
                return self.library_attribute(f"{value.name}.{name}")
            case Function() if name == "__name__":
                return value.name
            case Scope():
                if name == "__dict__":
                    return value.names
                return value.names.get(name, UNKNOWN)
            case UserClass():
                return self._attribute_of_class(value, name)
            case Super():
                return self._attribute_of_super(value, name)
            case dict() if name in value and name not in (
                "items",
                "keys",
                "values",
                "get",
            ):
                return value[name]
            case Tensor() | Parameter() if name == "shape":
                return value.shape or UNKNOWN
            case str() | list() | dict() | tuple() | set() | Tensor() | Parameter():
                return Method(value, name)
            case _ if name == "from_pretrained":
                return External(UNKNOWN_CLASS)
            case _:
                return UNKNOWN

    def _attribute_of_thing(self, thing: Thing, name: str) -> Value:
        if name in thing.attributes:
            return thing.attributes[name]
        for each in thing.user_class.ancestry() if thing.user_class else ():
            if name in each.scope.names:
                return self._bound(thing, each.scope.names[name])
        if name in HEADS and "_head" in thing.attributes:
            return thing.attributes["_head"]
        if name == "module" or (name in HEADS and "head_of" in thing.facts):
            return thing
        if name == "__dict__":
            return thing.attributes
        if name == "__class__" and thing.user_class:
            return thing.user_class
        return Method(thing, name)

    def _bound(self, thing: Thing, value: Value) -> Value:
        if not isinstance(value, Function):
            return value
        if "staticmethod" in value.decorators:
            return value
        if any(name.endswith("property") for name in value.decorators):
            return self.call_value(Bound(thing, value), [], {}, value.node, value.scope)
        if "classmethod" in value.decorators and thing.user_class:
            return Bound(thing.user_class, value)
        return Bound(thing, value)

    def _attribute_of_class(self, owner: UserClass, name: str) -> Value:
        for each in owner.ancestry():
            if name in each.scope.names:
                value = each.scope.names[name]
                is_bound = (
                    isinstance(value, Function) and "classmethod" in value.decorators
                )
                return Bound(owner, value) if is_bound else value
        bases = owner.library_bases()
        return External(f"{bases[0]}.{name}") if bases else UNKNOWN

    def _attribute_of_super(self, parent: Super, name: str) -> Value:
        for each in parent.owner.ancestry()[1:]:
            if name in each.scope.names:
                return self._bound(parent.receiver, each.scope.names[name])
        return Method(parent, name)

    # One method for each kind of node.

    def _constant(self, node: ast.Constant, scope: Scope) -> Value:
        return node.value

    def _name(self, node: ast.Name, scope: Scope) -> Value:
        try:
            return scope.find(node.id)
        except KeyError:
            return self.builtin(node.id, scope)

    def _attribute(self, node: ast.Attribute, scope: Scope) -> Value:
        return self.attribute(self.evaluate(node.value, scope), node.attr)

    def _binary(self, node: ast.BinOp, scope: Scope) -> Value:
        left = self.evaluate(node.left, scope)
        right = self.evaluate(node.right, scope)
        return operators.binary(type(node.op), left, right)

    def _unary(self, node: ast.UnaryOp, scope: Scope) -> Value:
        operand = self.evaluate(node.operand, scope)
        if isinstance(node.op, ast.Not):
            truth = operators.decided(operand)
            return truth if truth is UNKNOWN else not truth
        return operators.unary(type(node.op), operand)

    def _boolean(self, node: ast.BoolOp, scope: Scope) -> Value:
        ends = isinstance(node.op, ast.Or)
        value: Value = UNKNOWN
        some_unknown = False
        for each in node.values:
            value = self.evaluate(each, scope)
            truth = operators.truth(value)
            if truth is UNKNOWN:
                some_unknown = True
            elif truth == ends:
                return value
        return UNKNOWN if some_unknown else value

    def _compare(self, node: ast.Compare, scope: Scope) -> Value:
        left = self.evaluate(node.left, scope)
        result: Value = True
        for kind, each in zip(node.ops, node.comparators, strict=True):
            right = self.evaluate(each, scope)
            result = operators.compare(type(kind), left, right)
            if result is not True:
                return result
            left = right
        return result

    def _choice(self, node: ast.IfExp, scope: Scope) -> Value:
        truth = operators.decided(self.evaluate(node.test, scope))
        if truth is not UNKNOWN:
            return self.evaluate(node.body if truth else node.orelse, scope)
        start = len(self.calls)
        value = self.evaluate(node.body, scope)
        if value is not UNKNOWN and not is_model(value):
            return value
        middle = len(self.calls)
        other = self.evaluate(node.orelse, scope)
        if not is_model(value) or not is_model(other) or value is other:
            return other if value is UNKNOWN else value
        kept = larger(value, other)
        if kept is value:
            leave_out(other, Branch(self.calls[middle:], ()))
        else:
            leave_out(value, Branch(self.calls[start:middle], ()))
        return kept

    def elements(self, nodes: Iterable[ast.expr], scope: Scope) -> list[Value]:
        """The values of expressions, with those of `*list` in place."""
        found: list[Value] = []
        for node in nodes:
            value = self.evaluate(node, scope)
            if isinstance(node, ast.Starred):
                found += value if isinstance(value, list | tuple) else [UNKNOWN]
            else:
                found.append(value)
            if len(found) > operators.LONGEST:
                return [UNKNOWN]
        return found

    def _list(self, node: ast.List | ast.Set, scope: Scope) -> Value:
        return self.elements(node.elts, scope)

    def _tuple(self, node: ast.Tuple, scope: Scope) -> Value:
        return tuple(self.elements(node.elts, scope))

    def _dict(self, node: ast.Dict, scope: Scope) -> Value:
        found: dict[Value, Value] = {}
        for key_node, value_node in zip(node.keys, node.values, strict=True):
            value = self.evaluate(value_node, scope)
            if key_node is None:
                found.update(value if isinstance(value, dict) else {})
                continue
            key = self.evaluate(key_node, scope)
            if isinstance(key, str | int | float | bool | tuple | type(None)):
                _put(found, key, value)
        return found

    def _subscript(self, node: ast.Subscript, scope: Scope) -> Value:
        value = self.evaluate(node.value, scope)
        key = self.evaluate(node.slice, scope)
        return self.item(value, key)

    def item(self, value: Value, key: Value) -> Value:
        """`value[key]`."""
        if key is UNKNOWN or value is UNKNOWN:
            return UNKNOWN
        if isinstance(value, Thing):
            return self._item_of_thing(value, key)
        if isinstance(value, External):
            return self._item_of_library(value.name, key)
        if isinstance(value, UserClass | Function):
            return value  # Generic[T]
        if not isinstance(value, list | tuple | dict | str | range):
            return UNKNOWN
        if not operators.is_small(key):
            return UNKNOWN
        try:
            return value[key]
        except (KeyError, IndexError, TypeError, ValueError):
            return UNKNOWN

    def _item_of_library(self, name: str, key: Value) -> Value:
        if name == "os.environ":
            return self.environment.get(key, UNKNOWN)
        if not isinstance(key, str):
            return External(name)  # a generic type
        return External(f"{name.removesuffix('.__dict__')}.{key}")

    def _item_of_thing(self, thing: Thing, key: Value) -> Value:
        children = thing.attributes.get("_children")
        if children is not None:
            return self.item(children, key)
        if isinstance(key, str) and key in thing.attributes:
            return thing.attributes[key]
        if "head_of" in thing.facts:
            return thing
        if thing.last_name in ("load_dataset", "load_from_disk", "DatasetDict", "map"):
            return Thing(thing.name, thing.place, facts={**thing.facts, "split": key})
        return UNKNOWN

    def _slice(self, node: ast.Slice, scope: Scope) -> Value:
        parts = [
            self.evaluate(part, scope) for part in (node.lower, node.upper, node.step)
        ]
        return slice(*parts) if UNKNOWN not in parts else UNKNOWN

    def rounds(self, over: Value) -> "list[Value] | range | tuple[Value, ...] | None":
        """The elements over which a loop runs; None if nobody knows them."""
        match over:
            case list() | tuple() | range():
                return over
            case set():
                return list(over)
            case dict():
                return list(over)
            case str() if len(over) <= MOST_ROUNDS:
                return list(over)
            case Thing() if "_children" in over.attributes:
                children = over.attributes["_children"]
                return children if isinstance(children, list) else list(children)
            case _:
                return None

    def _formatted(self, node: ast.JoinedStr, scope: Scope) -> Value:
        parts: list[str] = []
        length = 0
        for part in node.values:
            inner = part.value if isinstance(part, ast.FormattedValue) else part
            value = self.evaluate(inner, scope)
            if not isinstance(value, str | int | float | bool):
                return UNKNOWN
            parts.append(str(value))
            length += len(parts[-1])
            if length > operators.LONGEST:
                return UNKNOWN
        return "".join(parts)

    def _named(self, node: ast.NamedExpr, scope: Scope) -> Value:
        value = self.evaluate(node.value, scope)
        self.assign(node.target, value, scope)
        return value

    def _inner(self, node: Any, scope: Scope) -> Value:
        return self.evaluate(node.value, scope)


def _put(found: dict[Value, Value], key: Value, value: Value) -> None:
    if not operators.is_small(key):
        return
    try:
        found[key] = value
    except TypeError:
        return


def code_of(node: ast.AST) -> str:
    """The code of a node on one line, shortened."""
    try:
        text = " ".join(ast.unparse(node).split())
    except RecursionError:
        return ""
    return text if len(text) <= _LONGEST_CODE else f"{text[: _LONGEST_CODE - 1]}…"
