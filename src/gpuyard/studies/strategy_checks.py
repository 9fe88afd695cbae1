"""Find what would make a strategy fail, before anything is submitted.

Examples are sizes that the layout does not divide, and models that do not fit.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpuyard.domain.errors import Fault, InvalidInputError
from gpuyard.studies.engine_checks import (
    SERVING,
    engine_faults,
    load_faults,
    option_faults,
)
from gpuyard.studies.memory_estimate import GenerationLoad, MemoryEstimate, estimate
from gpuyard.studies.model_folder import (
    FAMILIES,
    TOKENIZER,
    ModelShape,
    read_family,
    read_shape,
    weight_faults,
)
from gpuyard.studies.runtime.decoder_shape import read_config, rounding_of
from gpuyard.studies.runtime.decoder_shape import read_shape as read_as_torch_does
from gpuyard.studies.runtime.errors import RunError
from gpuyard.studies.strategies import ParallelismStrategy, strategies_of
from gpuyard.studies.study import VARIANTS

if TYPE_CHECKING:
    from gpuyard.studies.study import Study, Variant

_OTHER_ENGINE = f"choose another model, or an engine of {', '.join(SERVING)}"


def study_faults(study: "Study") -> list[Fault]:
    """Find what is wrong with a study's model and strategies.

    Without a readable model, only the checks that need no model are made.
    """
    faults: list[Fault] = []
    strategies: list[ParallelismStrategy] = []
    shape: ModelShape | None = None
    try:
        strategies = strategies_of(study)
    except InvalidInputError as error:
        faults += error.faults
    try:
        shape = shape_of(study)
        faults += feature_faults(study) + weight_faults(study.model.path)
    except InvalidInputError as error:
        faults += error.faults
    for index, strategy in enumerate(strategies):
        faults += strategy_faults(study, shape, strategy, f"strategies.{index}")
    return faults


def shape_of(study: "Study") -> ModelShape | None:
    """Read the sizes of a study's model; InvalidInputError.

    None for a family of which they are not known, if engines run it that know more
    families: vLLM, SGLang and TensorRT-LLM.
    """
    engines = [one.engine or study.generation.engine for one in study.strategies]
    serves_only = all(engine in SERVING for engine in engines)
    if serves_only and read_family(study.model.path) not in FAMILIES:
        return None
    return read_shape(study.model.path)


def strategy_faults(
    study: "Study", shape: ModelShape | None, strategy: ParallelismStrategy, field: str
) -> list[Fault]:
    """Find what is wrong with one strategy: its layout first, then its memory.

    Memory is not checked when the layout is wrong.
    """
    faults = layout_faults(study, shape, strategy, field)
    if faults or shape is None:
        return faults
    return memory_faults(study, shape, strategy, field)


def layout_faults(
    study: "Study", shape: ModelShape | None, strategy: ParallelismStrategy, field: str
) -> list[Fault]:
    """Find what is wrong with a layout, for its nodes, its engine and the model."""
    engine = strategy.engine_of(study)
    faults = (
        world_faults(strategy, field)
        + engine_faults(strategy, engine, field)
        + option_faults(strategy, engine, field)
        + (load_faults(engine, field) if study.load else [])
        + sweep_faults(strategy, engine, field)
    )
    return faults + (split_faults(strategy, shape, field, engine) if shape else [])


def feature_faults(study: "Study") -> list[Fault]:
    """Find the features of a model that `torch` or `deepspeed` does not support."""
    engines = {one.engine or study.generation.engine for one in study.strategies}
    config = study.model.path / "config.json"
    try:
        if "torch" in engines:
            read_as_torch_does(study.model.path)
        elif "deepspeed" in engines and (how := rounding_of(read_config(config))):
            fault = (
                f"{study.model.path} has rounded weights ({how}), which the engine"
                " deepspeed cannot split"
            )
            return [Fault("model.path", fault, _OTHER_ENGINE)]
    except RunError as error:
        return [Fault("model.path", str(error), _OTHER_ENGINE)]
    except (TypeError, ValueError, AttributeError) as error:
        fault = f"{config} states something odd: {error}"
        return [Fault("model.path", fault, "fetch the model's config.json again")]
    return []


def world_faults(strategy: ParallelismStrategy, field: str) -> list[Fault]:
    """Check that pp × tp × dp equals the number of processes of the nodes (S3-26)."""
    given = strategy.num_nodes * strategy.gpus_per_node
    if strategy.kind == "tensor_single_node" and strategy.num_nodes > 1:
        fault = f"is {strategy.num_nodes}, but {strategy.kind} is of one node"
        return [
            Fault(
                f"{field}.nodes", fault, "leave it out, or choose tensor_across_nodes"
            )
        ]
    if strategy.world_size == given:
        return []
    product = (
        f"tp {strategy.tp_size} x pp {strategy.pp_size} x dp {strategy.dp_size} ="
        f" {strategy.world_size}"
    )
    nodes = f"{strategy.num_nodes} nodes x {strategy.gpus_per_node} GPUs = {given}"
    return [
        Fault(field, f"{product} processes, but {nodes}", "make the two products equal")
    ]


def sweep_faults(strategy: ParallelismStrategy, engine: str, field: str) -> list[Fault]:
    """Refuse a sweep of micro-batches where they have no effect.

    Only the pipeline of the engine `torch` has micro-batches; elsewhere, all jobs of
    the sweep would be the same.
    """
    has_pipeline = engine == "torch" and strategy.pp_size > 1
    if has_pipeline or len(strategy.sweep.get("micro_batches", ())) < 2:
        return []
    why = f"the engine {engine} has its own"
    if engine == "torch":
        why = "there is no pipeline (pp is 1)"
    fault = f"changes nothing, since {why}"
    return [Fault(f"{field}.micro_batches", fault, "remove it")]


def split_faults(
    strategy: ParallelismStrategy, shape: ModelShape, field: str, engine: str = "torch"
) -> list[Fault]:
    """Check that tp divides the model's sizes, and that each stage has a layer."""
    tp = strategy.tp_size
    pp = strategy.pp_size
    wrong = _uneven(shape, tp, engine)
    faults: list[Fault] = []
    if wrong:
        good = [
            str(ways)
            for ways in range(1, shape.heads + 1)
            if not _uneven(shape, ways, engine)
        ]
        fault = f"{tp}-way tensor parallelism does not divide {', '.join(wrong)}"
        faults.append(
            Fault(f"{field}.tp", fault, f"for this model tp may be {_either(good)}")
        )
    if pp > shape.layers:
        fault = f"{pp} stages, but the model has {shape.layers} layers"
        faults.append(Fault(f"{field}.pp", fault, f"use at most {shape.layers}"))
    return faults


