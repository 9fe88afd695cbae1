"""Corrects a recommendation by what was measured of runs."""

import json
from dataclasses import replace
from hashlib import sha256
from typing import Any

from gpuyard.domain.gpus import GPU_CLASSES, GPUClass
from gpuyard.domain.program_needs import (
    LearnedFactors,
    MeasuredNeeds,
    MeasuredProgram,
    ProgramNeeds,
)
from gpuyard.domain.units import format_duration
from gpuyard.insight.needs.lines import Line
from gpuyard.insight.needs.memory import length_of
from gpuyard.insight.needs.recommend import (
    HoursOn,
    Recommendation,
    chosen_tier,
    compare,
    computed_hours,
    hours_of,
    to_json,
    warn,
)
from gpuyard.insight.needs.run_time import Work

# The next run may take a little more than the largest one so far.
MARGIN = 1.1
_LEAST_MARGIN_GB = 0.3
_SHORT_ID = 8
_Line = tuple[float | None, str]


def needs_of(found: Recommendation) -> ProgramNeeds:
    """What was read off the program, as it goes with its job."""
    gpus = found.gpus
    work = found.read.work
    memory = found.memory.total if found.memory else None
    return ProgramNeeds(
        digest=found.read.digest,
        kind=_kind_of(found),
        gpus=gpus.count * gpus.nodes if gpus else 0,
        memory_gb=round(memory, 3) if memory else None,
        teraflops=float(f"{work.teraflops:.6g}")
        if isinstance(work, Work) and work.teraflops > 0
        else None,
    )


def answer_of(found: Recommendation) -> dict[str, Any]:
    """The recommendation as JSON, with what goes with the job."""
    needs = needs_of(found).model_dump(mode="json", exclude_defaults=True)
    return {**to_json(found), "program_needs": needs}


def _kind_of(found: Recommendation) -> str | None:
    """The same for programs with the same model that train in the same way; None where
    the size of a model is not known.
    """
    facts = found.read.facts
    training = found.read.training
    is_known = facts.models and not any(model.unknown for model in facts.models)
    if not is_known or found.memory is None or found.gpus is None:
        return None
    optimiser = training.optimiser
    said = [
        [[model.name, model.parameters, model.trainable] for model in facts.models],
        [length_of(facts, model)[0] for model in facts.models],
        [optimiser.name, optimiser.bytes_per_weight] if optimiser else None,
        training.precision.name,
        facts.batch.value if facts.batch else None,
        facts.pixels,
        found.gpus.count * found.gpus.nodes,
        round(found.memory.total, 3),
    ]
    return sha256(json.dumps(said).encode()).hexdigest()


def corrected(found: Recommendation, measured: MeasuredNeeds) -> Recommendation:
    """The recommendation with what was measured in place of what was computed, and the
    lines that say so.
    """
    gpus = found.gpus
    if gpus is None:
        return found
    (needed_gb, about_memory) = _memory(found, measured)
    (hours, about_time) = _hours(found, measured)
    said = [line for line in (about_time, about_memory) if line]
    if not said:
        return found
    rows = compare(found.read, gpus, needed_gb, hours)
    all_hours = hours_of(hours)
    is_own = measured.own is not None and measured.own.peak_gb is not None
    result = replace(
        found,
        needed_gb=needed_gb,
        tier=chosen_tier(rows),
        tiers=rows,
        hours=all_hours,
        lines=[*found.lines, *(Line(None, words) for words in said)],
        confidence="high" if is_own else found.confidence,
        reasons=["its memory was measured"] if is_own else found.reasons,
        unknown=_still_unknown(found, is_own, bool(all_hours)),
        warnings=[],
        measured=measured,
    )
    warn(result)
    return result


def _still_unknown(
    found: Recommendation, knows_memory: bool, knows_time: bool
) -> list[str]:
    return [
        unknown
        for unknown in found.unknown
        if not (knows_time if unknown.startswith("the run time") else knows_memory)
    ]


# --- memory ---


