"""How much memory of a GPU a training needs."""

# The values of a followed program can be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from dataclasses import dataclass

from gpuyard.insight.needs.facts import Facts
from gpuyard.insight.needs.layer_costs import (
    convolution_costs,
    has_convolutions,
    is_sequence_model,
    patches_of,
    token_activations,
)
from gpuyard.insight.needs.made_models import Model, vision_in
from gpuyard.insight.needs.published_models import hidden_of
from gpuyard.insight.needs.training import Training
from gpuyard.insight.needs.values import number

GB = 1e9
# What CUDA, cuDNN and the allocator of a framework take.
_OVERHEAD_GB = 0.8
# Numbers that a layer of a transformer keeps for each token, in widths of the layer.
_LAYER_WIDTHS = 17
_DEFAULT_LENGTHS = {"encoder": 128, "seq2seq": 256, "speech": 1500, "vision": 197}
_LONGEST_DEFAULT = 512
_OWN_LENGTH = 128
_DEFAULT_PIXELS = 224
_MOST_LAYERS = 100
_OF_PAIRS = ("DPOTrainer", "ORPOTrainer", "CPOTrainer", "RewardTrainer")
# What vLLM takes of a GPU on which a trainer runs, if nothing says otherwise.
_BESIDE_TRAINER = 0.3
_LARGEST_SHARE = 0.9
_DETECTOR_PIXELS = 640
# Numbers kept for one example, in weights of the model.
_DIFFUSION_SHARE = 2.5
# Of the outputs of all layers of a published model for images, what is kept: of a
# convolution, its norm and its activation, one goes at once.
_KEPT_SHARE = 0.75
_CHECKPOINTED_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes / 10^9 on one GPU; `shared` is the share that another program has of it."""

    weights: float
    gradients: float
    optimiser: float
    activations: float
    overhead: float = _OVERHEAD_GB
    shared: float = 0.0

    @property
    def total(self) -> float:
        """All of it."""
        states = self.weights + self.gradients + self.optimiser
        return (states + self.activations + self.overhead) / (1 - self.shared)


def memory_of(facts: Facts, training: Training, gpus: int) -> Memory:
    """The memory that the training needs on each of `gpus` GPUs."""
    precision = training.precision
    parameters = sum(model.parameters for model in facts.models)
    trainable = trainable_of(facts, training)
    copies = 2 if precision.mixed else 0
    weights = parameters * precision.weight_bytes + trainable * copies
    if training.lora is not None:
        weights += trainable * 4
    stage = training.sharding.stage if training.sharding and gpus > 1 else 0
    if training.optimiser is None:
        kept = weights / GB / (gpus if stage >= 3 else 1)
        return Memory(kept, 0, 0, _forward_only(facts, training) / GB)
    is_small = training.lora is not None or precision.weight_bytes < 2
    gradient_bytes = 4 if is_small else max(precision.weight_bytes, 2)
    gradients = trainable * gradient_bytes
    if facts.settings.get("optimizer_in_bwd") is True:
        gradients = 0.0
    state_bytes = training.optimiser.bytes_per_weight
    is_half = precision.weight_bytes == 2 and not is_small
    if is_half and training.keeps_full_copy:
        state_bytes += 4
    elif is_half and state_bytes > 2:
        state_bytes = state_bytes / 2  # they have the type of the weights
    elif precision.weight_bytes > 4 and state_bytes > 2:
        state_bytes = state_bytes * 2
    states = trainable * state_bytes
    return Memory(
        weights=weights / GB / (gpus if stage >= 3 else 1),
        gradients=gradients / GB / (gpus if stage >= 2 else 1),
        optimiser=states / GB / (gpus if stage >= 1 else 1),
        activations=_activations(facts, training) / GB,
        shared=_generation_share(facts),
    )


def _generation_share(facts: Facts) -> float:
    """The share of a GPU that generates texts for the training on it."""
    settings = facts.settings
    is_beside = settings.get("vllm_mode") == "colocate"
    if settings.get("use_vllm") is not True or not is_beside:
        return 0.0
    share = number(settings.get("vllm_gpu_memory_utilization"))
    if share is None or not 0 < share <= 1:
        share = _BESIDE_TRAINER
    return min(share, _LARGEST_SHARE)


def trainable_of(facts: Facts, training: Training) -> int:
    """The weights that get gradients."""
    if training.lora is not None:
        largest = max((model.parameters for model in facts.models), default=0)
        return training.lora.weights(largest)
    trained = sum(model.trainable for model in facts.models)
    return trained or sum(model.parameters for model in facts.models)


def length_of(facts: Facts, model: Model) -> tuple[int, bool]:
    """The tokens of one example, and whether the program says so."""
    if facts.length is not None and model.kind not in ("vision", "speech"):
        return int(facts.length.value), True
    published = model.thing.facts.get("published")
    sizes = model.thing.facts.get("sizes")
    if "option" in model.thing.facts and sizes is not None and sizes.positions:
        return sizes.positions, False
    context = published.context if published is not None else 0
    if model.kind in _DEFAULT_LENGTHS:
        return _DEFAULT_LENGTHS[model.kind], False
    return min(context or _OWN_LENGTH, _LONGEST_DEFAULT), False


def _forward_only(facts: Facts, training: Training) -> float:
    return _activations(facts, training) / 20


def _activations(facts: Facts, training: Training) -> float:
    batch = int(facts.batch.value) if facts.batch else 1
    if any(facts.named(*_OF_PAIRS)):
        batch *= 2  # each example is two texts, one of them preferred
    return sum(batch * _of_example(facts, training, model) for model in facts.models)


def _of_example(facts: Facts, training: Training, model: Model) -> float:
    """The bytes that one example keeps until the backward pass."""
    is_frozen = not model.trainable and any(each.trainable for each in facts.models)
    if is_frozen and training.lora is None:
        return 0.0
    size = training.precision.activation_bytes
    vision = vision_in(model)
    pixels = facts.pixels or _DEFAULT_PIXELS
    checkpointed = training.checkpointing is not None
    if vision is not None:
        side = _DEFAULT_PIXELS if vision.resizes else max(pixels, 32)
        scale = (side / _DEFAULT_PIXELS) ** 2
        kept = _CHECKPOINTED_SHARE if checkpointed else _KEPT_SHARE
        return vision.activations * 1e6 * size * scale * kept
    if model.kind == "detector":
        return _of_detector(model, facts.pixels or _DETECTOR_PIXELS) * size
    if model.kind == "diffusion":
        share = _DIFFUSION_SHARE * (0.25 if checkpointed else 1)
        return model.parameters * share * size
    if model.kind == "policy":
        return model.parameters * size  # each layer keeps less than it has weights
    patched = _of_patches(facts, model) * size * (0.15 if checkpointed else 1)
    if model.kind != "own":
        return _of_transformer(facts, training, model) + patched
    if patched:
        return patched
    if has_convolutions(model.thing) or not is_sequence_model(model.thing):
        side = facts.pixels or 64
        costs = convolution_costs(model.thing, side)
        return costs.activations * 1e6 * size
    (length, _) = length_of(facts, model)
    numbers = token_activations(model.thing) * (0.15 if checkpointed else 1)
    vocabulary = float(_vocabulary(facts))
    width = hidden_of(model.parameters)
    heads = max(width // 64, 1)
    layers = max(model.parameters / (12 * width * width), 1)
    square = 2 * heads * layers * length if facts.own_attention else 0.0
    return length * ((numbers + square) * size + vocabulary * 8)


def _of_patches(facts: Facts, model: Model) -> float:
    """The numbers that a vision transformer of a program's own keeps for one image."""
    pixels = facts.pixels or _DEFAULT_PIXELS
    patches = patches_of(model.thing, pixels)
    if patches is None:
        return 0.0
    numbers = convolution_costs(model.thing, pixels).activations * 1e6
    if facts.own_attention and model.kind == "own":
        layers = (model.parameters / 12) / patches.width**2
        heads = max(patches.width // 64, 1)
        is_flat = layers <= _MOST_LAYERS
        numbers += 2 * heads * layers * patches.count**2 if is_flat else 0
    return numbers


def _of_detector(model: Model, pixels: int) -> float:
    """The numbers that a detector keeps for one image.

    Ultralytics measured 0.20 GB for an image of 640 pixels in YOLOv5s, and 0.043 GB for
    one of 416 in YOLOv5n, both in half precision (issues 5092 and 9287 of YOLOv5).
    """
    side = (max(pixels, 32) / _DETECTOR_PIXELS) ** 2
    return 30e6 * (model.parameters / 1e6) ** 0.6 * side


def _vocabulary(facts: Facts) -> int:
    value = facts.settings.get("vocab_size")
    return value if isinstance(value, int) and value < 10**6 else 0


def _of_transformer(facts: Facts, training: Training, model: Model) -> float:
    (length, _) = length_of(facts, model)
    sizes = model.thing.facts.get("sizes")
    published = model.thing.facts.get("published")
    width = sizes.width if sizes else hidden_of(model.parameters)
    sizes_or_published = sizes or published
    vocabulary = sizes_or_published.vocabulary if sizes_or_published else 0
    in_layers = max(model.parameters - vocabulary * width, 0)
    layers = sizes.layers if sizes else max(in_layers / (12 * width**2), 1)
    per_layer = 1 if training.checkpointing else _LAYER_WIDTHS
    numbers = layers * per_layer * width
    if training.checkpointing:
        numbers += _LAYER_WIDTHS * width
    logits = vocabulary * 8 if model.kind in ("decoder", "seq2seq") else 0
    is_classifier = "Classification" in model.place.text
    head = 0 if is_classifier else logits
    return length * (numbers * training.precision.activation_bytes + head)