def _uneven(shape: ModelShape, ways: int, engine: str) -> list[str]:
    """The sizes that so many processes cannot share evenly."""
    sizes = {
        "attention heads": shape.heads,
        "KV heads": shape.kv_heads,
        "intermediate columns": shape.intermediate,
        "words of vocabulary": shape.vocabulary,
    }
    if engine in SERVING:
        # They pad the vocabulary, and repeat KV heads of which there are fewer than
        # processes.
        del sizes["words of vocabulary"]
        sizes["KV heads"] = (
            max(shape.kv_heads, ways) if ways % shape.kv_heads == 0 else shape.kv_heads
        )
        if shape.experts is not None:
            # They may give whole experts to processes.
            del sizes["intermediate columns"]
    elif shape.experts is not None:
        sizes["columns of an expert"] = shape.experts.intermediate
    return [f"{size} {what}" for what, size in sizes.items() if size % ways]


def memory_faults(
    study: "Study", shape: ModelShape, strategy: ParallelismStrategy, field: str
) -> list[Fault]:
    """Check that the model fits into `slurm.gpu_memory_gb`, if that is set."""
    room = study.slurm.gpu_memory_gb
    needs = [
        point_estimate(study, shape, strategy, point, variant)
        for point in strategy.points
        for variant in VARIANTS
    ]
    need = max(needs, key=lambda one: one.total)
    if room is None or need.total <= room:
        return []
    return [
        Fault(field, f"needs {too_much(need, room)}", _remedy(need, room, strategy))
    ]


def too_much(need: MemoryEstimate, room: float) -> str:
    """Describe how much memory is needed and how much a GPU has."""
    parts = f"weights {need.weights:.1f}, KV cache {need.kv_cache:.1f}"
    return f"{need.total:.1f} GiB per GPU ({parts}), and a GPU has {room:g}"


def _remedy(need: MemoryEstimate, room: float, strategy: ParallelismStrategy) -> str:
    if need.total - need.kv_cache - need.activations <= room:
        return "lower generation.batch_size or max_new_tokens, or split over more GPUs"
    ways = strategy.tp_size * strategy.pp_size
    fixed = need.overhead
    least = int(need.weights * ways / max(room - fixed, 1e-9)) + 1
    return (
        f"split the model over more GPUs: tp x pp of about {least}"
        if room > fixed
        else "use larger GPUs"
    )


def point_estimate(
    study: "Study",
    shape: ModelShape,
    strategy: ParallelismStrategy,
    point: Mapping[str, int],
    variant: "Variant",
) -> MemoryEstimate:
    """The memory of one job of a strategy: `point` holds its overrides."""
    generation = study.generation
    load = GenerationLoad(
        batch_size=point.get("batch_size", generation.batch_size),
        length=study.prompts.budgets[variant] + generation.max_new_tokens,
        micro_batches=point.get("micro_batches", generation.micro_batches),
        precision=generation.precision,
        quantization=strategy.how_rounded,
        caches_latents=strategy.engine_of(study) in SERVING,
    )
    return estimate(shape, strategy, load)


def model_warnings(folder: Path, study: "Study") -> list[str]:
    """Find oddities of a model's folder that do not prevent a run."""
    warnings: list[str] = []
    if not (folder / TOKENIZER).exists():
        warnings.append(
            f"{folder} has no {TOKENIZER}, so prompts' tokens are not counted"
        )
    shape = shape_of(study)
    if shape is None:
        warnings.append(
            f"the sizes of the family {read_family(folder)} are not known: nobody can"
            " tell whether the model can be split so, and whether it fits"
        )
        return warnings
    longest = shape.max_length
    wanted = max(study.prompts.budgets.values()) + study.generation.max_new_tokens
    if longest and wanted > longest:
        warnings.append(
            f"prompts and answers may take {wanted} tokens, and the model was made for"
            f" {longest}"
        )
    return warnings


def _either(words: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
