"""What libraries do to models: wrap them, add layers to them, keep their options."""

# The values of a followed program can be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import math

from gpuyard.insight.needs import keras
from gpuyard.insight.needs.diffusion_models import clip_part
from gpuyard.insight.needs.launches import Launches
from gpuyard.insight.needs.layers import parts_of, weights_of
from gpuyard.insight.needs.python_calls import copied_model
from gpuyard.insight.needs.values import (
    UNKNOWN,
    Bound,
    Parameter,
    Scope,
    Tensor,
    Thing,
    Value,
    canonical,
)

_TRAINING = ("fit", "train", "learn", "step", "backward", "fine_tune", "fit_one_cycle")


def _count(model: Thing) -> int:
    return sum(weight.count for weight in weights_of(model))


class ModelCalls(Launches):
    """The part of the libraries that changes models."""

    def _parameter(self, thing: Thing, scope: Scope) -> Value:
        tensor = thing.argument(0, "data")
        shape = tensor.shape if isinstance(tensor, Tensor) else None
        return Parameter(math.prod(shape), shape) if shape else Parameter(0)

    def _wrapped(self, thing: Thing) -> Value:
        model = thing.arguments[0]
        self._host.record(thing, model)
        if isinstance(model, Thing):
            model.facts.setdefault("wrappers", []).append(thing)
            if thing.last_name in ("AveragedModel", "ModelEmaV2"):
                thing.facts["copy"] = copied_model(self._host, model)
                return thing.facts["copy"]
        return model

    def rebound(self, old: Value, new: Value) -> None:
        """A name got another value: of a model that was trained and a later one, only
        the larger counts, because they are not in memory together.
        """
        if not isinstance(old, Thing) or not isinstance(new, Thing) or old is new:
            return
        if "is_model" not in old.facts or "is_model" not in new.facts:
            return
        if any(each is old for each in (*new.arguments, *new.keywords.values())):
            return
        if any(part is old for part in parts_of(new)) or not self._was_used(old):
            return
        is_larger = _count(new) > _count(old) and "unknown_model" not in new.facts
        (old if is_larger else new).facts["inside"] = True

    def _was_used(self, model: Thing) -> bool:
        """Whether anything was trained since a model was made."""
        for call in reversed(self._host.calls):
            if call.thing is model:
                return False
            if call.thing.last_name in _TRAINING:
                return True
        return False

    def _part_of_pipeline(self, thing: Thing, scope: Scope) -> Value:
        """The part of a diffusion model, whatever its class is."""
        if not clip_part(thing):
            return UNKNOWN
        thing.facts["is_model"] = True
        self._host.record(thing)
        return thing

    def _deepspeed(self, thing: Thing, scope: Scope) -> Value:
        model = thing.argument(1, "model")
        optimiser = thing.argument(2, "optimizer")
        return (model, optimiser, UNKNOWN, UNKNOWN)

    def _method_save_hyperparameters(self, receiver: Thing, thing: Thing) -> Value:
        """Lightning keeps the arguments of the initializer as `hparams`."""
        values = dict(receiver.keywords)
        initializer = self._host.attribute(receiver, "__init__")
        if isinstance(initializer, Bound):
            function = initializer.function
            names = [each.arg for each in function.node.args.args[1:]]
            given = dict(zip(names, receiver.arguments, strict=False))
            values = {**function.defaults, **given, **values}
        hparams = receiver.attributes.setdefault(
            "hparams", Thing("pytorch_lightning.Namespace", receiver.place)
        )
        if isinstance(hparams, Thing):
            hparams.attributes.update(values)
        return None

    def _method_append(self, receiver: Thing, thing: Thing) -> Value:
        children = receiver.attributes.get("_children")
        if isinstance(children, list) and thing.arguments:
            children.append(thing.arguments[0])
        return receiver

    def _method_extend(self, receiver: Thing, thing: Thing) -> Value:
        children = receiver.attributes.get("_children")
        if isinstance(children, list) and isinstance(thing.argument(0), list):
            children.extend(thing.arguments[0])
        return receiver

    def _method_add_module(self, receiver: Thing, thing: Thing) -> Value:
        children = receiver.attributes.get("_children")
        value = thing.argument(1, "module")
        if isinstance(children, list):
            children.append(value)
        else:
            receiver.attributes[str(thing.argument(0, "name"))] = value
        return None

    def _method_register_parameter(self, receiver: Thing, thing: Thing) -> Value:
        receiver.attributes[str(thing.argument(0))] = thing.argument(1)
        return None

    def _method_register_buffer(self, receiver: Thing, thing: Thing) -> Value:
        return None

    def _method_add(self, receiver: Thing, thing: Thing) -> Value:
        if keras.is_keras(canonical(receiver)):
            keras.add(receiver, thing.argument(0, "layer"))
        return None
