"""The size that a program should get, with the reasons."""

# The values of a followed program can be anything.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from hashlib import sha256
from typing import Any

from gpuyard.domain.gpus import GPUClass
from gpuyard.domain.program_needs import MeasuredNeeds
from gpuyard.domain.tiers import Tier, Tiers
from gpuyard.insight.imports import imported
from gpuyard.insight.needs.confidence import confidence_of
from gpuyard.insight.needs.facts import Facts, facts_of
from gpuyard.insight.needs.gpus import (
    GpuCount,
    gpu_sign,
    gpus_of,
    launched_gpus,
)
from gpuyard.insight.needs.interpreter import Interpreter
from gpuyard.insight.needs.launch_configs import launch_config
from gpuyard.insight.needs.lines import Line, lines_of
from gpuyard.insight.needs.memory import Memory, memory_of, trainable_of
from gpuyard.insight.needs.run_time import UTILISATION, Work, hours_on, work_of
from gpuyard.insight.needs.sources import Sources
from gpuyard.insight.needs.training import Training, training_of

# A GPU's memory is never all a program's.
_USABLE = 0.95
_GPU_OF_INSTANCE = {"g4dn": GPUClass.T4, "g5": GPUClass.A10G, "g6": GPUClass.L4}
COMPARED = (
    GPUClass.T4,
    GPUClass.A10G,
    GPUClass.L4,
    GPUClass.A100_40GB,
    GPUClass.H100_80GB,
)
HoursOn = Callable[[GPUClass], float | None]
"""The hours of a training on GPUs of a class; None where they are not known."""
# What is more was read wrong, or is meant to confuse.
_MOST_WEIGHTS = 10**14
_SIZES_GB = (16, 24, 32, 40, 48, 80, 96, 141, 180)
_HEAVY = frozenset(
    {"torch", "tensorflow", "keras", "jax", "flax", "sklearn", "xgboost", "lightgbm"}
    | {"catboost", "pandas", "transformers", "scipy", "polars", "statsmodels", "gym"}
    | {"gymnasium", "cv2", "nltk", "spacy", "fastai", "datasets", "numba", "dask"}
)
# A training this much dearer than the cheapest tier that suits is worth a warning.
_EXPENSIVE = Decimal(10)


@dataclass(frozen=True, slots=True)
class TierCost:
    """A tier in the comparison: whether it suits, its time and its cost."""

    tier: Tier
    units: int
    suits: bool
    why: str
    hours: float | None

    @property
    def per_hour(self) -> Decimal:
        """The price of one hour."""
        return self.tier.cost_per_hour * self.units

    @property
    def cost(self) -> Decimal | None:
        """The price of the training."""
        if self.hours is None:
            return None
        return self.per_hour * Decimal(str(round(self.hours, 4)))


@dataclass(frozen=True, slots=True)
class Read:
    """What a recommendation was made from."""

    digest: str
    facts: Facts
    training: Training
    work: Work | str
    rows: list[Tier]
    is_heavy: bool


@dataclass(slots=True)
class Recommendation:
    """What a program needs. `tier` is None where no tier is large enough.

    `memory` is what was computed; `needed_gb` is what each GPU must have, which comes
    from what was measured where that is known.
    """

    entry: str
    read: Read
    gpus: GpuCount | None
    memory: Memory | None
    needed_gb: float | None
    parameters: int | None
    trainable: int | None
    tier: Tier | None
    confidence: str
    reasons: list[str]
    lines: list[Line]
    unknown: list[str]
    tiers: list[TierCost]
    hours: dict[str, float]
    work: str | None
    warnings: list[str] = field(default_factory=list[str])
    measured: MeasuredNeeds | None = None

    @property
    def gpu_memory_gb(self) -> int | None:
        """The memory of each GPU, as a size that GPUs have."""
        if self.gpus is None or self.needed_gb is None:
            return None
        return _gpu_size(self.needed_gb)

    @property
    def chosen(self) -> TierCost | None:
        """The recommended tier with its cost."""
        return next((row for row in self.tiers if row.tier is self.tier), None)


