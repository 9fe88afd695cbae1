"""The layers of PyTorch, and how many weights each has.

`fill` gives an object the attributes that the layer has: its weights, its sizes, and
its inner layers. A size that nobody knows leaves the layer without weights, and notes
this in the object's facts.
"""

# The values of a followed program can be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, TypeAlias

from gpuyard.insight.needs.nnx_layers import in_pytorch, is_nnx
from gpuyard.insight.needs.repeats import Repeat
from gpuyard.insight.needs.values import UNKNOWN, Parameter, Thing, Value, whole

Filler: TypeAlias = Callable[[Thing, "_Arguments"], None]


class UnknownSize(Exception):  # noqa: N818 - no error: the program does not say it
    """A size of a layer is not known."""


class _Arguments:
    """The arguments of a layer, as whole numbers."""

    def __init__(self, arguments: list[Value], keywords: dict[str, Value]) -> None:
        self.positional = arguments
        self._keywords = keywords

    def value(self, position: int, name: str, default: Value = UNKNOWN) -> Value:
        """An argument as it was given."""
        if name in self._keywords:
            return self._keywords[name]
        if position < len(self.positional):
            return self.positional[position]
        return default

    def size(self, position: int, name: str, default: Value = UNKNOWN) -> int:
        """An argument that must be a number; UnknownSize if it is not known."""
        value = self.value(position, name, default)
        if isinstance(value, tuple | list):
            value = value[0] if value else UNKNOWN
        found = whole(value)
        if found is None or isinstance(value, str):
            raise UnknownSize
        return found

    def sizes(
        self, position: int, name: str, count: int, default: Value
    ) -> tuple[int, ...]:
        """An argument such as a kernel's size, for each of `count` dimensions."""
        value = self.value(position, name, default)
        if isinstance(value, tuple | list):
            found = [whole(each) for each in value]
            if None in found or len(found) != count:
                raise UnknownSize
            return tuple(each for each in found if each is not None)
        single = whole(value)
        if single is None or isinstance(value, str):
            raise UnknownSize
        return (single,) * count

    def flag(self, position: int, name: str, default: bool) -> bool:
        """An argument that is true or false; the default if nobody knows."""
        value = self.value(position, name, default)
        return bool(value) if isinstance(value, bool | int) else default


def _weight(thing: Thing, name: str, *shape: int) -> None:
    thing.attributes[name] = Parameter(prod(shape), shape)


def _linear(thing: Thing, given: _Arguments) -> None:
    inputs = given.size(0, "in_features")
    outputs = given.size(1, "out_features")
    thing.attributes["in_features"] = inputs
    thing.attributes["out_features"] = outputs
    _weight(thing, "weight", outputs, inputs)
    thing.attributes["bias"] = None
    if given.flag(2, "bias", True):
        _weight(thing, "bias", outputs)


