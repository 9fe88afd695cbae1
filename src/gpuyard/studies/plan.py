"""Plan a study's jobs: nodes, processes and memory per GPU, and whether they fit."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuyard.studies.memory_estimate import MemoryEstimate, document_estimate
from gpuyard.studies.model_folder import ModelShape, read_shape
from gpuyard.studies.strategies import ParallelismStrategy, strategies_of
from gpuyard.studies.strategy_checks import layout_faults, point_estimate, too_much
from gpuyard.studies.study import VARIANTS, Variant

if TYPE_CHECKING:
    from gpuyard.studies.study import Study


@dataclass(frozen=True, slots=True)
class PlanRow:
    """The plan of one job for one variant.

    Memory is GiB on the GPU that needs most; `document_gib` is the figure by the
    document's formula (S3-50). `fits` is None when the memory of the GPUs is unknown;
    `reason` says why a job does not fit.
    """

    strategy_id: str
    name: str
    variant: Variant
    topology: str
    nodes: int
    gpus_per_node: int
    world_size: int
    tp: int
    pp: int
    dp: int
    batch_size: int
    weights_gib: float
    kv_cache_gib: float
    activations_gib: float
    total_gib: float
    document_gib: float
    gpu_memory_gb: float | None
    fits: bool | None
    reason: str


def plan(study: "Study") -> list[PlanRow]:
    """Return a row for each job and variant.

    InvalidInputError when the model's config.json or the strategies are wrong.
    """
    shape = read_shape(study.model.path)
    return [
        _row(study, shape, strategy, point, variant)
        for strategy in strategies_of(study)
        for point in strategy.points
        for variant in VARIANTS
    ]


def _row(
    study: "Study",
    shape: ModelShape,
    strategy: ParallelismStrategy,
    point: Mapping[str, int],
    variant: Variant,
) -> PlanRow:
    need = point_estimate(study, shape, strategy, point, variant)
    reason = _why_not(study, shape, strategy, need)
    gpu_memory_gb = study.slurm.gpu_memory_gb
    fits: bool | None = not reason
    if gpu_memory_gb is None and not reason:
        fits = None
    return PlanRow(
        strategy_id=strategy.strategy_id(study.model.short_name, point),
        name=strategy.name,
        variant=variant,
        topology=strategy.describe_topology(),
        nodes=strategy.num_nodes,
        gpus_per_node=strategy.gpus_per_node,
        world_size=strategy.world_size,
        tp=strategy.tp_size,
        pp=strategy.pp_size,
        dp=strategy.dp_size,
        batch_size=point.get("batch_size", study.generation.batch_size),
        weights_gib=round(need.weights, 2),
        kv_cache_gib=round(need.kv_cache, 2),
        activations_gib=round(need.activations, 2),
        total_gib=round(need.total, 2),
        document_gib=document_estimate(
            shape.parameters, strategy.tp_size, strategy.pp_size, variant
        ),
        gpu_memory_gb=gpu_memory_gb,
        fits=fits,
        reason=reason,
    )


def _why_not(
    study: "Study",
    shape: ModelShape,
    strategy: ParallelismStrategy,
    need: MemoryEstimate,
) -> str:
    faults = layout_faults(study, shape, strategy, strategy.name)
    if faults:
        return "; ".join(f"{fault.fault} ({fault.remedy})" for fault in faults)
    gpu_memory_gb = study.slurm.gpu_memory_gb
    if gpu_memory_gb is None or need.total <= gpu_memory_gb:
        return ""
    return f"needs {too_much(need, gpu_memory_gb)}"
