"""What a study would ask of a cluster: nodes, processes and memory per GPU of each job, and whether it fits."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuyard.studies.checks import layout_faults, point_estimate, too_much
from gpuyard.studies.memory import MemoryEstimate, document_estimate
from gpuyard.studies.model import ModelShape, read_shape
from gpuyard.studies.strategies import ParallelismStrategy, strategies_of
from gpuyard.studies.study import VARIANTS, Variant

if TYPE_CHECKING:
    from gpuyard.studies.study import Study


@dataclass(frozen=True, slots=True)
class PlanRow:
    """One job with one variant. Memory is GiB on the fullest GPU; `document_gib` is S3-50's figure beside ours.

    `fits` is None where the GPUs' memory is not known; `reason` says why it does not fit.
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
    """A row for each job and variant; InvalidInputError when the model's config.json or the strategies are wrong."""
    shape = read_shape(study.model.path)
    return [
        _row(study, shape, strategy, point, variant)
        for strategy in strategies_of(study)
        for point in strategy.points
        for variant in VARIANTS
    ]


def _row(
    study: "Study", shape: ModelShape, strategy: ParallelismStrategy, point: Mapping[str, int], variant: Variant
) -> PlanRow:
    need = point_estimate(study, shape, strategy, point, variant)
    reason, room = _why_not(study, shape, strategy, need), study.slurm.gpu_memory_gb
    return PlanRow(
        strategy_id=strategy.strategy_id(study.model.short_name, point), name=strategy.name, variant=variant,
        topology=strategy.describe_topology(), nodes=strategy.num_nodes, gpus_per_node=strategy.gpus_per_node,
        world_size=strategy.world_size, tp=strategy.tp_size, pp=strategy.pp_size, dp=strategy.dp_size,
        batch_size=point.get("batch_size", study.generation.batch_size), weights_gib=round(need.weights, 2),
        kv_cache_gib=round(need.kv_cache, 2), activations_gib=round(need.activations, 2),
        total_gib=round(need.total, 2),
        document_gib=document_estimate(shape.parameters, strategy.tp_size, strategy.pp_size, variant),
        gpu_memory_gb=room, fits=False if reason else (None if room is None else True), reason=reason,
    )  # fmt: skip


def _why_not(study: "Study", shape: ModelShape, strategy: ParallelismStrategy, need: MemoryEstimate) -> str:
    faults = layout_faults(study, shape, strategy, strategy.name)
    if faults:
        return "; ".join(f"{fault.fault} ({fault.remedy})" for fault in faults)
    room = study.slurm.gpu_memory_gb
    return f"needs {too_much(need, room)}" if room is not None and need.total > room else ""
