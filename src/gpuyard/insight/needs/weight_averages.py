"""Averages of weights that a program keeps beside the model that it trains."""

# The values of a followed program can be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from collections.abc import Sequence

from gpuyard.insight.needs.layers import freeze, weights_of
from gpuyard.insight.needs.values import LibraryCall, Parameter, Thing


def settle_averages(calls: Sequence[LibraryCall]) -> None:
    """Count what Diffusers' `EMAModel` keeps: a copy of the weights that it is given.

    A model that no optimiser trains was made for the average alone, and is that copy.
    """
    things = [call.thing for call in calls]
    trained = [_model_of(each) for each in things if "optim" in each.name]
    for thing in things:
        model = _model_of(thing) if thing.last_name == "EMAModel" else None
        if model is None:
            continue
        if any(trained) and not any(each is model for each in trained):
            freeze(model, frozen=True)
        else:
            count = sum(weight.count for weight in weights_of(model))
            thing.attributes["_backbone"] = Parameter(count, frozen=True)
            thing.facts["is_model"] = True


def _model_of(thing: Thing) -> Thing | None:
    """The model whose weights are the first argument of a call."""
    weights = thing.argument(0, "parameters", "params", default=None)
    model = weights.facts.get("of") if isinstance(weights, Thing) else None
    return model if isinstance(model, Thing) else None
