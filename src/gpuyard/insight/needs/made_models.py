"""The models that a program makes: their weights, and how much of them is known."""

# The values of a followed program can be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from collections.abc import Sequence
from dataclasses import dataclass

from gpuyard.insight.needs.expressions import code_of
from gpuyard.insight.needs.layers import parts_of, weights_of
from gpuyard.insight.needs.tables import KnownVision
from gpuyard.insight.needs.values import LibraryCall, Parameter, Place, Thing

_PLAIN_LAYERS = frozenset(
    {"Linear", "Dense", "LayerNorm", "BatchNorm1d", "ReLU", "Tanh", "Sigmoid", "ELU"}
    | {"Sequential", "ModuleList", "Dropout", "Softmax", "Identity", "Softplus", "GELU"}
    | {"LeakyReLU", "SiLU", "Flatten", "ModuleDict", "LogSoftmax", "Module"}
)


@dataclass(slots=True)
class Model:
    """A model that the program makes. `trainable` weights get gradients. `uncounted` is
    a loop that makes layers of it, nobody knows how many.
    """

    place: Place
    thing: Thing
    parameters: int
    trainable: int
    name: str
    kind: str
    unknown: bool = False
    by_name: bool = False
    incomplete: bool = False
    uncounted: Place | None = None


def placed(thing: Thing) -> Place:
    """Where an object was made, with the code there."""
    node = thing.facts.get("node")
    text = code_of(node) if node is not None else ""
    return Place(thing.place.path, thing.place.line, text)


def models_of(calls: list[LibraryCall]) -> list[Model]:
    """The models that are part of no other."""
    made = [call.thing for call in calls if call.thing.facts.get("is_model")]
    roots = [thing for thing in made if not thing.facts.get("inside")]
    inner: set[int] = set()
    for root in roots:
        inner |= {id(part) for part in parts_of(root)[1:]}
    seen: set[int] = set()
    found: list[Model] = []
    for root in roots:
        if id(root) in inner or id(root) in seen:
            continue
        seen.add(id(root))
        model = model_of(root, seen)
        if model.parameters or model.unknown:
            found.append(model)
    return _largest_learner(found)


def _largest_learner(models: list[Model]) -> list[Model]:
    """The models without those of fastai's learners but the largest: they are trained
    one after the other.
    """
    learners = [model for model in models if "learner" in model.thing.facts]
    largest = max(learners, key=lambda model: model.parameters, default=None)
    return [each for each in models if each is largest or each not in learners]


def model_of(root: Thing, seen: set[int]) -> Model:
    """A model with those of its weights that are not in `seen`, where they go."""
    weights = [w for w in weights_of(root) if id(w) not in seen]
    seen |= {id(weight) for weight in weights}
    parts = parts_of(root)
    unknown = [part for part in parts if "unknown_model" in part.facts]
    kinds = [part.facts["kind"] for part in parts if "kind" in part.facts]
    names = [part.facts["model_name"] for part in parts if "model_name" in part.facts]
    return Model(
        place=root.place if "option" in root.facts else placed(root),
        thing=root,
        parameters=sum(weight.count for weight in weights),
        trainable=sum(weight.count for weight in weights if not weight.frozen),
        name=str(names[0]) if names else root.last_name,
        kind=str(kinds[0]) if kinds else "own",
        unknown=bool(unknown) or _is_mostly_unknown(parts),
        by_name=any("by_name" in part.facts for part in parts),
        incomplete=any(map(_is_unsized, parts)),
        uncounted=root.facts.get("uncounted"),
    )


def _is_unsized(part: Thing) -> bool:
    """Whether the program does not say how many weights a part of a model has."""
    return "unknown_size" in part.facts or part.facts.get("may_have_weights") is True


def _is_mostly_unknown(parts: Sequence[Thing]) -> bool:
    """Whether more layers have no known size than have one. Nets of linear layers
    alone are small.
    """
    if any("sizes" in part.facts for part in parts):
        return False
    layers = [part for part in parts if "layer" in part.facts or _is_unsized(part)]
    unknown = [part for part in layers if _is_unsized(part)]
    known = [
        part
        for part in layers
        if not _is_unsized(part)
        and any(isinstance(each, Parameter) for each in part.attributes.values())
    ]
    is_plain = all(part.facts.get("layer") in _PLAIN_LAYERS for part in layers)
    return not is_plain and len(unknown) > len(known)


def vision_in(model: Model) -> KnownVision | None:
    """What is known of the first published model for images that is in a model."""
    for part in parts_of(model.thing):
        found = part.facts.get("vision")
        if isinstance(found, KnownVision):
            return found
    return None
