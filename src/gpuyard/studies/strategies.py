"""Ways of splitting a model over GPUs, as pure data.

A strategy says what it asks of a cluster and which job comes next. Processes form a
mesh (dp, pp, tp) with tp innermost, so a tensor group takes neighbouring GPUs.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuyard.domain.errors import Fault, InvalidInputError

if TYPE_CHECKING:
    from gpuyard.studies.study import StrategySection, Study

_FAILED = frozenset({"FAILED", "TIMEOUT", "PARTIAL"})
_SUFFIXES = {"batch_size": "b", "micro_batches": "m"}


@dataclass(frozen=True, slots=True)
class StrategyJobEnd:
    """The end of one job: its `overrides`, its status, and the number of the try."""

    overrides: Mapping[str, int]
    status: str
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class ParallelismStrategy:
    """`num_nodes` × `gpus_per_node` processes as `tp_size` × `pp_size` × `dp_size`.

    `sweep` gives the values to try by setting (`batch_size`, `micro_batches`); each
    point of their product is one job, tried again up to `retries` times. On its own
    this class is a layout of any shape. `engine` is empty if it is the study's.
    """

    name: str = "custom"
    kind: str = "custom"
    num_nodes: int = 1
    gpus_per_node: int = 1
    tp_size: int = 1
    pp_size: int = 1
    dp_size: int = 1
    sweep: Mapping[str, tuple[int, ...]] = field(
        default_factory=dict[str, tuple[int, ...]]
    )
    retries: int = 0
    engine: str = ""
    engine_options: Mapping[str, str | bool | int | float] = field(
        default_factory=dict[str, str | bool | int | float]
    )
    quantization: str = ""
    quantized_model: Path | None = None

    @property
    def how_rounded(self) -> str:
        """How its weights are rounded, so that its answers may differ; empty if not."""
        return self.quantization or ("rounded" if self.quantized_model else "")

    def engine_of(self, study: "Study") -> str:
        """The engine that runs it: its own, or else the study's."""
        return self.engine or study.generation.engine

    @property
    def world_size(self) -> int:
        """How many processes the layout has; a cluster must give as many GPUs."""
        return self.tp_size * self.pp_size * self.dp_size

    def strategy_id(
        self, model_short: str, overrides: Mapping[str, int] | None = None
    ) -> str:
        """Return the id, such as `llama8b_pp2_tp1`.

        Replicas, nodes, an engine of its own, rounded weights and values of a sweep are
        added where they distinguish a layout.
        Nodes are named unless there is one for each pipeline stage of each replica;
        otherwise 8-way tensor parallelism would have one id on one node and on eight.
        """
        parts = [model_short, f"pp{self.pp_size}", f"tp{self.tp_size}"]
        if self.dp_size > 1:
            parts.append(f"dp{self.dp_size}")
        if self.num_nodes != self.pp_size * self.dp_size:
            parts.append(f"n{self.num_nodes}")
        parts += filter(None, [self.engine, self.quantization, self._own_name()])
        overrides = overrides or {}
        for key, values in self.sweep.items():
            if len(values) > 1 and key in overrides:
                parts.append(f"{_SUFFIXES[key]}{overrides[key]}")
        return "_".join(parts)

    def _own_name(self) -> str:
        """Return the name as part of an id where nothing else tells strategies apart.

        These are strategies that differ in the options of their engine, or in weights.
        """
        if not self.engine_options and not self.quantized_model:
            return ""
        plain = re.sub(r"[^A-Za-z0-9.-]+", "-", self.name).strip("-.")
        # A name without any such letter is told apart by its digest.
        return plain or hashlib.sha256(self.name.encode()).hexdigest()[:8]

    def describe_topology(self) -> str:
        """The layout in a sentence."""
        gpus = (
            f"{self.num_nodes} {_plural(self.num_nodes, 'node')} x"
            f" {self.gpus_per_node} GPU per node"
        )
        parts: list[str] = []
        if self.tp_size > 1:
            is_within_node = self.gpus_per_node % self.tp_size == 0
            where = "within a node" if is_within_node else "across nodes"
            parts.append(f"{self.tp_size}-way tensor {where}")
        if self.pp_size > 1:
            parts.append(f"{self.pp_size} pipeline stages")
        if self.dp_size > 1:
            parts.append(f"{self.dp_size} replicas")
        return f"{gpus}: {', '.join(parts) or 'one process'}"

    def slurm_constraints(self) -> dict[str, int]:
        """Return `nodes`, `gpus_per_node` and `ntasks_per_node` for Slurm."""
        return {
            "nodes": self.num_nodes,
            "gpus_per_node": self.gpus_per_node,
            "ntasks_per_node": self.gpus_per_node,
        }

    def deepspeed_args(self) -> list[str]:
        """The words for DeepSpeed's launcher."""
        return [f"--num_nodes={self.num_nodes}", f"--num_gpus={self.gpus_per_node}"]

    @property
    def points(self) -> list[dict[str, int]]:
        """The overrides of each job, in order; one empty set where nothing is swept."""
        return [
            dict(zip(self.sweep, values, strict=True))
            for values in product(*self.sweep.values())
        ]

    @property
    def expected_jobs(self) -> int:
        """How many jobs complete the strategy, retries aside."""
        return len(self.points)

    def next_config(self, done: Sequence[StrategyJobEnd]) -> dict[str, int] | None:
        """Return the overrides of the next job, or None when nothing is left.

        `done` are the outcomes so far. A failed job is tried again before the next
        point. A job that is still under way is not started twice.
        """
        for point in self.points:
            seen = [
                outcome.status for outcome in done if dict(outcome.overrides) == point
            ]
            if all(status in _FAILED for status in seen) and len(seen) <= self.retries:
                return point
        return None

    def postprocess(self, df: Any) -> Any:
        """A table of results with this strategy's name in `strategy`."""
        return df.assign(strategy=self.name)


