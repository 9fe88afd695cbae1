"""Follows a program from its first line, as far as its text allows, without running
any of it.

What the program asks of libraries is noted in `calls`.
"""

# The values of a followed program can be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import ast
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gpuyard.insight.needs import operators
from gpuyard.insight.needs.branches import chosen_return
from gpuyard.insight.needs.branching import Branching
from gpuyard.insight.needs.expressions import (
    OutOfSteps,
    code_of,
)
from gpuyard.insight.needs.scopes import (
    Ending,
    add_keyword,
    bind,
    is_class_scope,
    is_suggestion,
)
from gpuyard.insight.needs.sources import Sources
from gpuyard.insight.needs.values import (
    UNKNOWN,
    Bound,
    External,
    Function,
    Method,
    Scope,
    Thing,
    UserClass,
    Value,
    number,
)

_DEEPEST = 40
# A program that never calls what it defines is a library; these are tried.
_LIKELY = ("main", "train", "run", "fit", "training", "finetune", "train_model")
_MOST_TRIED = 6


class Interpreter(Branching):
    """Follows the program of `sources` with these command-line arguments."""

    def __init__(self, sources: Sources, arguments: Sequence[str]) -> None:
        super().__init__(sources, arguments)
        self._modules: dict[str, Scope] = {}
        self._depth = 0
        self._called: set[int] = set()
        self._statements: dict[type, Callable[[Any, Scope], Ending | None]] = {
            ast.Expr: self._expression,
            ast.Assign: self._assignment,
            ast.AnnAssign: self._annotated,
            ast.AugAssign: self._augmented,
            ast.FunctionDef: self._definition,
            ast.AsyncFunctionDef: self._definition,
            ast.ClassDef: self._class,
            ast.Import: self.follow_import,
            ast.ImportFrom: self.follow_import_from,
            ast.If: self._if,
            ast.For: self._for,
            ast.AsyncFor: self._for,
            ast.While: self._while,
            ast.With: self._with,
            ast.AsyncWith: self._with,
            ast.Try: self._try,
            ast.Return: self._return,
            ast.Raise: lambda _node, _scope: Ending("raise"),
            ast.Break: lambda _node, _scope: Ending("break"),
            ast.Continue: lambda _node, _scope: Ending("continue"),
            ast.Match: self._match,
        }

    def run(self) -> Scope:
        """Follow the program; its names at the end."""
        tree = self.sources.entry_tree()
        scope = Scope(self.sources.entry, {"__name__": "__main__"})
        self._modules[scope.path] = scope
        try:
            self.block(tree.body, scope)
            if not any(call.thing.facts.get("is_model") for call in self.calls):
                self._try_functions(scope)
            self._library.follow_hooks()
        except (OutOfSteps, RecursionError):
            self.steps_left = 0
        return scope

    def _try_functions(self, scope: Scope) -> None:
        """Call the likely functions that the program has not called."""
        functions = [
            value
            for value in scope.names.values()
            if isinstance(value, Function) and id(value.node) not in self._called
        ]
        likely = [each for each in functions if each.name in _LIKELY]
        for each in (likely or functions)[:_MOST_TRIED]:
            self.call_value(each, [], {}, each.node, scope)

    def imported(self, path: str) -> Scope:
        """The names of a module of the program, which is followed once."""
        if path not in self._modules:
            module = Scope(path, {"__name__": path.removesuffix(".py")})
            self._modules[path] = module
            self.run_file(path, module)
        return self._modules[path]

    def run_file(self, path: str, scope: Scope) -> None:
        """Follow the statements of a file in a scope."""
        tree = self.sources.tree(path)
        if tree is not None:
            self.block(tree.body, scope)

    # Calls.

    def call(self, node: ast.Call, scope: Scope) -> Value:
        """The result of a call."""
        function = self.evaluate(node.func, scope)
        arguments = self.elements(node.args, scope)
        keywords: dict[str, Value] = {}
        for keyword in node.keywords:
            add_keyword(keywords, keyword.arg, self.evaluate(keyword.value, scope))
        if function is UNKNOWN and is_suggestion(node):
            return self._library.suggested(arguments)
        return self.call_value(function, arguments, keywords, node, scope)

    def call_value(
        self,
        function: Value,
        arguments: list[Value],
        keywords: dict[str, Value],
        node: ast.AST,
        scope: Scope,
    ) -> Value:
        """The result of calling a value."""
        match function:
            case Function():
                return self._call_function(function, arguments, keywords)
            case Bound():
                given = [function.receiver, *arguments]
                return self._call_function(function.function, given, keywords)
            case UserClass():
                return self._instance(function, arguments, keywords, node, scope)
            case External():
                thing = Thing(
                    function.name, self.place(node, scope), arguments, keywords
                )
                return self._library.call(thing, node, scope)
            case Method():
                thing = Thing(
                    function.name, self.place(node, scope), arguments, keywords
                )
                return self._library.call_method(function.receiver, thing, node, scope)
            case Thing():
                return self._call_thing(function, arguments, keywords, node, scope)
            case _:
                return UNKNOWN

    def _call_function(
        self, function: Function, arguments: list[Value], keywords: dict[str, Value]
    ) -> Value:
        if self._depth >= _DEEPEST:
            return UNKNOWN
        self._called.add(id(function.node))
        (arguments, keywords) = self._library.from_decorators(
            function, arguments, keywords
        )
        scope = Scope(function.scope.path, parent=function.scope, owner=function.owner)
        bind(function, arguments, keywords, scope)
        self._depth += 1
        try:
            if isinstance(function.node, ast.Lambda):
                return self.evaluate(function.node.body, scope)
            ending = self.block(function.node.body, scope)
        finally:
            self._depth -= 1
        value = ending.value if ending and ending.kind == "return" else None
        if scope.returned:
            return chosen_return([*scope.returned, value]) or value
        return value

    def _instance(
        self,
        user_class: UserClass,
        arguments: list[Value],
        keywords: dict[str, Value],
        node: ast.AST,
        scope: Scope,
    ) -> Value:
        place = self.place(node, scope)
        thing = Thing(user_class.name, place, arguments, keywords)
        thing.user_class = user_class
        thing.facts["node"] = node
        initializer = self.attribute(thing, "__init__")
        self._library.begin(thing)
        if isinstance(initializer, Bound):
            self.call_value(initializer, arguments, keywords, node, scope)
        else:
            self._library.fill(thing)
        self._library.end(thing)
        return thing

    def _call_thing(
        self,
        thing: Thing,
        arguments: list[Value],
        keywords: dict[str, Value],
        node: ast.AST,
        scope: Scope,
    ) -> Value:
        called = self.attribute(thing, "__call__") if thing.user_class else None
        if isinstance(called, Bound):
            return self.call_value(called, arguments, keywords, node, scope)
        return self._library.call_thing(thing, arguments, keywords, node, scope)

    def library_attribute(self, name: str) -> Value:
        """What a dotted name of a library means."""
        return self._library.attribute(name)

    def builtin(self, name: str, scope: Scope) -> Value:
        """What a name means that the program does not define."""
        stars = scope.module.stars
        if name in self._library.python_names or not stars:
            return External(f"builtins.{name}")
        return External(f"{stars[-1]}.{name}")

    # Statements.

    def block(self, statements: Iterable[ast.stmt], scope: Scope) -> Ending | None:
        """Follow statements; how they ended, if before the last."""
        for statement in statements:
            self.steps_left -= 1
            if self.steps_left < 0:
                raise OutOfSteps
            follow = self._statements.get(type(statement))
            ending = follow(statement, scope) if follow else None
            if ending is not None:
                return ending
        return None

    def _expression(self, node: ast.Expr, scope: Scope) -> None:
        if not isinstance(node.value, ast.Constant):
            self.evaluate(node.value, scope)

    def _assignment(self, node: ast.Assign, scope: Scope) -> None:
        value = self.evaluate(node.value, scope)
        for target in node.targets:
            self.assign(target, value, scope)

    def _annotated(self, node: ast.AnnAssign, scope: Scope) -> None:
        if node.value is not None:
            self.assign(node.target, self.evaluate(node.value, scope), scope)

    def _augmented(self, node: ast.AugAssign, scope: Scope) -> None:
        old = self.evaluate(node.target, scope)
        value = self.evaluate(node.value, scope)
        if isinstance(old, list) and isinstance(value, list | tuple):
            old.extend(value[: max(operators.LONGEST - len(old), 0)])
            return
        if self._loop_depth and number(old) is not None:
            return  # a counter; what it comes to is not known
        self.assign(node.target, operators.binary(type(node.op), old, value), scope)

    def assign(self, target: ast.expr, value: Value, scope: Scope) -> None:
        """Give a target a value."""
        match target:
            case ast.Name():
                self._library.rebound(scope.names.get(target.id), value)
                scope.names[target.id] = value
            case ast.Attribute():
                self._assign_attribute(target, value, scope)
            case ast.Tuple() | ast.List():
                self._unpack(target.elts, value, scope)
            case ast.Subscript():
                owner = self.evaluate(target.value, scope)
                key = self.evaluate(target.slice, scope)
                self._library.set_item(owner, key, value)
            case ast.Starred():
                self.assign(target.value, value, scope)
            case _:
                pass

    def _assign_attribute(
        self, target: ast.Attribute, value: Value, scope: Scope
    ) -> None:
        owner = self.evaluate(target.value, scope)
        match owner:
            case Thing():
                self._library.set_attribute(owner, target.attr, value)
                self._assigned.append((owner, target.attr, value))
            case Scope():
                owner.names[target.attr] = value
            case UserClass():
                owner.scope.names[target.attr] = value
            case dict():
                owner[target.attr] = value
            case _:
                pass

    def _unpack(self, targets: list[ast.expr], value: Value, scope: Scope) -> None:
        if isinstance(value, list | tuple) and len(value) == len(targets):
            for target, each in zip(targets, value, strict=True):
                self.assign(target, each, scope)
            return
        for target in targets:
            self.assign(target, UNKNOWN, scope)

    def function(self, node: Any, scope: Scope) -> Function:
        """The function that a definition makes."""
        arguments: ast.arguments = node.args
        positional = [*arguments.posonlyargs, *arguments.args]
        last = positional[len(positional) - len(arguments.defaults) :]
        pairs = [*zip(last, arguments.defaults, strict=True)]
        pairs += [
            (argument, default)
            for argument, default in zip(
                arguments.kwonlyargs, arguments.kw_defaults, strict=True
            )
            if default is not None
        ]
        defaults = {arg.arg: self.evaluate(default, scope) for arg, default in pairs}
        outer = (
            scope.parent
            if scope.owner and scope.parent and is_class_scope(scope)
            else scope
        )
        name = getattr(node, "name", "lambda")
        owner = scope.owner if is_class_scope(scope) else None
        return Function(name, node, outer, defaults, {}, owner or scope.owner)

    def _definition(self, node: ast.FunctionDef, scope: Scope) -> None:
        function = self.function(node, scope)
        for decorator in node.decorator_list:
            name = code_of(
                decorator.func if isinstance(decorator, ast.Call) else decorator
            )
            key = (
                name
                if name not in function.decorators
                else f"{len(function.decorators)}.{name}"
            )
            function.decorators[key] = self.evaluate(decorator, scope)
        scope.names[node.name] = function
        self._library.decorated(function)

    def _class(self, node: ast.ClassDef, scope: Scope) -> None:
        bases = [self.evaluate(base, scope) for base in node.bases]
        inner = Scope(scope.path, parent=scope)
        decorators: dict[str, Value] = {}
        for decorator in node.decorator_list:
            name = code_of(
                decorator.func if isinstance(decorator, ast.Call) else decorator
            )
            decorators[name.rpartition(".")[2]] = self.evaluate(decorator, scope)
        made = UserClass(node.name, node, bases, inner, decorators)
        inner.owner = made
        scope.names[node.name] = made
        inner.names["__class__"] = made
        self.block(node.body, inner)

    def _with(self, node: ast.With, scope: Scope) -> Ending | None:
        for item in node.items:
            value = self.evaluate(item.context_expr, scope)
            if item.optional_vars is not None:
                self.assign(item.optional_vars, value, scope)
        return self.block(node.body, scope)

    def _try(self, node: ast.Try, scope: Scope) -> Ending | None:
        ending = self.block(node.body, scope)
        if ending and ending.kind == "raise" and node.handlers:
            ending = self.block(node.handlers[0].body, scope)
        if ending is None:
            ending = self.block(node.orelse, scope)
        return self.block(node.finalbody, scope) or ending

    def _return(self, node: ast.Return, scope: Scope) -> Ending:
        return Ending("return", self.evaluate(node.value, scope))
