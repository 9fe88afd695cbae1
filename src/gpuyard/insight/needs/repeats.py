"""Loops that make layers, of which one round is followed for all of them."""

# The values of a followed program can be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuyard.insight.needs.values import LibraryCall, Parameter, Place, Thing, Value

# No model has more layers of a kind; what says more was read wrong.
_MOST_LAYERS = 10_000
_CHOICES = (ast.If, ast.IfExp, ast.Break, ast.Continue, ast.Return, ast.comprehension)


@dataclass(eq=False, slots=True)
class Repeat:
    """A loop of which one round is followed; `count` is None if nobody knows how often
    it runs. `keeps`: what it makes is kept in a list.
    """

    place: Place
    count: int | None
    keeps: bool = False


def repeat_of(
    place: Place,
    rounds: Sequence[Value] | range | None,
    target: ast.expr,
    body: Iterable[ast.AST],
) -> Repeat:
    """A loop over so many rounds, which count only if all of them are alike."""
    names = {each.id for each in ast.walk(target) if isinstance(each, ast.Name)}
    is_countable = rounds is not None and len(rounds) <= _MOST_LAYERS
    is_alike = is_countable and not any(_varies(each, names) for each in body)
    return Repeat(place, len(rounds) if is_alike and rounds is not None else None)


def _varies(node: ast.AST, names: set[str]) -> bool:
    """Whether rounds may differ: some are left out, or work with the counter."""
    if isinstance(node, ast.JoinedStr):
        return False  # a name such as `f"layer{i}"`
    if isinstance(node, _CHOICES) or (isinstance(node, ast.Name) and node.id in names):
        return True
    return any(_varies(each, names) for each in ast.iter_child_nodes(node))


def has_models(values: Iterable[Value]) -> bool:
    """Whether a layer or a model is among some values."""
    return any(isinstance(v, Thing) and "is_model" in v.facts for v in values)


def note_kept(repeat: Repeat, values: Iterable[Value]) -> None:
    """Note whether one of these values is a list that ends with a model of a loop."""
    for value in values:
        last: Value = value[-1] if isinstance(value, list) and value else None
        is_model = isinstance(last, Thing) and "is_model" in last.facts
        if is_model and repeat in last.facts.get("repeats", ()):
            repeat.keeps = True


def settle_repeats(calls: Sequence[LibraryCall]) -> None:
    """Count the layers that loops make as often as these run."""
    if not any("repeats" in call.thing.facts for call in calls):
        return
    found: dict[int, tuple[Parameter, int]] = {}
    for call in calls:
        thing = call.thing
        if thing.facts.get("is_model") and not thing.facts.get("inside"):
            _settle(thing, found)
    for parameter, times in found.values():
        parameter.count *= times


def _settle(root: Thing, found: dict[int, tuple[Parameter, int]]) -> None:
    made_with = [each for each in _repeats(root) if not each.keeps]
    seen: set[int] = set()
    waiting: list[tuple[Value, tuple[Repeat, ...]]] = [(root, ())]
    while waiting:
        (value, around) = waiting.pop()
        if isinstance(value, Parameter):
            times = _times(around)
            known = found.get(id(value), (value, times))[1]
            found[id(value)] = (value, min(known, times))  # one that layers share
        if not isinstance(value, Thing | list | tuple | dict) or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Thing):
            own = [each for each in _repeats(value) if each not in made_with]
            around = tuple(dict.fromkeys((*around, *own)))
            _note(root, value, around)
        waiting += [(each, around) for each in _inner(value)]


def _inner(value: Value) -> list[Value]:
    if isinstance(value, Thing):
        return list(value.attributes.values())
    return list(value.values()) if isinstance(value, dict) else list(value)


def _note(root: Thing, part: Thing, around: Sequence[Repeat]) -> None:
    is_counted = part.facts.get("is_model") or "layer" in part.facts
    uncounted = [each for each in around if each.count is None]
    if uncounted and is_counted:
        root.facts["uncounted"] = uncounted[0].place
    part.facts["times"] = _times(around)


def _repeats(thing: Thing) -> tuple[Repeat, ...]:
    return thing.facts.get("repeats", ())


def _times(repeats: Iterable[Repeat]) -> int:
    times = 1
    for each in repeats:
        times *= each.count or 1
    return times