def recommend(
    sources: Sources,
    arguments: Sequence[str],
    launcher: Sequence[str] = (),
    tiers: Iterable[Tier] | None = None,
) -> Recommendation:
    """What the program of `sources` needs with these arguments, started by the words
    of `launcher`; InvalidInputError if it cannot be read.
    """
    interpreter = Interpreter(sources, arguments)
    config = launch_config(sources, launcher)
    launched = launched_gpus(launcher, config)
    if launched is not None:
        _set_ranks(interpreter.environment, launched)
    scope = interpreter.run()
    if config is not None:
        interpreter.record(config)
    facts = facts_of(interpreter, scope)
    training = training_of(facts)
    sign = gpu_sign(facts, sources, arguments)
    environment = interpreter.environment
    gpus = None
    if sign:
        gpus = launched or gpus_of(facts, sources, arguments, environment)
    sharding = training.sharding
    if sharding is not None and sharding.in_one and not (gpus and gpus.in_one):
        training = replace(training, sharding=None)
    rows = list(Tiers() if tiers is None else tiers)
    return _recommendation(sources, facts, training, gpus, sign, rows)


def _set_ranks(environment: dict[str, str], launched: GpuCount) -> None:
    world = launched.count * launched.nodes
    environment.update({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(world)})
    environment["LOCAL_WORLD_SIZE"] = str(launched.count)


def _recommendation(
    sources: Sources,
    facts: Facts,
    training: Training,
    gpus: GpuCount | None,
    sign: Any,
    rows: list[Tier],
) -> Recommendation:
    parameters = sum(model.parameters for model in facts.models)
    total = gpus.count * gpus.nodes if gpus else 1
    if parameters > _MOST_WEIGHTS:
        parameters = 0
        for model in facts.models:
            model.unknown = True
    is_known = bool(facts.models) and not any(m.unknown for m in facts.models)
    memory = memory_of(facts, training, total) if parameters else None
    work = work_of(facts, training)
    text = sources.text(sources.entry) or ""
    digest = sha256(text.encode(errors="replace")).hexdigest()
    # Where there are GPUs, nobody asks; and to look takes longer than all the rest.
    is_heavy = gpus is None and _has_heavy(sources)
    read = Read(digest, facts, training, work, rows, is_heavy)
    needed_gb = memory.total if memory is not None else None
    compared = compare(read, gpus, needed_gb, computed_hours(read, gpus))
    tier = chosen_tier(compared)
    (confidence, reasons) = confidence_of(facts, training, sign is not None, memory)
    found = Recommendation(
        entry=sources.entry,
        read=read,
        gpus=gpus,
        memory=memory if gpus else None,
        needed_gb=needed_gb,
        parameters=parameters or None,
        trainable=trainable_of(facts, training)
        if parameters and training.optimiser
        else None,
        tier=tier,
        confidence=confidence,
        reasons=reasons,
        lines=lines_of(facts, training, gpus, sign, memory),
        unknown=[]
        if not isinstance(work, str) or gpus is None
        else [f"the run time: {work}"],
        tiers=compared,
        hours=hours_of(computed_hours(read, gpus)),
        work=work.said if isinstance(work, Work) else None,
    )
    if not is_known and gpus is not None:
        found.unknown.insert(0, _about_models(facts))
    warn(found)
    return found


def _about_models(facts: Facts) -> str:
    names = [m.thing.facts.get("unknown_model") for m in facts.models if m.unknown]
    texts = [name for name in names if isinstance(name, str)]
    if texts:
        return f"the size of {texts[0]!r}: it is not in the table of models"
    return "the size of the model: the program does not say it"


def _has_heavy(sources: Sources) -> bool:
    modules = imported(sources.text(sources.entry) or "")
    return bool(modules & _HEAVY)


def computed_hours(read: Read, gpus: GpuCount | None) -> HoursOn:
    """How many hours the training takes on GPUs of a class, as its work says."""

    def hours(gpu_class: GPUClass) -> float | None:
        if isinstance(read.work, str) or gpus is None:
            return None
        return hours_on(read.work, read.training, gpu_class, gpus.count * gpus.nodes)

    return hours


def hours_of(hours: HoursOn) -> dict[str, float]:
    """The hours on the classes that are compared."""
    found = {str(gpu_class): hours(gpu_class) for gpu_class in COMPARED}
    return {name: value for name, value in found.items() if value is not None}


def compare(
    read: Read, gpus: GpuCount | None, needed_gb: float | None, hours: HoursOn
) -> list[TierCost]:
    """Each tier: whether it suits a program that needs so much memory on each GPU and
    takes so many hours.
    """
    if gpus is None:
        return [_cpu_row(tier, read.is_heavy) for tier in read.rows]
    return [_row(tier, gpus, needed_gb, hours) for tier in read.rows]


