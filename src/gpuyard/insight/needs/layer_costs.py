"""What the layers of a program's own model cost for one example: multiply-adds, and
numbers that are kept for the backward pass.
"""

# The values of a followed program can be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from dataclasses import dataclass
from math import prod

from gpuyard.insight.needs.layers import parts_of
from gpuyard.insight.needs.values import Parameter, Thing, Value, whole

_CONVOLUTIONS = ("Conv1d", "Conv2d", "Conv3d")
_UPSAMPLING = ("ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d")
_POOLS = ("MaxPool1d", "MaxPool2d", "AvgPool2d")
_NORMS = ("BatchNorm2d", "BatchNorm3d", "GroupNorm", "InstanceNorm2d")
_UNFOLLOWED = ("Conv1d", "ConvTranspose1d", "Conv3d", "ConvTranspose3d")
_LARGEST_SIDE = 2048
_SMALLEST_PATCH = 2
# A norm keeps its input, and the next layer keeps the output of the activation between
# them; besides, there are gradients for a moment, and the workspaces of cuDNN.
_BESIDES = 1.2


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """For one example: 10^9 multiply-adds, 10^6 numbers kept."""

    gmacs: float
    activations: float


def has_convolutions(model: Thing) -> bool:
    """Whether a model works on images or on signals."""
    layers = {part.facts.get("layer") for part in parts_of(model)}
    return bool(layers & {"Conv2d", "Conv3d", "ConvTranspose2d", "Conv2D"})


def hides_sizes(model: Thing) -> bool:
    """Whether a model convolves signals or volumes, whose sizes are not read, or with
    weights of its own.
    """
    for part in parts_of(model):
        if part.facts.get("layer") in _UNFOLLOWED:
            return True
        if part.user_class is not None and any(
            isinstance(each, Parameter)
            and sum(size > 1 for size in each.shape) >= 3
            and len(each.shape) >= 4
            for each in part.attributes.values()
        ):
            return True
    return False


def is_sequence_model(model: Thing) -> bool:
    """Whether a model works on sequences of tokens."""
    layers = {part.facts.get("layer") for part in parts_of(model)}
    if {"TransformerEncoder", "Transformer", "MultiheadAttention", "LSTM"} & layers:
        return True
    return "Embedding" in layers and not layers & {"Conv2d", "Conv3d"}


def convolution_costs(model: Thing, pixels: int) -> LayerCosts:
    """The costs of a model of convolutions for an image with sides of `pixels`.

    The layers are taken in the order of their definition, so branches count as if one
    followed the other. Only where a shortcut makes the image smaller, as in a ResNet,
    does it begin from the image of its own block.
    """
    side = float(pixels)
    if _begins_small(model):
        side = 1.0
    patches = patches_of(model, pixels)
    macs = 0.0
    activations = 0.0
    width = 3
    side_of: dict[int, float] = {}
    for part in parts_of(model):
        layer = part.facts.get("layer")
        times = part.facts.get("times", 1)
        if layer in _CONVOLUTIONS or layer in _UPSAMPLING:
            if _begins_branch(part, width):
                side = side_of.get(part.attributes["in_channels"], side)
            side = _side_after(part, side, upsamples=layer in _UPSAMPLING)
            weight = part.attributes.get("weight")
            count = weight.count if isinstance(weight, Parameter) else 0
            width = whole(part.attributes.get("out_channels")) or width
            macs += count * side**2
            activations += times * width * side**2
        elif layer in _POOLS:
            side = max(side / (whole(part.facts.get("stride")) or 2), 1.0)
        elif layer == "AdaptiveAvgPool2d":
            side = float(whole(part.facts.get("output")) or 1)
        elif layer in _NORMS:
            activations += times * width * side**2
        elif layer == "Upsample":
            side = min(side * 2, _LARGEST_SIDE)
        elif layer == "Linear":
            weight = part.attributes.get("weight")
            tokens = patches.tokens_of(part) if patches else 1.0
            macs += tokens * (weight.count if isinstance(weight, Parameter) else 0)
            activations += (
                times * tokens * 2 * (whole(part.attributes.get("out_features")) or 0)
            )
        elif layer == "LayerNorm" and patches:
            weight = part.attributes.get("weight")
            count = weight.count if isinstance(weight, Parameter) else 0
            activations += count * patches.tokens_of(part)
        elif "output_shape" in part.facts:
            activations += times * 2 * prod(part.facts["output_shape"])
        side_of[width] = side
    return LayerCosts(macs / 1e9, _BESIDES * activations / 1e6)