def _memory(found: Recommendation, measured: MeasuredNeeds) -> _Line:
    """The GB that each GPU must have, and the line that says where that comes from;
    an empty one where nothing was measured.
    """
    own = measured.own
    if own is not None and own.failed_on_gb is not None:
        return _after_failure(found, own, own.failed_on_gb)
    if own is not None and own.peak_gb is not None:
        needed = with_margin(own.peak_gb)
        runs = "1 run" if own.runs == 1 else f"{own.runs} runs"
        changed = " of an earlier version of the program" if own.is_changed else ""
        words = f"measured: {own.peak_gb:.1f} GB in job {_short(own.job_id)}"
        words += f", peak of {runs}{changed}; with a margin {needed:.1f} GB"
        return needed, words
    if measured.alike is not None and measured.alike.memory is not None:
        return _as_alike(found, measured.alike, measured.alike.memory)
    return found.needed_gb, ""


def with_margin(peak_gb: float) -> float:
    """What a GPU must have for a program that was seen to use so much, in GB."""
    return max(peak_gb * MARGIN, peak_gb + _LEAST_MARGIN_GB)


def _after_failure(
    found: Recommendation, own: MeasuredProgram, failed_on_gb: float
) -> _Line:
    """More than a GPU that was too small, whatever was computed or measured before."""
    before = with_margin(own.peak_gb) if own.peak_gb else found.needed_gb
    # A GPU of the next size has enough more, as no program may use all of its memory.
    needed = max(before or 0.0, failed_on_gb)
    words = f"measured: job {_short(own.failed_job_id)} ran out of memory on a GPU with"
    return needed, f"{words} {failed_on_gb:.0f} GB, so it needs a larger one"


def _as_alike(found: Recommendation, alike: LearnedFactors, factor: float) -> _Line:
    if found.memory is None:
        return found.needed_gb, ""
    needed = with_margin(found.memory.total * factor)
    words = f"measured: programs with this model, optimiser and batch took {factor:.2g}"
    words += f" times the memory that was computed, in {_runs(alike)}; with a margin"
    return needed, f"{words} {needed:.1f} GB"


# --- time ---


def _hours(found: Recommendation, measured: MeasuredNeeds) -> tuple[HoursOn, str]:
    """The hours on each class, and the line that says where they come from."""
    computed = computed_hours(found.read, found.gpus)
    own = measured.own
    if own is not None and own.times:
        known = {time.gpu_class: time.seconds / 3600 for time in own.times}
        newest = own.times[0]
        runs = "1 run" if newest.runs == 1 else f"median of {newest.runs} runs"
        words = f"measured: {format_duration(newest.seconds)} on {newest.gpu_class}"
        words += f" in job {_short(newest.job_id)}, {runs}"
        return _scaled(computed, known), words
    alike = measured.alike
    work = found.read.work
    if alike is None or not alike.gpu_s_per_teraflop or not isinstance(work, Work):
        return computed, ""
    gpus = found.gpus.count * found.gpus.nodes if found.gpus else 1
    known = {
        name: rate * work.teraflops / gpus / 3600
        for name, rate in alike.gpu_s_per_teraflop.items()
    }
    hours = _scaled(computed, known)
    (name, taken) = next(iter(known.items()))
    words = "measured: programs with this model, optimiser and batch would take"
    words += f" {format_duration(taken * 3600)} on {name}, by {_runs(alike)}"
    return hours, words


def _scaled(computed: HoursOn, known: dict[str, float]) -> HoursOn:
    """The known hours; on other classes, as many times what is computed as on the known
    ones, or as their peaks say where nothing is computed.
    """
    classes = [GPUClass(name) for name in known if name in set(GPUClass)]
    ratios: list[float] = []
    for gpu_class in classes:
        expected = computed(gpu_class)
        if expected:
            ratios.append(known[gpu_class] / expected)
    ratio = sum(ratios) / len(ratios) if ratios else None

    def hours(gpu_class: GPUClass) -> float | None:
        if gpu_class in classes:
            return known[gpu_class]
        expected = computed(gpu_class)
        if expected is not None:
            return expected * (ratio or 1.0)
        if not classes:
            return None
        peak = GPU_CLASSES[classes[0]].tflops / GPU_CLASSES[gpu_class].tflops
        return known[classes[0]] * peak

    return hours


def _runs(alike: LearnedFactors) -> str:
    return "1 run" if alike.runs == 1 else f"{alike.runs} runs"


def _short(job_id: str | None) -> str:
    """As the command shows ids."""
    return (job_id or "")[-_SHORT_ID:]
