"""Layers of Flax NNX, as the layers of PyTorch that have the same weights."""

# The values of a followed program can be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from collections.abc import Mapping

from gpuyard.insight.needs.values import Value

_MODULES = ("flax.nnx", "nnx")
_NAMES: Mapping[str, str] = {
    "Linear": "Linear",
    "Embed": "Embedding",
    "LayerNorm": "LayerNorm",
    "RMSNorm": "RMSNorm",
    "BatchNorm": "BatchNorm2d",
    "GroupNorm": "GroupNorm",
    "MultiHeadAttention": "MultiheadAttention",
    "Sequential": "Sequential",
    "List": "ModuleList",
    "LSTMCell": "LSTMCell",
    "GRUCell": "GRUCell",
    "SimpleCell": "RNNCell",
}
_CONVOLUTIONS = ("Conv", "ConvTranspose")
_KEYWORDS: Mapping[str, str] = {
    "use_bias": "bias",
    "strides": "stride",
    "feature_group_count": "groups",
}
_OF_LAYER: Mapping[str, Mapping[str, str]] = {
    "Conv": {"in_features": "in_channels", "out_features": "out_channels"},
    "ConvTranspose": {"in_features": "in_channels", "out_features": "out_channels"},
    "Embed": {"features": "embedding_dim"},
    "LayerNorm": {"num_features": "normalized_shape"},
    "RMSNorm": {"num_features": "normalized_shape"},
    "GroupNorm": {"num_features": "num_channels"},
    "MultiHeadAttention": {"in_features": "embed_dim"},
    "LSTMCell": {"in_features": "input_size", "hidden_features": "hidden_size"},
    "GRUCell": {"in_features": "input_size", "hidden_features": "hidden_size"},
    "SimpleCell": {"in_features": "input_size", "hidden_features": "hidden_size"},
}
# What PyTorch takes first comes second here.
_OTHER_ORDER: Mapping[str, tuple[str, str]] = {
    "GroupNorm": ("num_channels", "num_groups"),
    "MultiHeadAttention": ("num_heads", "embed_dim"),
}


def is_nnx(name: str) -> bool:
    """Whether a dotted name is that of a layer of Flax NNX."""
    (module, _, last) = name.rpartition(".")
    return module in _MODULES and (last in _NAMES or last in _CONVOLUTIONS)


def in_pytorch(
    name: str, arguments: list[Value], keywords: dict[str, Value]
) -> tuple[str, list[Value], dict[str, Value]]:
    """The name of PyTorch's layer, and its arguments."""
    last = name.rpartition(".")[2]
    names = {**_KEYWORDS, **_OF_LAYER.get(last, {})}
    renamed = {names.get(each, each): value for each, value in keywords.items()}
    given = list(arguments)
    if last in _OTHER_ORDER:
        renamed.update(zip(_OTHER_ORDER[last], given, strict=False))
        given = []
    if last not in _CONVOLUTIONS:
        return _NAMES[last], given, renamed
    renamed.setdefault("padding", "SAME")
    kernel = given[2] if len(given) > 2 else renamed.get("kernel_size")
    dimensions = len(kernel) if isinstance(kernel, tuple | list) else 1
    return f"{last}{dimensions}d", given, renamed
