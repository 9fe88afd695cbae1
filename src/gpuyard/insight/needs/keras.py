"""The layers of Keras: their weights follow from the shapes that flow through them."""

# The values of a followed program can be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, TypeAlias

from gpuyard.insight.needs.datasets import recognise_data
from gpuyard.insight.needs.models import recognise
from gpuyard.insight.needs.tables import KnownData
from gpuyard.insight.needs.values import UNKNOWN, Parameter, Tensor, Thing, Value, whole

Shape: TypeAlias = tuple[int, ...]
_Filler: TypeAlias = Callable[[Thing, Shape], tuple[int, Shape] | None]
# A length of a sequence that the program does not say.
_LENGTH = 128


def is_keras(name: str) -> bool:
    """Whether a dotted name is one of Keras."""
    return name.startswith("keras.") and ".optimizers" not in name


def is_data(thing: Thing) -> bool:
    """Whether a call gives one of Keras' data sets."""
    return thing.name.startswith("keras.datasets.") and thing.last_name == "load_data"


def data_of(thing: Thing) -> Value:
    """`((x_train, y_train), (x_test, y_test))`."""
    data: KnownData | None = thing.facts.get("data")
    if data is None or data.examples is None:
        return ((Tensor(), Tensor()), (Tensor(), Tensor()))
    sides: tuple[int, ...] = ()
    if data.pixels:
        sides = (data.pixels, data.pixels)
        sides = sides if data.channels == 1 else (*sides, data.channels)
    x_train = Tensor((data.examples, *sides))
    return ((x_train, Tensor((data.examples,))), (Tensor((10_000, *sides)), Tensor()))


def fill(
    thing: Thing,
    name: str | None = None,
    arguments: list[Value] | None = None,
    keywords: dict[str, Value] | None = None,
) -> None:
    """Give an object what a layer or a model of Keras has."""
    name = name or thing.name
    last = name.rpartition(".")[2]
    if arguments is not None:
        thing.arguments = arguments
        thing.keywords = keywords or {}
    if recognise_data(thing) or recognise(thing):
        if "keras_output" in thing.facts:
            thing.facts["layer"] = "Application"
            thing.facts["kind"] = "vision"
        return
    if last in ("Sequential", "Model", "Functional"):
        thing.facts.update({"is_model": True, "layer": last, "keras_model": True})
        layers = thing.argument(0, "layers", default=None)
        if last == "Sequential" and isinstance(layers, list):
            for layer in layers:
                add(thing, layer)
        elif last != "Sequential" and thing.user_class is None:
            _set_functional(thing)
        return
    if last in ("Input", "InputLayer"):
        shape = thing.argument(0, "shape", "input_shape", "batch_shape")
        thing.facts["shape"] = _shape(shape)
    thing.facts["layer"] = last


def _set_functional(model: Thing) -> None:
    outputs = model.argument(1, "outputs")
    ends = outputs if isinstance(outputs, list | tuple) else [outputs]
    layers: list[Thing] = []
    for end in ends:
        if isinstance(end, Thing):
            _collect(end, layers, set())
    model.attributes["_layers"] = layers


def _collect(node: Thing, layers: list[Thing], seen: set[int]) -> None:
    waiting = [node]
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        layer = each.facts.get("layer_of")
        if isinstance(layer, Thing):
            layers.append(layer)
        waiting += [
            before
            for before in each.facts.get("before", [])
            if isinstance(before, Thing)
        ]


def add(model: Thing, layer: Value) -> None:
    """`model.add(layer)`."""
    if not isinstance(layer, Thing):
        return
    layer.facts["inside"] = True
    layers = model.attributes.setdefault("_layers", [])
    shape = model.facts.get("shape")
    given = layer.argument(-1, "input_shape", "batch_input_shape", default=None)
    if shape is None and given is not None:
        shape = _shape(given)
    if shape is None and whole(layer.keywords.get("input_dim")) is not None:
        shape = (int(layer.keywords["input_dim"]),)
    layers.append(layer)
    model.facts["shape"] = _apply(layer, shape)


