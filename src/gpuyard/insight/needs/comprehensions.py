"""The comprehensions of a program, each element of which is followed."""

# The values of a followed program can be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import ast
from collections.abc import Callable, Sequence
from typing import Any

from gpuyard.insight.needs import operators
from gpuyard.insight.needs.expressions import MOST_ROUNDS, Expressions
from gpuyard.insight.needs.repeats import has_models, repeat_of
from gpuyard.insight.needs.sources import Sources
from gpuyard.insight.needs.values import UNKNOWN, Scope, Thing, Value


class Comprehensions(Expressions):
    """Follows comprehensions."""

    def __init__(self, sources: Sources, arguments: Sequence[str]) -> None:
        super().__init__(sources, arguments)
        for kind in (ast.ListComp, ast.GeneratorExp, ast.SetComp):
            self.evaluators[kind] = self._comprehension
        self.evaluators[ast.DictComp] = self._dict_comprehension

    def _comprehension(self, node: Any, scope: Scope) -> Value:
        inner = Scope(scope.path, parent=scope, owner=scope.owner)
        found: list[Value] = []

        def add() -> None:
            found.append(self.evaluate(node.elt, inner))

        complete = self._generate(node.generators, [node.elt], inner, add)
        if complete or has_models(found):
            return found
        return self._chosen_weights(node, scope)

    def _chosen_weights(self, node: Any, scope: Scope) -> Value:
        """The weights of a model, of which a comprehension chooses some; UNKNOWN if
        these are not what it runs over.
        """
        first: ast.comprehension = node.generators[0]
        names = [
            each.id for each in ast.walk(first.target) if isinstance(each, ast.Name)
        ]
        is_choice = isinstance(node.elt, ast.Name) and node.elt.id in names
        if not is_choice or len(node.generators) > 1:
            return UNKNOWN
        over = self.evaluate(first.iter, scope)
        return over if isinstance(over, Thing) and "of" in over.facts else UNKNOWN

    def _dict_comprehension(self, node: ast.DictComp, scope: Scope) -> Value:
        inner = Scope(scope.path, parent=scope, owner=scope.owner)
        found: dict[Value, Value] = {}

        def add() -> None:
            key = self.evaluate(node.key, inner)
            value = self.evaluate(node.value, inner)
            if isinstance(key, str | int):
                found[key] = value
            elif key is UNKNOWN:
                found[f"?{len(found)}"] = value

        complete = self._generate(node.generators, [node.key, node.value], inner, add)
        return found if complete or has_models(found.values()) else UNKNOWN

    def _generate(
        self,
        generators: list[ast.comprehension],
        made: list[ast.expr],
        scope: Scope,
        add: Callable[[], None],
    ) -> bool:
        """Call `add` for each element of a comprehension; False if nobody knows
        over what it runs.
        """
        if not generators:
            add()
            return True
        first = generators[0]
        over = self.evaluate(first.iter, scope)
        rounds = self.rounds(over)
        if rounds is None or len(rounds) > MOST_ROUNDS:
            self._generate_once(generators, made, rounds, scope, add)
            return False
        complete = True
        for each in rounds:
            self.assign(first.target, each, scope)
            truths = [operators.truth(self.evaluate(test, scope)) for test in first.ifs]
            if UNKNOWN in truths and False not in truths:
                complete = False
                self._generate_once(generators, made, None, scope, add, each)
            elif all(truths):
                complete = self._generate(generators[1:], made, scope, add) and complete
        return complete

    def _generate_once(
        self,
        generators: list[ast.comprehension],
        made: list[ast.expr],
        rounds: Any,
        scope: Scope,
        add: Callable[[], None],
        element: Value = UNKNOWN,
    ) -> None:
        """Call `add` for one element in place of all."""
        first = generators[0]
        self.assign(first.target, element, scope)
        body = [*first.ifs, *generators[1:], *made]
        repeat = repeat_of(self.place(first.iter, scope), rounds, first.target, body)
        repeat.keeps = True
        self.repeats = (*self.repeats, repeat)
        self._generate(generators[1:], made, scope, add)
        self.repeats = self.repeats[:-1]