@dataclass(frozen=True, slots=True)
class TensorParallelAcrossNodes(ParallelismStrategy):
    """Every layer is split over nodes of one GPU each: slow where the network is."""

    name: str = "tensor_across_nodes"
    kind: str = "tensor_across_nodes"
    num_nodes: int = 8
    tp_size: int = 8


@dataclass(frozen=True, slots=True)
class PipelineParallelAcrossNodes(ParallelismStrategy):
    """Whole layers per node: little traffic, and stages that wait for one another."""

    name: str = "pipeline_across_nodes"
    kind: str = "pipeline_across_nodes"
    num_nodes: int = 8
    pp_size: int = 8


@dataclass(frozen=True, slots=True)
class TensorParallelSingleNode(ParallelismStrategy):
    """Every layer is split over the GPUs of one node."""

    name: str = "tensor_single_node"
    kind: str = "tensor_single_node"
    gpus_per_node: int = 8
    tp_size: int = 8


@dataclass(frozen=True, slots=True)
class HybridTensorPipeline(ParallelismStrategy):
    """Layers split within a node, stages across nodes."""

    name: str = "hybrid"
    kind: str = "hybrid"
    num_nodes: int = 2
    gpus_per_node: int = 4
    tp_size: int = 4
    pp_size: int = 2


_KINDS = {
    kind().kind: kind
    for kind in (
        TensorParallelAcrossNodes,
        PipelineParallelAcrossNodes,
        TensorParallelSingleNode,
        HybridTensorPipeline,
        ParallelismStrategy,
    )
}


def build(section: "StrategySection") -> ParallelismStrategy:
    """Build the strategy that a section of `study.toml` describes.

    Missing values follow from the kind and the number of nodes.
    """
    kind = _KINDS[section.kind]
    nodes = section.nodes or kind().num_nodes
    gpus = section.gpus_per_node or kind().gpus_per_node
    tp, pp = _split(section, nodes, gpus)
    swept = {"batch_size": section.batch_size, "micro_batches": section.micro_batches}
    return kind(
        name=section.name or section.kind,
        kind=section.kind,
        num_nodes=nodes,
        gpus_per_node=gpus,
        tp_size=tp,
        pp_size=pp,
        dp_size=section.dp,
        sweep={key: values for key, values in swept.items() if values},
        retries=section.retries,
        engine=section.engine or "",
        engine_options=section.engine_options,
        quantization=section.quantization,
        quantized_model=section.quantized_model,
    )


def _split(section: "StrategySection", nodes: int, gpus: int) -> tuple[int, int]:
    """Return (tp, pp); a missing value takes the processes that the other leaves."""
    replica_size = max(nodes * gpus // section.dp, 1)
    if section.kind in ("hybrid", "pipeline_across_nodes"):
        tp = section.tp or _default_tp(section, replica_size, gpus)
        return tp, section.pp or max(replica_size // tp, 1)
    pp = section.pp or 1
    if section.tp:
        return section.tp, pp
    if section.kind == "custom":
        return 1, pp
    return max(replica_size // pp, 1), pp


def _default_tp(section: "StrategySection", replica_size: int, gpus: int) -> int:
    """Return the tensor-parallel size of a pipeline whose section names none."""
    if section.kind == "pipeline_across_nodes":
        return 1
    if section.pp:
        return max(replica_size // section.pp, 1)
    return gpus


def strategies_of(study: "Study") -> list[ParallelismStrategy]:
    """Return the study's strategies; InvalidInputError for equal names or layouts."""
    built = [build(section) for section in study.strategies]
    faults: list[Fault] = []
    names: dict[str, int] = {}
    ids: dict[str, int] = {}
    for index, strategy in enumerate(built):
        first = names.setdefault(strategy.name, index)
        if first != index:
            fault = f"is {strategy.name!r}, as is that of strategies.{first}"
            faults.append(
                Fault(f"strategies.{index}.name", fault, "give each a name of its own")
            )
        for point in strategy.points:
            made = strategy.strategy_id(study.model.short_name, point)
            if ids.setdefault(made, index) != index:
                fault = f"is the same layout as strategies.{ids[made]} ({made})"
                faults.append(
                    Fault(
                        f"strategies.{index}",
                        fault,
                        "remove one, or sweep its batch_size instead",
                    )
                )
    if faults:
        raise InvalidInputError(faults)
    return built


def _plural(count: int, word: str) -> str:
    return word if count == 1 else f"{word}s"