def call(layer: Thing, arguments: list[Value]) -> Value:
    """The tensor that a layer gives."""
    before: list[Any] = []
    for argument in arguments:
        before += argument if isinstance(argument, list | tuple) else [argument]
    shapes = [each.facts.get("shape") for each in before if isinstance(each, Thing)]
    shape = _joined(layer, [s for s in shapes if s is not None])
    output = Thing("keras.output", layer.place)
    output.facts.update(
        {"shape": _apply(layer, shape), "before": before, "layer_of": layer}
    )
    layer.facts["inside"] = True
    return output


def _joined(layer: Thing, shapes: list[Shape]) -> Shape | None:
    if not shapes:
        return None
    if layer.facts.get("layer") == "Concatenate":
        return (*shapes[0][:-1], sum(shape[-1] for shape in shapes))
    return shapes[0]


def _shape(value: Value) -> Shape | None:
    if not isinstance(value, tuple | list):
        single = whole(value)
        return None if single is None else (single,)
    sizes = [_LENGTH if each is None else whole(each) for each in value]
    known_sizes = [size for size in sizes if size is not None]
    return tuple(known_sizes) if len(known_sizes) == len(sizes) else None


def _apply(layer: Thing, shape: Shape | None) -> Shape | None:
    """Give a layer its weights for inputs of a shape; the shape of its outputs."""
    name = str(layer.facts.get("layer"))
    if name in ("Input", "InputLayer"):
        return layer.facts.get("shape")
    if name == "Application":
        return (7, 7, layer.facts["keras_output"])
    if "keras_model" in layer.facts:
        return layer.facts.get("shape", shape)
    if name in ("Bidirectional", "TimeDistributed"):
        return _wrapper(layer, name, shape)
    filler = _FILLERS.get(name)
    if name == "Embedding":
        shape = shape or (_LENGTH,)
    if filler is None:
        return shape
    try:
        found = filler(layer, shape) if shape is not None else None
    except (TypeError, ValueError, IndexError):
        found = None
    if found is None:
        layer.facts["unknown_size"] = True
        return None
    (count, output) = found
    if count and "_weights" not in layer.attributes:
        layer.attributes["_weights"] = Parameter(count)
    layer.facts["output_shape"] = output
    return output


def _wrapper(layer: Thing, name: str, shape: Shape | None) -> Shape | None:
    inner = layer.argument(0, "layer")
    if not isinstance(inner, Thing) or shape is None:
        return None
    if name == "TimeDistributed":
        output = _apply(inner, shape[1:])
        layer.attributes["_inner"] = inner
        return None if output is None else (shape[0], *output)
    output = _apply(inner, shape)
    weights = inner.attributes.get("_weights")
    if isinstance(weights, Parameter):
        layer.attributes["_weights"] = Parameter(2 * weights.count)
    inner.facts["inside"] = True
    return None if output is None else (*output[:-1], output[-1] * 2)


def _need(layer: Thing, position: int, *names: str, default: Value = UNKNOWN) -> int:
    value = layer.argument(position, *names, default=default)
    if isinstance(value, tuple | list):
        value = value[0]
    found = whole(value)
    if found is None:
        raise ValueError
    return found


def _sizes(layer: Thing, position: int, name: str, count: int, default: Value) -> Shape:
    value = layer.argument(position, name, default=default)
    if isinstance(value, tuple | list):
        return tuple(int(each) for each in value)
    return (int(value),) * count


def _dense(layer: Thing, shape: Shape) -> tuple[int, Shape]:
    units = _need(layer, 0, "units")
    bias = units if layer.keywords.get("use_bias", True) else 0
    return shape[-1] * units + bias, (*shape[:-1], units)


def _convolution(layer: Thing, shape: Shape) -> tuple[int, Shape]:
    dimensions = len(shape) - 1
    filters = _need(layer, 0, "filters")
    kernel = _sizes(layer, 1, "kernel_size", dimensions, 3)
    strides = _sizes(layer, 2, "strides", dimensions, 1)
    bias = filters if layer.keywords.get("use_bias", True) else 0
    channels = shape[-1]
    weights = prod(kernel) * channels * filters
    if layer.facts.get("layer") == "SeparableConv2D":
        weights = prod(kernel) * channels + channels * filters
    sides = _sides(layer, shape, kernel, strides)
    return weights + bias, (*sides, filters)


