"""Branches of which nobody knows which one a program takes: the larger model counts."""

# The values of a followed program can be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuyard.insight.needs.layers import weights_of
from gpuyard.insight.needs.values import LibraryCall, Thing, Value


@dataclass(frozen=True, slots=True, eq=False)
class Branch:
    """What a branch made: its calls, and the attributes that it set on objects."""

    calls: Sequence[LibraryCall]
    attributes: Sequence[tuple[Thing, str, Value]]


def is_model(value: Value) -> bool:
    return isinstance(value, Thing) and "is_model" in value.facts


def larger(first: Value, second: Value) -> Value:
    """The larger of two models; one of unknown size is the largest."""
    return second if _size(second) > _size(first) else first


def _size(model: Thing) -> float:
    if "unknown_model" in model.facts:
        return float("inf")
    return sum(weight.count for weight in weights_of(model))


def leave_out(loser: Value, branch: Branch) -> None:
    """The branch of the smaller model is not taken: neither what it made of the model
    counts, nor its optimiser.
    """
    for call in branch.calls:
        thing = call.thing
        if thing is loser:
            thing.facts["inside"] = True
        if "optim" in thing.name.lower():
            thing.facts["left_out"] = True


def choose_names(
    names: dict[str, Value],
    before: dict[str, Value],
    then: dict[str, Value],
    first: Branch,
    second: Branch,
) -> None:
    """Let names that both branches give a model have the larger one."""
    for name, value in then.items():
        other: Value = names.get(name)
        is_new = before.get(name) is not value and before.get(name) is not other
        if value is other or not is_new or not (is_model(value) and is_model(other)):
            continue
        kept = larger(value, other)
        names[name] = kept
        then[name] = kept
        if kept is value:
            leave_out(other, second)
        else:
            leave_out(value, first)


def choose_attributes(first: Branch, second: Branch) -> None:
    """The same for attributes of objects."""
    in_second = {(id(owner), name) for owner, name, _ in second.attributes}
    for owner, name, value in first.attributes:
        other: Value = owner.attributes.get(name)
        is_both = (id(owner), name) in in_second
        if value is other or not is_both or not (is_model(value) and is_model(other)):
            continue
        kept = larger(value, other)
        owner.attributes[name] = kept
        if kept is value:
            leave_out(other, second)
        else:
            leave_out(value, first)


def chosen_return(values: Iterable[Value]) -> Value:
    """The largest model of what branches return; None if none of it is a model."""
    found: Value = None
    for value in values:
        if is_model(value):
            other = found if found is None or larger(found, value) is value else value
            found = value if found is None else larger(found, value)
            if isinstance(other, Thing):
                other.facts["inside"] = True
    return found
