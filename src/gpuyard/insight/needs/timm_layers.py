"""The parts of transformers that programs take from timm for models of their own, and
parts of other libraries whose weights nobody knows.
"""

# The values of a followed program can be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import re

from gpuyard.insight.needs.layers import fill as fill_layer
from gpuyard.insight.needs.values import UNKNOWN, Thing, Value, number, whole

_PARTS = ("Block", "Attention", "Mlp")
_NO_LAYER = re.compile(
    r"Loss|Criter|Metric|Config|Token|Processor|Schedul|Optim|Logger|Writer|Accura"
    r"|Transform|Dataset|Sampler|Path$|Lock|Event|Counter|Dict$|Image"
)
# They have no weights, or other rules know what they are.
_OTHERS = (
    "torch.",
    "torchmetrics",
    "torchvision.transforms",
    "numpy",
    "builtins",
    "keras",
    "transformers",
    "diffusers",
    "collections",
    "functools",
    "typing",
    "pathlib",
    "logging",
    "pytorch_lightning",
    "datasets",
    "peft",
    "evaluate",
)


def timm_part(thing: Thing) -> bool:
    """Give timm's `Block`, `Attention` or `Mlp` their layers; False for others."""
    last = thing.last_name
    if last not in _PARTS or not thing.name.startswith("timm."):
        return False
    thing.facts["layer"] = last
    thing.facts["is_model"] = True
    width = whole(thing.argument(0, "dim", "in_features"))
    if not width:
        thing.facts["unknown_size"] = True
        return True
    if last == "Block":
        ratio = number(thing.argument(2, "mlp_ratio", default=4.0)) or 4.0
        hidden = whole(width * ratio)
        if hidden is None:
            thing.facts["unknown_size"] = True
            return True
        _normed(thing, width)
        _attention(thing, width)
        _mlp(thing, width, hidden, width)
    elif last == "Attention":
        _attention(thing, width)
    else:
        hidden = thing.argument(1, "hidden_features", default=None)
        out = thing.argument(2, "out_features", default=None)
        _mlp(thing, width, whole(hidden) or width, whole(out) or width)
    return True


def _normed(thing: Thing, width: int) -> None:
    for name in ("norm1", "norm2"):
        _add(thing, name, "LayerNorm", [width])


def _attention(thing: Thing, width: int) -> None:
    _add(thing, "qkv", "Linear", [width, 3 * width])
    _add(thing, "proj", "Linear", [width, width])


def _mlp(thing: Thing, width: int, hidden: int, out: int) -> None:
    _add(thing, "fc1", "Linear", [width, hidden])
    _add(thing, "fc2", "Linear", [hidden, out])


def _add(thing: Thing, name: str, layer: str, sizes: list[Value]) -> None:
    part = Thing(f"torch.nn.{layer}", thing.place, sizes)
    part.facts["inside"] = True
    fill_layer(part, part.name, sizes, {})
    thing.attributes[name] = part


def may_have_weights(thing: Thing) -> bool:
    """Whether an object of a library, which a model has in it, may be a layer that no
    rule knows.
    """
    if thing.user_class is not None or "layer" in thing.facts:
        return False
    if "is_model" in thing.facts or thing.argument(0) is UNKNOWN:
        return False
    name = thing.last_name
    is_class = name[:1].isupper() and not _NO_LAYER.search(name)
    return is_class and "." in thing.name and not thing.name.startswith(_OTHERS)