def _sides(layer: Thing, shape: Shape, kernel: Shape, strides: Shape) -> Shape:
    """The sides of what a convolution makes of the sides of `shape`."""
    if "Transpose" in str(layer.facts.get("layer")):
        return tuple(a * s for a, s in zip(shape, strides, strict=False))
    if layer.argument(3, "padding", default="valid") == "same":
        return tuple(-(-a // s) for a, s in zip(shape, strides, strict=False))
    triples = zip(shape, kernel, strides, strict=False)
    return tuple(max((a - k) // s + 1, 1) for a, k, s in triples)


def _depthwise(layer: Thing, shape: Shape) -> tuple[int, Shape]:
    kernel = _sizes(layer, 0, "kernel_size", 2, 3)
    return prod(kernel) * shape[-1] + shape[-1], shape


def _pool(layer: Thing, shape: Shape) -> tuple[int, Shape]:
    size = _sizes(layer, 0, "pool_size", len(shape) - 1, 2)
    strides = layer.argument(1, "strides", default=None)
    step = _sizes(layer, 1, "strides", len(shape) - 1, 2) if strides else size
    return 0, (*(max(a // s, 1) for a, s in zip(shape, step, strict=False)), shape[-1])


def _global_pool(layer: Thing, shape: Shape) -> tuple[int, Shape]:
    return 0, (shape[-1],)


def _flatten(layer: Thing, shape: Shape) -> tuple[int, Shape]:
    return 0, (prod(shape),)


def _reshape(layer: Thing, shape: Shape) -> tuple[int, Shape] | None:
    target = _shape(layer.argument(0, "target_shape"))
    return None if target is None else (0, target)


def _batch_norm(layer: Thing, shape: Shape) -> tuple[int, Shape]:
    return 4 * shape[-1], shape


def _layer_norm(layer: Thing, shape: Shape) -> tuple[int, Shape]:
    return 2 * shape[-1], shape


def _embedding(layer: Thing, shape: Shape) -> tuple[int, Shape]:
    width = _need(layer, 1, "output_dim")
    return _need(layer, 0, "input_dim") * width, (*shape, width)


def _recurrent(gates: int) -> _Filler:
    def fill_recurrent(layer: Thing, shape: Shape) -> tuple[int, Shape]:
        units = _need(layer, 0, "units")
        biases = 2 if gates == 3 else 1
        count = gates * units * (shape[-1] + units + biases)
        keeps = layer.keywords.get("return_sequences") is True
        return count, (*shape[:-1], units) if keeps else (units,)

    return fill_recurrent


def _attention(layer: Thing, shape: Shape) -> tuple[int, Shape]:
    heads = _need(layer, 0, "num_heads")
    width = _need(layer, 1, "key_dim") * heads
    return 4 * shape[-1] * width + 3 * width + shape[-1], shape


def _upsample(layer: Thing, shape: Shape) -> tuple[int, Shape]:
    size = _sizes(layer, 0, "size", len(shape) - 1, 2)
    return 0, (*(a * s for a, s in zip(shape, size, strict=False)), shape[-1])


_FILLERS: Mapping[str, _Filler] = {
    "Dense": _dense,
    "Conv1D": _convolution,
    "Conv2D": _convolution,
    "Conv3D": _convolution,
    "Conv2DTranspose": _convolution,
    "SeparableConv2D": _convolution,
    "DepthwiseConv2D": _depthwise,
    "MaxPooling1D": _pool,
    "MaxPooling2D": _pool,
    "MaxPool2D": _pool,
    "AveragePooling2D": _pool,
    "GlobalAveragePooling1D": _global_pool,
    "GlobalAveragePooling2D": _global_pool,
    "GlobalMaxPooling1D": _global_pool,
    "GlobalMaxPooling2D": _global_pool,
    "Flatten": _flatten,
    "Reshape": _reshape,
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _layer_norm,
    "Embedding": _embedding,
    "LSTM": _recurrent(4),
    "GRU": _recurrent(3),
    "SimpleRNN": _recurrent(1),
    "MultiHeadAttention": _attention,
    "UpSampling2D": _upsample,
}