def _convolution(dimensions: int, *, transposed: bool = False) -> Filler:
    def fill_convolution(thing: Thing, given: _Arguments) -> None:
        inputs = given.size(0, "in_channels")
        outputs = given.size(1, "out_channels")
        kernel = given.sizes(2, "kernel_size", dimensions, UNKNOWN)
        stride = given.sizes(3, "stride", dimensions, 1)
        groups = given.size(7 if transposed else 6, "groups", 1) or 1
        thing.attributes["in_channels"] = inputs
        thing.attributes["out_channels"] = outputs
        thing.attributes["kernel_size"] = kernel
        thing.attributes["stride"] = stride
        thing.facts["padding"] = given.value(4, "padding", 0)
        thing.facts["upsamples"] = transposed
        _weight(thing, "weight", outputs, inputs // groups, *kernel)
        if given.flag(8 if transposed else 7, "bias", True):
            _weight(thing, "bias", outputs)

    return fill_convolution


def _pool(thing: Thing, given: _Arguments) -> None:
    kernel = given.size(0, "kernel_size", 2)
    stride = given.value(1, "stride", None)
    first = stride[0] if isinstance(stride, tuple | list) and stride else stride
    thing.facts["stride"] = whole(first) or kernel


def _adaptive_pool(thing: Thing, given: _Arguments) -> None:
    thing.facts["output"] = given.size(0, "output_size", 1)


def _embedding(thing: Thing, given: _Arguments) -> None:
    count = given.size(0, "num_embeddings")
    width = given.size(1, "embedding_dim")
    thing.attributes["num_embeddings"] = count
    thing.attributes["embedding_dim"] = width
    _weight(thing, "weight", count, width)


def _layer_norm(thing: Thing, given: _Arguments) -> None:
    shape = given.value(0, "normalized_shape")
    if shape is UNKNOWN:
        shape = given.value(0, "dim")
    sizes = shape if isinstance(shape, tuple | list) else (shape,)
    numbers = [whole(each) for each in sizes]
    if None in numbers:
        raise UnknownSize
    count = prod(each for each in numbers if each is not None)
    _weight(thing, "weight", count)
    if thing.last_name == "LayerNorm":
        _weight(thing, "bias", count)


def _batch_norm(thing: Thing, given: _Arguments) -> None:
    width = given.size(0, "num_features")
    thing.attributes["num_features"] = width
    if given.flag(3, "affine", True):
        _weight(thing, "weight", width)
        _weight(thing, "bias", width)


def _group_norm(thing: Thing, given: _Arguments) -> None:
    width = given.size(1, "num_channels")
    if given.flag(3, "affine", True):
        _weight(thing, "weight", width)
        _weight(thing, "bias", width)


def _recurrent(gates: int) -> Filler:
    def fill_recurrent(thing: Thing, given: _Arguments) -> None:
        inputs = given.size(0, "input_size")
        width = given.size(1, "hidden_size")
        layers = given.size(2, "num_layers", 1)
        directions = 2 if given.flag(6, "bidirectional", False) else 1
        biases = 2 if given.flag(3, "bias", True) else 0
        thing.attributes["hidden_size"] = width
        count = 0
        for layer in range(min(layers, 1000)):
            size = width * directions if layer else inputs
            each = gates * width * (size + width + biases)
            count += directions * each
        thing.attributes["_weights"] = Parameter(count)

    return fill_recurrent


def _recurrent_cell(gates: int) -> Filler:
    def fill_cell(thing: Thing, given: _Arguments) -> None:
        inputs = given.size(0, "input_size")
        width = given.size(1, "hidden_size")
        thing.attributes["_weights"] = Parameter(gates * width * (inputs + width + 2))

    return fill_cell


def _attention(thing: Thing, given: _Arguments) -> None:
    width = given.size(0, "embed_dim")
    thing.attributes["embed_dim"] = width
    thing.facts["heads"] = whole(given.value(1, "num_heads"))
    biases = 4 * width if given.flag(3, "bias", True) else 0
    thing.attributes["_weights"] = Parameter(4 * width * width + biases)


def _block_weights(width: int, inner: int, attentions: int) -> int:
    attention = attentions * (4 * width * width + 4 * width)
    feed_forward = 2 * width * inner + width + inner
    norms = (attentions + 1) * 2 * width
    return attention + feed_forward + norms


def _block(attentions: int) -> Filler:
    def fill_block(thing: Thing, given: _Arguments) -> None:
        width = given.size(0, "d_model")
        inner = given.size(2, "dim_feedforward", 2048)
        thing.attributes["_weights"] = Parameter(
            _block_weights(width, inner, attentions)
        )
        thing.facts["width"] = width
        thing.facts["heads"] = whole(given.value(1, "nhead"))
        thing.facts["layers"] = 1

    return fill_block


def _stack(thing: Thing, given: _Arguments) -> None:
    """Encoder and decoder copy their layer."""
    layer = given.value(0, "encoder_layer")
    if layer is UNKNOWN:
        layer = given.value(0, "decoder_layer")
    if not isinstance(layer, Thing):
        raise UnknownSize
    layers = whole(given.value(1, "num_layers"))
    if layers is None:
        layers = 1
        thing.facts["repeats"] = (Repeat(thing.place, None, keeps=True),)
    count = sum(each.count for each in weights_of(layer))
    thing.attributes["_weights"] = Parameter(count * layers)
    layer.facts["inside"] = True
    thing.facts.update({"width": layer.facts.get("width"), "layers": layers})
    thing.facts["heads"] = layer.facts.get("heads")


def _transformer(thing: Thing, given: _Arguments) -> None:
    width = given.size(0, "d_model", 512)
    encoders = given.size(2, "num_encoder_layers", 6)
    decoders = given.size(3, "num_decoder_layers", 6)
    inner = given.size(4, "dim_feedforward", 2048)
    count = encoders * _block_weights(width, inner, 1)
    count += decoders * _block_weights(width, inner, 2)
    thing.attributes["_weights"] = Parameter(count + 4 * width)
    thing.facts.update({"width": width, "layers": encoders + decoders})
    thing.facts["heads"] = whole(given.value(1, "nhead", 8))


def _bilinear(thing: Thing, given: _Arguments) -> None:
    first = given.size(0, "in1_features")
    second = given.size(1, "in2_features")
    outputs = given.size(2, "out_features")
    _weight(thing, "weight", outputs, first, second)
    _weight(thing, "bias", outputs)


def _prelu(thing: Thing, given: _Arguments) -> None:
    _weight(thing, "weight", given.size(0, "num_parameters", 1))


def _graph_convolution(thing: Thing, given: _Arguments) -> None:
    inputs = given.size(0, "in_channels")
    outputs = given.size(1, "out_channels")
    heads = whole(given.value(2, "heads", 1)) if "GAT" in thing.name else 1
    sides = 2 if thing.last_name in ("SAGEConv", "GraphConv") else 1
    _weight(thing, "weight", outputs * (heads or 1), inputs * sides)
    _weight(thing, "bias", outputs * (heads or 1))


def _sequence(thing: Thing, given: _Arguments) -> None:
    """Layers in a row, in a list or by name."""
    items: Any = [item for item in given.positional if item is not UNKNOWN]
    if len(items) == 1 and isinstance(items[0], list | tuple):
        items = list(items[0])
    elif len(items) == 1 and isinstance(items[0], dict):
        children: dict[Value, Value] = dict(items[0])
        thing.attributes.update({str(name): each for name, each in children.items()})
        is_named = thing.last_name == "ModuleDict"
        items = children if is_named else list(children.values())
    thing.attributes["_children"] = items


_FILLERS: Mapping[str, Filler] = {
    "Linear": _linear,
    "NonDynamicallyQuantizableLinear": _linear,
    "Conv1d": _convolution(1),
    "Conv2d": _convolution(2),
    "Conv3d": _convolution(3),
    "ConvTranspose1d": _convolution(1, transposed=True),
    "ConvTranspose2d": _convolution(2, transposed=True),
    "ConvTranspose3d": _convolution(3, transposed=True),
    "MaxPool1d": _pool,
    "MaxPool2d": _pool,
    "AvgPool2d": _pool,
    "AdaptiveAvgPool2d": _adaptive_pool,
    "Embedding": _embedding,
    "EmbeddingBag": _embedding,
    "LayerNorm": _layer_norm,
    "RMSNorm": _layer_norm,
    "BatchNorm1d": _batch_norm,
    "BatchNorm2d": _batch_norm,
    "BatchNorm3d": _batch_norm,
    "SyncBatchNorm": _batch_norm,
    "GroupNorm": _group_norm,
    "LSTM": _recurrent(4),
    "GRU": _recurrent(3),
    "RNN": _recurrent(1),
    "LSTMCell": _recurrent_cell(4),
    "GRUCell": _recurrent_cell(3),
    "RNNCell": _recurrent_cell(1),
    "MultiheadAttention": _attention,
    "TransformerEncoderLayer": _block(1),
    "TransformerDecoderLayer": _block(2),
    "TransformerEncoder": _stack,
    "TransformerDecoder": _stack,
    "Transformer": _transformer,
    "Bilinear": _bilinear,
    "PReLU": _prelu,
    "Sequential": _sequence,
    "ModuleList": _sequence,
    "ModuleDict": _sequence,
}
_GRAPH = frozenset(
    {"GCNConv", "SAGEConv", "GATConv", "GraphConv", "ChebConv", "TransformerConv"}
)


_OF_PATCHES = ("img_size", "patch_size", "in_chans", "embed_dim")


def is_layer(name: str) -> bool:
    """Whether a dotted name is that of a layer of PyTorch or of Flax NNX."""
    if is_nnx(name):
        return True
    (module, _, last) = name.rpartition(".")
    if module.startswith(("torch_geometric", "dgl")):
        return last in _GRAPH
    if module == "fairscale.nn" or module.startswith("apex"):
        return last in _FILLERS
    if module.startswith("timm.") and last == "PatchEmbed":
        return True
    return module in ("torch.nn", "nn", "torch.nn.modules") and last[:1].isupper()


def _patches(
    arguments: list[Value], keywords: dict[str, Value]
) -> tuple[str, list[Value], dict[str, Value]]:
    """timm's `PatchEmbed(img_size, patch_size, in_chans, embed_dim)`."""
    given = dict(zip(_OF_PATCHES, arguments, strict=False)) | keywords
    size = given.get("patch_size", 16)
    channels = [given.get("in_chans", 3), given.get("embed_dim", 768)]
    return "Conv2d", [*channels, size], {"stride": size}


def fill(
    thing: Thing, name: str, arguments: list[Value], keywords: dict[str, Value]
) -> None:
    """Give an object what a layer of this name has."""
    last = name.rpartition(".")[2]
    if is_nnx(name):
        (last, arguments, keywords) = in_pytorch(name, arguments, keywords)
    if last == "PatchEmbed":
        (last, arguments, keywords) = _patches(arguments, keywords)
    thing.facts["layer"] = last
    filler = _graph_convolution if last in _GRAPH else _FILLERS.get(last)
    if filler is None:
        return
    try:
        filler(thing, _Arguments(arguments, keywords))
    except UnknownSize:
        thing.facts["unknown_size"] = True


def weights_of(value: Value, seen: set[int] | None = None) -> list[Parameter]:
    """The weights of a model or of a layer, each once."""
    found: list[Parameter] = []
    _collect(value, set() if seen is None else seen, found, 0)
    return found


def _collect(value: Value, seen: set[int], found: list[Parameter], depth: int) -> None:
    if not isinstance(value, Parameter | Thing | list | tuple | dict) or depth > 60:
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    match value:
        case Parameter():
            found.append(value)
        case Thing():
            for each in value.attributes.values():
                _collect(each, seen, found, depth + 1)
        case dict():
            for each in value.values():
                _collect(each, seen, found, depth + 1)
        case _:
            for each in value:
                _collect(each, seen, found, depth + 1)


def freeze(model: Thing, *, frozen: bool) -> None:
    """Say of all weights of a model whether they are trained."""
    for weight in weights_of(model):
        weight.frozen = frozen


def parts_of(value: Value, seen: set[int] | None = None) -> list[Thing]:
    """A model and all objects in it, each once, in the order of their definition."""
    found: list[Thing] = []
    _collect_parts(value, set() if seen is None else seen, found, 0)
    return found


def _collect_parts(
    value: Value, seen: set[int], found: list[Thing], depth: int
) -> None:
    if not isinstance(value, Thing | list | tuple | dict) or depth > 60:
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Thing):
        found.append(value)
        inner: Any = value.attributes.values()
    else:
        inner = value.values() if isinstance(value, dict) else value
    for each in list(inner):
        _collect_parts(each, seen, found, depth + 1)