@dataclass(frozen=True, slots=True)
class Patches:
    """The parts into which a model cuts an image: how many, and how wide it makes each.

    Where a model makes the parts wider, it has fewer: four times for twice the width.
    """

    count: float
    width: int

    def tokens_of(self, part: Thing) -> float:
        """For how many parts a layer works."""
        weight = part.attributes.get("weight")
        shape = weight.shape if isinstance(weight, Parameter) else ()
        width = min(shape, default=0)
        return self.count * min(self.width / width, 1.0) ** 2 if width else 1.0


def patches_of(model: Thing, pixels: int) -> Patches | None:
    """The patches of a vision transformer of a program's own; None of another model."""
    parts = parts_of(model)
    layers = [part.facts.get("layer") for part in parts]
    if (
        layers.count("Linear") <= 2 * layers.count("Conv2d")
        or "LayerNorm" not in layers
    ):
        return None
    for part in parts:
        if part.facts.get("layer") == "Conv2d":
            stride = _last(part.attributes.get("stride"), 1)
            kernel = _last(part.attributes.get("kernel_size"), 0)
            width = whole(part.attributes.get("out_channels"))
            is_patch = stride == kernel and stride >= _SMALLEST_PATCH
            if not is_patch or not width:
                return None
            return Patches((pixels / stride) ** 2, width)
    return None


def _begins_branch(part: Thing, width: int) -> bool:
    """Whether a convolution with a stride does not take what was made just before."""
    stride = _last(part.attributes.get("stride"), 1)
    inputs = part.attributes.get("in_channels")
    return stride > 1 and isinstance(inputs, int) and inputs != width


def _begins_small(model: Thing) -> bool:
    """Whether a model makes images from a vector."""
    for part in parts_of(model):
        layer = part.facts.get("layer")
        if layer in _CONVOLUTIONS or layer in _UPSAMPLING:
            return layer in _UPSAMPLING
    return False


def _side_after(part: Thing, side: float, *, upsamples: bool) -> float:
    stride = max(_last(part.attributes.get("stride"), 1), 1)
    kernel = _last(part.attributes.get("kernel_size"), 1)
    padding = _last(part.facts.get("padding"), kernel // 2)
    if upsamples:
        grown = (side - 1) * stride + kernel - 2 * padding
        return max(min(grown, _LARGEST_SIDE), 1.0)
    return max((side + 2 * padding - kernel) // stride + 1, 1.0)


def _last(value: Value, default: int) -> int:
    if isinstance(value, tuple | list):
        value = value[-1] if value else default
    found = whole(value) if not isinstance(value, str) else None
    return default if found is None else found


def token_activations(model: Thing) -> float:
    """The numbers that a model of a program's own keeps for each token."""
    numbers = 0.0
    for part in parts_of(model):
        weight = part.attributes.get("weight")
        layer = part.facts.get("layer")
        times = part.facts.get("times", 1)
        if layer == "Linear" and isinstance(weight, Parameter):
            numbers += times * sum(weight.shape)
        elif layer in ("LayerNorm", "RMSNorm") and isinstance(weight, Parameter):
            numbers += weight.count
        elif layer in ("TransformerEncoder", "Transformer"):
            width = part.facts.get("width") or 0
            numbers += times * 17 * width * (part.facts.get("layers") or 1)
        elif layer in ("LSTM", "GRU"):
            numbers += times * 8 * (whole(part.attributes.get("hidden_size")) or 0)
    return numbers
