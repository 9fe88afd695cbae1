"""Branches and loops of a program, as far as its text says how they go.

A condition that nobody can know is followed both ways. A loop that trains is followed
once, and so is one of which nobody knows how often it runs.
"""

# The values of a followed program can be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import ast
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from gpuyard.insight.needs import operators
from gpuyard.insight.needs.branches import (
    Branch,
    choose_attributes,
    choose_names,
    chosen_return,
)
from gpuyard.insight.needs.expressions import MOST_ROUNDS, code_of
from gpuyard.insight.needs.imports import Imports
from gpuyard.insight.needs.library import Library
from gpuyard.insight.needs.repeats import note_kept, repeat_of
from gpuyard.insight.needs.scopes import Ending, known_value, merge, trains
from gpuyard.insight.needs.sources import Sources
from gpuyard.insight.needs.values import UNKNOWN, Loop, Scope, Thing, Value

# A loop over one of these is taken for training.
_COUNTERS = ("epoch", "step", "iter")
_MOST_WHILE = 64
_Follow: TypeAlias = Callable[[], Ending | None]


class Branching(Imports):
    """Follows branches and loops."""

    def __init__(self, sources: Sources, arguments: Sequence[str]) -> None:
        super().__init__(sources, arguments)
        self._library = Library(self)
        self._loop_depth = 0
        self._trains: dict[int, bool] = {}
        # What was set on objects, in order.
        self._assigned: list[tuple[Thing, str, Value]] = []

    @abstractmethod
    def block(self, statements: Iterable[ast.stmt], scope: Scope) -> Ending | None:
        """Follow statements; how they ended, if before the last."""

    def _if(self, node: ast.If, scope: Scope) -> Ending | None:
        truth = operators.decided(self.evaluate(node.test, scope))
        if truth is not UNKNOWN:
            return self.block(node.body if truth else node.orelse, scope)
        return self._either(
            lambda: self.block(node.body, scope),
            lambda: self.block(node.orelse, scope),
            scope,
        )

    def _either(
        self, follow_first: _Follow, follow_second: _Follow, scope: Scope
    ) -> Ending | None:
        """Follow two branches, of which nobody knows which one is taken."""
        before = dict(scope.names)
        (first, one) = self._branch(follow_first)
        then = scope.names
        scope.names = dict(before)
        (second, other) = self._branch(follow_second)
        if first is None or first.kind != "raise":
            choose_names(scope.names, before, then, one, other)
            choose_attributes(one, other)
            merge(scope.names, before, then)
        returned = [e for e in (first, second) if e and e.kind == "return"]
        if first and second:
            return self._one_of(first, returned)
        scope.returned += [each.value for each in returned]
        return None

    def _branch(self, follow: _Follow) -> tuple[Ending | None, Branch]:
        calls = len(self.calls)
        assigned = len(self._assigned)
        ending = follow()
        return ending, Branch(self.calls[calls:], self._assigned[assigned:])

    def _one_of(self, first: Ending, returned: list[Ending]) -> Ending:
        """How two branches that both end do so."""
        model = chosen_return(each.value for each in returned)
        if model is not None:
            return Ending("return", model)
        return next((e for e in returned if e.value is not UNKNOWN), first)

    def _for(self, node: ast.For, scope: Scope) -> Ending | None:
        over = self.evaluate(node.iter, scope)
        rounds = self.rounds(over)
        if self._is_training(node):
            return self._training_loop(node, over, rounds, scope)
        if rounds is None or len(rounds) > MOST_ROUNDS:
            first = rounds[0] if rounds else self._library.element(over)
            return self._repeated(node, first, rounds, scope)
        for each in rounds:
            ending = self._round(node, each, scope)
            if ending and ending.kind in ("return", "raise"):
                return ending
            if ending and ending.kind == "break":
                break
        return None

    def _repeated(
        self, node: ast.For, element: Value, rounds: Any, scope: Scope
    ) -> Ending | None:
        """Follow one round in place of all."""
        repeat = repeat_of(self.place(node, scope), rounds, node.target, node.body)
        self.repeats = (*self.repeats, repeat)
        ending = self._round(node, element, scope, certain=False)
        self.repeats = self.repeats[:-1]
        note_kept(repeat, scope.names.values())
        return ending

    def _round(
        self, node: ast.For, element: Value, scope: Scope, *, certain: bool = True
    ) -> Ending | None:
        self.assign(node.target, element, scope)
        ending = self.block(node.body, scope)
        if (
            ending
            and ending.kind == "return"
            and not certain
            and not known_value(ending)
        ):
            return None
        return ending if certain or (ending and ending.kind == "return") else None

    def _training_loop(
        self, node: ast.For, over: Value, rounds: Any, scope: Scope
    ) -> Ending | None:
        count = len(rounds) if rounds is not None else None
        target = code_of(node.target)
        place = self.place(node, scope)
        self.loops.append(Loop(place, target, count, over, self._loop_depth))
        if count == 0:
            return None
        self._loop_depth += 1
        first = rounds[0] if rounds else self._library.element(over)
        self.assign(node.target, first, scope)
        self.block(node.body, scope)
        self._loop_depth -= 1
        return None

    def _is_training(self, node: ast.For | ast.While) -> bool:
        if self._library.is_building:
            return False  # it makes layers
        found = self._trains.get(id(node))
        if found is None:
            target = code_of(node.target).lower() if isinstance(node, ast.For) else ""
            found = any(word in target for word in _COUNTERS) or any(
                trains(each) for each in ast.walk(node)
            )
            self._trains[id(node)] = found
        return found

    def _while(self, node: ast.While, scope: Scope) -> Ending | None:
        if self._is_training(node):
            self.loops.append(self._library.while_loop(node, scope, self._loop_depth))
            self._loop_depth += 1
            self.block(node.body, scope)
            self._loop_depth -= 1
            return None
        for left in reversed(range(_MOST_WHILE)):
            truth = operators.decided(self.evaluate(node.test, scope))
            if truth is False:
                return None
            is_open = truth is UNKNOWN or isinstance(node.test, ast.Constant)
            ending = self._while_round(node, scope, is_last=is_open or not left)
            if ending and ending.kind in ("return", "raise"):
                return ending
            if is_open or ending:
                return None
        return None

    def _while_round(
        self, node: ast.While, scope: Scope, *, is_last: bool
    ) -> Ending | None:
        if not is_last:
            return self.block(node.body, scope)
        repeat = repeat_of(self.place(node, scope), None, node.test, node.body)
        self.repeats = (*self.repeats, repeat)
        ending = self.block(node.body, scope)
        self.repeats = self.repeats[:-1]
        note_kept(repeat, scope.names.values())
        return ending

    def _match(self, node: ast.Match, scope: Scope) -> Ending | None:
        return self._cases(self.evaluate(node.subject, scope), node.cases, scope)

    def _cases(
        self, subject: Value, cases: Sequence[ast.match_case], scope: Scope
    ) -> Ending | None:
        for at, case in enumerate(cases):
            truth: Value = True if case.guard is None else UNKNOWN
            if isinstance(case.pattern, ast.MatchValue):
                wanted = self.evaluate(case.pattern.value, scope)
                truth = operators.compare(ast.Eq, subject, wanted)
            if truth is True:
                return self.block(case.body, scope)
            if truth is UNKNOWN:
                body = case.body
                return self._either(
                    lambda body=body: self.block(body, scope),
                    lambda at=at: self._cases(subject, cases[at + 1 :], scope),
                    scope,
                )
        return None
