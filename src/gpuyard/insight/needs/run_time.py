"""How long a training runs on a class of GPU, if the program says enough."""

from collections.abc import Mapping
from dataclasses import dataclass

from gpuyard.domain.gpus import GPU_CLASSES, GPUClass
from gpuyard.insight.needs.facts import Facts
from gpuyard.insight.needs.layer_costs import (
    convolution_costs,
    has_convolutions,
    is_sequence_model,
)
from gpuyard.insight.needs.made_models import Model, vision_in
from gpuyard.insight.needs.memory import length_of, trainable_of
from gpuyard.insight.needs.training import Training

# The share of its peak that a GPU reaches in training, as people measure it.
UTILISATION = 0.3
# How fast fp32 is against half precision with tensor cores: a fraction of the peak.
_FP32_SHARE = 0.25
_FP32: Mapping[GPUClass, float] = {
    GPUClass.T4: 0.125,
    GPUClass.V100_16GB: 0.125,
    GPUClass.V100_32GB: 0.125,
    GPUClass.P100: 0.5,
    GPUClass.A10G: 0.5,
    GPUClass.A100_40GB: 0.5,
    GPUClass.A100_80GB: 0.5,
    GPUClass.H100_80GB: 0.5,
}
_DEFAULT_PIXELS = 224


@dataclass(frozen=True, slots=True)
class Work:
    """A training's work: examples that are seen, and 10^12 operations for all."""

    examples: float
    teraflops: float
    said: str


def work_of(facts: Facts, training: Training) -> Work | str:
    """The work of the training; or what the program does not say of it."""
    if not facts.models or any(model.unknown for model in facts.models):
        return "the size of the model is not known"
    if training.precision.weight_bytes > 4:
        return "how fast a GPU computes in fp64 is not known"
    examples = _examples(facts)
    if isinstance(examples, str):
        return examples
    (count, said) = examples
    flops = sum(_flops_of(facts, training, model) for model in facts.models)
    return Work(count, count * flops / 1e12, said)


def hours_on(work: Work, training: Training, gpu_class: GPUClass, gpus: int) -> float:
    """The hours that the work takes on so many GPUs of a class."""
    peak = GPU_CLASSES[gpu_class].tflops
    if training.precision.activation_bytes > 2:
        peak *= _FP32.get(gpu_class, _FP32_SHARE)
    return work.teraflops / (peak * UTILISATION * gpus) / 3600


def _examples(facts: Facts) -> tuple[float, str] | str:
    """How many examples the training sees, and how that was counted."""
    if facts.steps is not None:
        if facts.batch is None:
            return "the size of a batch is not known"
        batch = facts.batch.value * facts.accumulation
        words = f"{facts.steps.value:,.0f} steps of {batch:,.0f} examples"
        return facts.steps.value * batch, words
    if facts.epochs is None:
        return "the number of epochs or steps is not known"
    examples = _from_tokens(facts)
    if examples is None and facts.examples is not None:
        examples = facts.examples.value
    if examples is None:
        return "the size of the data is not known"
    words = f"{facts.epochs.value:g} epochs of {examples:,.0f} examples"
    return facts.epochs.value * examples, words


def _from_tokens(facts: Facts) -> float | None:
    """A corpus is read as one text, cut to the length of a sequence."""
    tokens = facts.data.tokens if facts.data else None
    texts = [model for model in facts.models if model.kind in ("decoder", "own")]
    if tokens is None or not texts:
        return None
    (length, _) = length_of(facts, texts[0])
    return tokens / max(length, 1)


def _flops_of(facts: Facts, training: Training, model: Model) -> float:
    """The operations for one example: forward, and backward for what is trained."""
    trains = training.optimiser is not None and model.trainable > 0
    passes = 3 if trains else 1
    if training.lora is not None and trainable_of(facts, training):
        passes = 2
    if training.checkpointing is not None and trains:
        passes += 1
    return passes * _forward(facts, model)


def _forward(facts: Facts, model: Model) -> float:
    pixels = facts.pixels or _DEFAULT_PIXELS
    vision = vision_in(model)
    if vision is not None and vision.gmacs:
        side = _DEFAULT_PIXELS if vision.resizes else pixels
        return 2e9 * vision.gmacs * (side / _DEFAULT_PIXELS) ** 2
    if model.kind == "own" and has_convolutions(model.thing):
        return 2e9 * convolution_costs(model.thing, facts.pixels or 64).gmacs
    if model.kind == "own" and not is_sequence_model(model.thing):
        return 2.0 * model.parameters
    if model.kind == "diffusion":
        return 2.0 * model.parameters * 400
    (length, _) = length_of(facts, model)
    return 2.0 * model.parameters * length
