"""The values that the interpreter works with, beside numbers, texts, lists and dicts.

`Value` is any of these. What nobody can know without running the program is `UNKNOWN`.
"""

import ast
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

Value: TypeAlias = Any


class Unknown:
    """What the program's text does not say."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN: Final = Unknown()


_MOST_BASES = 1000


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file; `text` is the code there, shortened."""

    path: str
    line: int
    text: str = ""

    def __str__(self) -> str:
        where = f"{self.path}:{self.line}"
        return f"{where} `{self.text}`" if self.text else where


@dataclass(frozen=True, slots=True)
class External:
    """Something of a library, by its dotted name, such as `torch.nn.Linear`."""

    name: str


@dataclass(eq=False, slots=True)
class Parameter:
    """A weight of a model with `count` numbers. One that two layers share is the same
    object.
    """

    count: int
    shape: tuple[int, ...] = ()
    frozen: bool = False


@dataclass(eq=False, slots=True)
class Tensor:
    """A tensor that is no weight; None: nobody knows its shape."""

    shape: tuple[int, ...] | None = None


@dataclass(slots=True)
class Scope:
    """The names of a module, a class or a call; `returned` is what branches of it that
    may be taken return.
    """

    path: str
    names: dict[str, Value] = field(default_factory=dict[str, Value])
    parent: "Scope | None" = None
    stars: list[str] = field(default_factory=list[str])
    owner: "UserClass | None" = None
    returned: list[Value] = field(default_factory=list[Value])

    def find(self, name: str) -> Value:
        """The value of a name here or further out; KeyError if nobody gave it one."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        raise KeyError(name)

    @property
    def module(self) -> "Scope":
        """The scope of the module."""
        scope = self
        while scope.parent is not None:
            scope = scope.parent
        return scope


FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(eq=False, slots=True)
class Function:
    """A function of the program; `decorators` are the names of its decorators."""

    name: str
    node: FunctionNode
    scope: Scope
    defaults: dict[str, Value]
    decorators: dict[str, Value]
    owner: "UserClass | None" = None


@dataclass(eq=False, slots=True)
class UserClass:
    """A class of the program."""

    name: str
    node: ast.ClassDef
    bases: list[Value]
    scope: Scope
    decorators: dict[str, Value]

    def ancestry(self) -> "list[UserClass]":
        """The class and its bases of the program, nearest first."""
        found: dict[int, UserClass] = {}
        waiting: list[UserClass] = [self]
        while waiting and len(found) < _MOST_BASES:
            each = waiting.pop()
            if id(each) in found:
                continue  # by several ways: there can be very many
            found[id(each)] = each
            bases = [base for base in each.bases if isinstance(base, UserClass)]
            waiting += reversed(bases)
        return list(found.values())

    def library_bases(self) -> list[str]:
        """The dotted names of the bases that libraries define."""
        return [
            base.name
            for each in self.ancestry()
            for base in each.bases
            if isinstance(base, External)
        ]


@dataclass(eq=False, slots=True)
class Thing:
    """An object: of a class of a library, or of a class of the program.

    `name` is the dotted name of what was called for it.
    """

    name: str
    place: Place
    arguments: list[Value] = field(default_factory=list[Value])
    keywords: dict[str, Value] = field(default_factory=dict[str, Value])
    attributes: dict[str, Value] = field(default_factory=dict[str, Value])
    user_class: UserClass | None = None
    facts: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def last_name(self) -> str:
        """The last part of the name."""
        return self.name.rpartition(".")[2]

    def argument(self, position: int, *names: str, default: Value = UNKNOWN) -> Value:
        """The argument at a position or of one of these names."""
        for name in names:
            if name in self.keywords:
                return self.keywords[name]
        if 0 <= position < len(self.arguments):
            return self.arguments[position]
        return default


@dataclass(frozen=True, slots=True, eq=False)
class Bound:
    """A method of the program with its object."""

    receiver: Value
    function: Function


@dataclass(frozen=True, slots=True, eq=False)
class Method:
    """A method that a library or Python itself defines, with its object."""

    receiver: Value
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Super:
    """What `super()` means in a method: the bases of `owner`, for `receiver`."""

    receiver: Thing
    owner: UserClass


@dataclass(eq=False, slots=True)
class LibraryCall:
    """A call of a library that the program makes; `receiver` is the object of a
    method.
    """

    thing: Thing
    receiver: Value = None

    @property
    def name(self) -> str:
        """The dotted name."""
        return self.thing.name


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop that trains: its target's name, and how often it runs, if known."""

    place: Place
    target: str
    count: int | None
    over: Value
    depth: int


UNKNOWN_CLASS = "unknown.from_pretrained"
"""What is called where the program does not say which class is meant."""


UNKNOWN_REST = "**"
"""The name under which keywords stand of which nobody knows any, as in `f(**given)`: so
what such a call does not name need not have its default.
"""


def known(value: Value) -> bool:
    """Whether the program's text says what a value is."""
    return value is not UNKNOWN


def number(value: Value) -> float | None:
    """A value as a number; None for anything else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value
    if isinstance(value, str):
        try:
            return float(value.replace("_", ""))
        except ValueError:
            return None
    return None


def whole(value: Value) -> int | None:
    """A value as a whole number that is not negative; None for anything else."""
    found = number(value)
    if found is None or found != found or not 0 <= found < 1e18:
        return None
    return int(found)


def canonical(thing: Thing) -> str:
    """The dotted name of an object: that of its library's class, if it has one."""
    bases = thing.user_class.library_bases() if thing.user_class else []
    return bases[0] if bases else thing.name
