"""How sure a recommendation is, and why."""

from gpuyard.insight.needs.facts import Facts
from gpuyard.insight.needs.gpus import uses_tpu
from gpuyard.insight.needs.layer_costs import (
    has_convolutions,
    hides_sizes,
    is_sequence_model,
)
from gpuyard.insight.needs.made_models import Model, vision_in
from gpuyard.insight.needs.memory import Memory, length_of
from gpuyard.insight.needs.training import Training

# No GPU has more memory.
_LARGEST_GPU_GB = 288


def confidence_of(
    facts: Facts, training: Training, uses_gpu: bool, memory: Memory | None = None
) -> tuple[str, list[str]]:
    """`high`, `medium` or `low`, with the reasons."""
    if not uses_gpu:
        return _without_gpu(facts)
    missing = _missing(facts)
    if memory is not None and memory.activations > _LARGEST_GPU_GB:
        missing.append("no GPU could hold a batch as large as that which was read")
    assumed = _assumed(facts, training)
    if missing:
        return "low", [*missing, *assumed]
    if assumed:
        return "medium", assumed
    return "high", ["the program says its model, its optimiser and its batch"]


def _without_gpu(facts: Facts) -> tuple[str, list[str]]:
    if uses_tpu(facts):
        return "medium", ["it is meant for a TPU, and for no GPU"]
    if facts.models:
        return "medium", ["its model is never moved to a GPU"]
    return "medium", ["nothing in the program uses a GPU"]


def _missing(facts: Facts) -> list[str]:
    found: list[str] = []
    if not facts.complete:
        found.append("the program is too long to be followed to its end")
    if not facts.models:
        found.append("no model was found")
    if any(model.unknown for model in facts.models):
        found.append("the size of a model is not known")
    if any(model.uncounted for model in facts.models):
        found.append("how many layers a loop makes is not known")
    return found


def _is_for_images(model: Model) -> bool:
    vision = vision_in(model)
    if vision is not None:
        return not vision.resizes
    return has_convolutions(model.thing)


def _hides_images(facts: Facts, model: Model) -> bool:
    """Whether a model of convolutions works on sizes that its layers do not say."""
    if model.kind != "own" or vision_in(model) is not None:
        return False
    return facts.resizes_itself or hides_sizes(model.thing)


def _has_sequences(model: Model) -> bool:
    if model.kind != "own":
        return model.kind in ("decoder", "encoder", "seq2seq")
    return is_sequence_model(model.thing) and not has_convolutions(model.thing)


def _assumed(facts: Facts, training: Training) -> list[str]:
    found: list[str] = []
    if any(model.by_name for model in facts.models):
        found.append("the size of a model is taken from its name")
    if any(model.incomplete for model in facts.models):
        found.append("some layers have a size that the program does not say")
    if training.optimiser is None or training.optimiser.assumed:
        found.append("the optimiser is not known")
    if facts.batch is None:
        found.append("the batch is not known, so one example is assumed")
    elif facts.batch.assumed:
        found.append(f"a batch of {facts.batch.value:g} is assumed")
    if facts.pixels is None and any(map(_is_for_images, facts.models)):
        found.append("the size of the images is assumed")
    if any(_hides_images(facts, model) for model in facts.models):
        found.append("what its convolutions keep cannot be followed")
    for model in facts.models[:1]:
        if _has_sequences(model):
            (length, is_said) = length_of(facts, model)
            if not is_said:
                found.append(f"sequences of {length} tokens are assumed")
    return found
