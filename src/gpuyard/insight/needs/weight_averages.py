"""Weights that a program keeps beside those that it trains: averages of them, targets,
teachers. They take memory once, and have neither gradients nor an optimiser.
"""

# The values of a followed program can be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import re
from collections.abc import Sequence

from gpuyard.insight.needs.layers import parts_of, weights_of
from gpuyard.insight.needs.values import LibraryCall, Parameter, Thing, Value

# `EMA`, `EMAModel`, `ModelEma`, `ExponentialMovingAverage`.
_AVERAGE = re.compile(r"(^|[a-z_])EMA([A-Z_]|$)|Ema([A-Z_]|$)|MovingAverage")
_DEEPEST = 5


class _Trained:
    """The models, or parts of them, whose weights optimisers are given."""

    def __init__(self, models: Sequence[Thing]) -> None:
        self._models = {id(model) for model in models}
        self._parts = {id(part) for model in models for part in parts_of(model)}
        self.weights = {id(each) for model in models for each in weights_of(model)}

    def shares(self, model: Thing) -> bool:
        """Whether a model is one of these, or one is a part of the other."""
        if id(model) in self._parts:
            return True
        return any(id(part) in self._models for part in parts_of(model))


def settle_averages(calls: Sequence[LibraryCall]) -> None:
    """Find what is trained, and say of all other models that they are not.

    An object of a library that is named after an average keeps a copy of the weights
    that it is given; if no optimiser trains these, they were made for it, and are that
    copy. A model of which the program only makes copies is no part of the training.
    """
    things = [call.thing for call in calls]
    models = _all_trained(things)
    trained = _Trained(models) if models else None
    for thing in things:
        is_average = _AVERAGE.search(thing.last_name) and "copy" not in thing.facts
        if is_average and thing.user_class is None:
            _settle_average(thing, trained)
    if trained:
        _settle_others(things, trained)


def _settle_average(average: Thing, trained: _Trained | None) -> None:
    models = _models_in(average.argument(0, "parameters", "params", "model"))
    if not models or (trained and not any(map(trained.shares, models))):
        return
    count = sum(weight.count for model in models for weight in weights_of(model))
    average.attributes["_backbone"] = Parameter(count, frozen=True)
    average.facts["is_model"] = True


def _settle_others(things: Sequence[Thing], trained: _Trained) -> None:
    """Freeze the models that nothing trains."""
    for thing in things:
        is_root = thing.facts.get("is_model") and not thing.facts.get("inside")
        if not is_root or trained.shares(thing):
            continue
        others = [each for each in weights_of(thing) if id(each) not in trained.weights]
        if "copied" in thing.facts and len(others) == len(weights_of(thing)):
            for part in parts_of(thing):  # only its copies are used
                part.facts["inside"] = True
        for weight in others:
            weight.frozen = True


def _all_trained(things: Sequence[Thing]) -> list[Thing] | None:
    """All that optimisers are given; None if that of one is not known."""
    found: list[Thing] = []
    for thing in things:
        if _gives_model_to_library(thing):
            return None
        if not _is_optimiser(thing):
            continue
        models = _models_in(thing.argument(0, "params", "parameters", "model"))
        if models is None:
            return None
        for model in models:
            found += [model, *_given_to(model)]
    return found


def _given_to(wrapper: Thing, depth: int = 0) -> list[Thing]:
    """The models that an object of a library was given, and may have in it."""
    if wrapper.user_class is not None or depth > _DEEPEST:
        return []
    given = [*wrapper.arguments, *wrapper.keywords.values()]
    found = [each for each in given if isinstance(each, Thing)]
    return found + [inner for each in found for inner in _given_to(each, depth + 1)]


def _is_optimiser(thing: Thing) -> bool:
    is_made = thing.last_name[:1].isupper() or thing.last_name.startswith("create_")
    is_schedule = "sched" in thing.name.lower()
    return "optim" in thing.name.lower() and is_made and not is_schedule


def _gives_model_to_library(thing: Thing) -> bool:
    """Whether it is a trainer, which makes an optimiser itself."""
    return thing.user_class is None and thing.last_name.endswith(("Trainer", "Learner"))


def _models_in(value: Value, depth: int = 0) -> list[Thing] | None:
    """The models whose weights are in the argument of an optimiser; None if they are
    not known.
    """
    if depth > _DEEPEST:
        return None
    inner: Sequence[Value]
    if isinstance(value, Thing):
        model = value.facts.get("of")
        if isinstance(model, Thing):
            return [model]
        if value.facts.get("is_model") or "layer" in value.facts:
            return [value]
        if value.name != "itertools.chain":
            return None
        inner = value.arguments
    elif isinstance(value, dict):
        inner = [value.get("params")]
    elif isinstance(value, list | tuple):
        inner = value
    else:
        return None
    found: list[Thing] = []
    for each in inner:
        models = _models_in(each, depth + 1)
        if models is None:
            return None
        found += models
    return found or None
