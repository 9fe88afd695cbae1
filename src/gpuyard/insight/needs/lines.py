"""The lines of the program that a recommendation rests on."""

from dataclasses import dataclass
from typing import Any

from gpuyard.insight.needs.facts import Facts, Said
from gpuyard.insight.needs.gpus import GpuCount
from gpuyard.insight.needs.made_models import Model
from gpuyard.insight.needs.memory import Memory
from gpuyard.insight.needs.training import Training
from gpuyard.insight.needs.values import Place


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the program, and what it means. Some facts have no line."""

    place: Place | None
    says: str

    def __str__(self) -> str:
        return self.says if self.place is None else f"{self.place}: {self.says}"

    def to_json(self) -> dict[str, Any]:
        """As JSON: `path`, `line`, `code` and `says`."""
        place = self.place
        return {
            "path": place.path if place else None,
            "line": place.line if place and place.line else None,
            "code": place.text if place and place.text else None,
            "says": self.says,
        }


def lines_of(
    facts: Facts,
    training: Training,
    gpus: GpuCount | None,
    sign: tuple[str, Place | None] | None,
    memory: Memory | None,
) -> list[Line]:
    """All lines, the most important first."""
    found: list[Line] = []
    if sign is not None:
        found.append(Line(_shown(sign[1]), f"it uses a GPU ({sign[0]})"))
    is_any_trained = any(model.trainable for model in facts.models)
    found += [
        Line(_shown(model.place), _about(model, is_any_trained))
        for model in facts.models
    ]
    if gpus is None:
        return found
    found += _of_training(training)
    found += _of_data(facts)
    if gpus.count * gpus.nodes > 1:
        found.append(Line(gpus.place, _count(gpus)))
    if memory is not None:
        found.append(Line(None, _sum(memory, facts, training)))
    return found


def _shown(place: Place | None) -> Place | None:
    return place if place is not None and place.line else None


def millions(count: float) -> str:
    """A number of weights for people: `774 M`, `6.74 B`."""
    if count >= 1e9:
        return f"{count / 1e9:.3g} B"
    if count >= 1e6:
        return f"{count / 1e6:.3g} M"
    return f"{count / 1e3:.3g} K"


def _about(model: Model, is_any_trained: bool) -> str:
    if model.unknown:
        return "the size of this model is not known"
    words = f"{millions(model.parameters)} parameters"
    if loop := model.uncounted:
        words += (
            f" if the loop in line {loop.line} of {loop.path} runs once, and nobody"
        )
        words += " knows how often it does"
    if option := model.thing.facts.get("option"):
        words = f"{model.name} (`{option}`): {words}"
    if model.trainable == 0 and is_any_trained:
        return f"{words}, none of them trained"
    if 0 < model.trainable < model.parameters:
        return f"{words}, {millions(model.trainable)} of them trained"
    return words


def _of_training(training: Training) -> list[Line]:
    found: list[Line] = []
    optimiser = training.optimiser
    if optimiser is not None:
        size = optimiser.bytes_per_weight
        is_assumed = " is assumed, which" if optimiser.assumed else ""
        words = f"{optimiser.name}{is_assumed} keeps {size:g} bytes"
        words += " for each trained weight"
        found.append(Line(optimiser.place, words))
    precision = training.precision
    found.append(Line(precision.place, f"numbers are {precision.name}"))
    if training.lora is not None:
        words = f"LoRA of rank {training.lora.rank}: only adapters are trained"
        found.append(Line(training.lora.place, words))
    if training.checkpointing is not None:
        found.append(Line(training.checkpointing, "activations are computed again"))
    if training.sharding is not None:
        name = training.sharding.name
        words = f"{name} shares the training out over its GPUs"
        if training.sharding.splits_weights:
            words = f"{name} gives each of its GPUs a part of the weights"
        found.append(Line(training.sharding.place, words))
    return found


def _of_data(facts: Facts) -> list[Line]:
    found: list[Line] = []
    _add(found, facts.batch, "a batch of {:g}")
    _add(found, facts.length, "sequences of {:g} tokens")
    _add(found, facts.examples, "{:,.0f} examples")
    _add(found, facts.epochs, "{:g} epochs")
    _add(found, facts.steps, "{:,.0f} steps")
    return found


def _add(found: list[Line], said: Said | None, words: str) -> None:
    if said is None:
        return
    text = words.format(said.value)
    if said.value == 1 and not text.startswith("a batch"):
        text = text.removesuffix("s")
    if said.assumed:
        text = f"{text}, by default"
    elif said.place is None and said.name:
        text = f"{text} (`{said.name}`)"
    found.append(Line(said.place, text))


def _count(gpus: GpuCount) -> str:
    words = f"{gpus.count} GPUs" if gpus.count > 1 else "1 GPU"
    if gpus.nodes > 1:
        words += f" on each of {gpus.nodes} nodes"
    return f"{words} ({gpus.reason})" if gpus.reason and not gpus.place else words


def _sum(memory: Memory, facts: Facts, training: Training) -> str:
    states = memory.weights + memory.gradients + memory.optimiser
    count = millions(sum(model.parameters for model in facts.models))
    optimiser = f"{training.optimiser.name} " if training.optimiser else ""
    beside = "CUDA and vLLM" if memory.shared else "CUDA"
    return (
        f"{count} parameters, {optimiser}{training.precision.name} ≈ {states:.1f} GB;"
        f" activations ≈ {memory.activations:.1f} GB; with {beside}"
        f" ≈ {memory.total:.1f} GB on each GPU"
    )