def _row(
    tier: Tier, gpus: GpuCount, needed_gb: float | None, hours: HoursOn
) -> TierCost:
    if not tier.gpu_count:
        return TierCost(tier, 1, False, "has no GPU", None)
    units = tier.units(gpus.count) * gpus.nodes
    usable = tier.gpu_memory_gb * _USABLE
    if needed_gb is not None and needed_gb > usable:
        why = f"{needed_gb:.1f} GB do not fit in {tier.gpu_memory_gb:g} GB"
        return TierCost(tier, units, False, why, None)
    gpu_class = _GPU_OF_INSTANCE.get((tier.instance or "").partition(".")[0])
    taken = hours(gpu_class) if gpu_class is not None else None
    if taken is None:
        return TierCost(tier, units, True, "", None)
    if taken * 3600 > tier.max_runtime_s:
        why = f"it runs at most {tier.max_runtime_s / 3600:g} h"
        return TierCost(tier, units, False, why, taken)
    return TierCost(tier, units, True, "", taken)


def _cpu_row(tier: Tier, is_heavy: bool) -> TierCost:
    if tier.gpu_count:
        return TierCost(
            tier, 1, False, "has a GPU, which the program does not use", None
        )
    if is_heavy and tier.memory_gb < 2:
        why = f"{tier.memory_gb:g} GB are too little for the libraries that it uses"
        return TierCost(tier, 1, False, why, None)
    return TierCost(tier, 1, True, "", None)


def chosen_tier(rows: list[TierCost]) -> Tier | None:
    """The cheapest tier that suits; where only the time is too long, the one that may
    run longest.
    """
    suited = [row for row in rows if row.suits]
    if suited:
        return min(suited, key=lambda row: row.per_hour).tier
    too_short = [row for row in rows if row.hours is not None]
    if too_short:
        return max(too_short, key=lambda row: row.tier.max_runtime_s).tier
    return None


def _gpu_size(needed: float) -> int:
    found = [size for size in _SIZES_GB if size * _USABLE >= needed]
    return found[0] if found else int(needed / _USABLE) + 1


def warn(found: Recommendation) -> None:
    """Add the warnings that a person should see."""
    size = found.gpu_memory_gb
    if found.tier is None and size is not None:
        found.warnings.append(
            f"no tier has a GPU with enough memory: it takes {size} GB; ask for"
            f" --gpus {found.gpus.count if found.gpus else 1} --gpu-memory {size}"
        )
    chosen = found.chosen
    if chosen is not None and not chosen.suits:
        found.warnings.append(
            f"it may take about {chosen.hours:.0f} h, and {chosen.tier.id} ends a job"
            f" after {chosen.tier.max_runtime_s / 3600:g} h: save checkpoints"
        )
    cost = chosen.cost if chosen else None
    if chosen and cost is not None and cost > _EXPENSIVE:
        found.warnings.append(
            f"it may cost about {cost:.0f} {chosen.tier.currency}: try a short run"
            " first"
        )


def to_json(found: Recommendation) -> dict[str, Any]:
    """The recommendation as one JSON object."""
    memory = found.memory
    return {
        "entry": found.entry,
        "tier": found.tier.id if found.tier else None,
        "needs": {
            "gpus": found.gpus.count if found.gpus else 0,
            "nodes": found.gpus.nodes if found.gpus else 1,
            "gpu_memory_gb": found.gpu_memory_gb,
        },
        "parameters": found.parameters,
        "trainable_parameters": found.trainable,
        "memory_gb": None if memory is None else _memory_json(memory),
        "needed_gb": None if found.needed_gb is None else round(found.needed_gb, 2),
        "confidence": found.confidence,
        "confidence_reasons": found.reasons,
        "lines": [line.to_json() for line in found.lines],
        "unknown": found.unknown,
        "warnings": found.warnings,
        "measured": _measured_json(found.measured),
        "work": found.work,
        "utilisation": UTILISATION,
        "hours": {name: round(hours, 2) for name, hours in found.hours.items()},
        "tiers": [_tier_json(row) for row in found.tiers],
    }


def _measured_json(measured: MeasuredNeeds | None) -> dict[str, Any] | None:
    if measured is None:
        return None
    return measured.model_dump(mode="json", exclude_defaults=True)


def _memory_json(memory: Memory) -> dict[str, float]:
    return {
        "weights": round(memory.weights, 2),
        "gradients": round(memory.gradients, 2),
        "optimiser": round(memory.optimiser, 2),
        "activations": round(memory.activations, 2),
        "overhead": memory.overhead,
        "total": round(memory.total, 2),
    }


def _tier_json(row: TierCost) -> dict[str, Any]:
    return {
        "id": row.tier.id,
        "units": row.units,
        "suits": row.suits,
        "reason": row.why or None,
        "per_hour": float(row.per_hour),
        "hours": None if row.hours is None else round(row.hours, 2),
        "cost": None if row.cost is None else round(float(row.cost), 2),
        "currency": row.tier.currency,
    }
