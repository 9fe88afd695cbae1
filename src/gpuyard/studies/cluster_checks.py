"""Compare what a study asks of a cluster with what the cluster offers.

gpuyard's offers tell partitions, nodes, types of GPU and how many each node has.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from gpuyard.domain.errors import Fault, GpuyardError, InvalidInputError
from gpuyard.domain.own_nodes import OWN_NODES
from gpuyard.studies.kubernetes_jobs import KUBERNETES
from gpuyard.studies.memory_estimate import MemoryEstimate
from gpuyard.studies.model_folder import ModelShape
from gpuyard.studies.strategies import ParallelismStrategy, strategies_of
from gpuyard.studies.strategy_checks import point_estimate, shape_of, too_much
from gpuyard.studies.study import VARIANTS

if TYPE_CHECKING:
    from gpuyard.client.sync import Client
    from gpuyard.studies.study import Study

_GPU = "gpu"


@dataclass(frozen=True, slots=True)
class NodeKind:
    """The nodes of one kind in a partition.

    `gpu` is Slurm's name of the GPU type, empty if it has none; `gpu_memory_gb` is 0 if
    it is not known. `problem` says why they cannot be used now.
    """

    partition: str
    nodes: int
    gpu: str
    gpus: int
    gpu_memory_gb: float
    problem: str = ""

    @classmethod
    def of(cls, offer: Mapping[str, Any]) -> "NodeKind":
        """From an offer of the API, whose id is `slurm/PARTITION…`."""
        return cls(
            str(offer["id"]).split("/")[1],
            int(offer["nodes"]),
            str(offer["gpu"] or ""),
            int(offer["gpus"]),
            float(offer["gpu_memory_gb"] or 0),
            str(offer["problem"] or ""),
        )


@dataclass(frozen=True, slots=True)
class ClusterFindings:
    """What the cluster cannot do for a study, and what could not be checked."""

    faults: tuple[Fault, ...] = ()
    warnings: tuple[str, ...] = ()

    def beside(self, warning: str) -> "ClusterFindings":
        """The same with one warning more."""
        return replace(self, warnings=(*self.warnings, warning))


def check_cluster(
    study: "Study", client: "Client", provider: str = "slurm"
) -> ClusterFindings:
    """Ask an instance for its offers, and compare a study with them.

    If they cannot be had, a warning says why; a study may be written elsewhere.
    """
    from gpuyard.client import calls

    if provider == OWN_NODES:
        return _check_own_nodes(study, client)
    pods = ClusterFindings()
    if provider == KUBERNETES:
        pods = pod_findings(study)
        study = _anywhere(study)
    try:
        offers = client.call(calls.listing("offers"))
        problems = client.call(calls.offer_problems())
    except GpuyardError as error:
        return pods.beside(f"the cluster was not checked: {error}")
    mine = [offer for offer in offers if offer["provider"] == provider]
    if not mine:
        why = problems.get(provider, "gpuyard knows no nodes of it")
        return pods.beside(f"the cluster was not checked: {provider}: {why}")
    kinds = [NodeKind.of(offer) for offer in mine]
    if provider == KUBERNETES:
        # There are no partitions, and no types of GPU that `slurm.gres` may name.
        kinds = [replace(kind, partition=provider, gpu="") for kind in kinds]
    found = check_offers(study, kinds)
    return ClusterFindings(
        (*pods.faults, *found.faults), (*pods.warnings, *found.warnings)
    )


def pod_findings(study: "Study") -> ClusterFindings:
    """Check what a study says of its pods."""
    faults = list(_ray_faults(study))
    section = study.kubernetes
    if section is None:
        fault = "is missing, and pods need an image"
        faults.append(
            Fault("kubernetes", fault, "add the section [kubernetes] with image")
        )
        return ClusterFindings(tuple(faults))
    if study.slurm.apptainer_image:
        fault = "is set, but pods run in kubernetes.image"
        faults.append(Fault("slurm.apptainer_image", fault, "remove it"))
    needed = {"the study's folder": study.directory, "the model": study.model.path}
    for index, strategy in enumerate(study.strategies):
        if strategy.quantized_model:
            needed[f"strategies.{index}.quantized_model"] = strategy.quantized_model
    lost = {
        what: folder
        for what, folder in needed.items()
        if not any(folder.is_relative_to(path) for path in section.volumes)
    }
    if not lost:
        return ClusterFindings(tuple(faults))
    # The settings of the provider, which are not known here, may mount them.
    where = " and ".join(f"{what} ({folder})" for what, folder in lost.items())
    warning = (
        f"pods must see {where} under the same path: by kubernetes.volumes, or by"
        " providers.kubernetes.volumes in the settings"
    )
    return ClusterFindings(tuple(faults), (warning,))


def _check_own_nodes(study: "Study", client: "Client") -> ClusterFindings:
    """Compare a study with the nodes that have an agent of gpuyard."""
    from gpuyard.client import calls

    try:
        nodes = client.call(calls.listing("nodes"))
        gpus = client.call(calls.listing("gpus"))
    except GpuyardError as error:
        return ClusterFindings(warnings=(f"the nodes were not checked: {error}",))
    found = check_offers(_anywhere(study), own_kinds(nodes, gpus))
    return ClusterFindings((*_ray_faults(study), *found.faults), found.warnings)


def _anywhere(study: "Study") -> "Study":
    """The study without a partition, for places that have none."""
    slurm = study.slurm.model_copy(update={"partition": ""})
    return study.model_copy(update={"slurm": slurm})


def _ray_faults(study: "Study") -> Iterator[Fault]:
    """Find strategies that need Ray where nothing starts it."""
    for index, section in enumerate(study.strategies):
        engine = section.engine or study.generation.engine
        if engine == "vllm" and (section.nodes or 1) > 1:
            yield Fault(
                f"strategies.{index}.nodes",
                f"is {section.nodes}, but vllm connects nodes by Ray only on Slurm",
                "choose vllm_server, or set nodes to 1",
            )


def own_kinds(
    nodes: Iterable[Mapping[str, Any]], gpus: Iterable[Mapping[str, Any]]
) -> list[NodeKind]:
    """Return the kinds of own nodes, from nodes and GPUs of the API."""
    memories: dict[str, list[float]] = {str(node["name"]): [] for node in nodes}
    for gpu in gpus:
        gigabytes = float(gpu["memory_mb"] or 0) / 1024
        memories.setdefault(str(gpu["node"]), []).append(gigabytes)
    return [
        NodeKind(OWN_NODES, 1, "", len(found), min(found, default=0.0))
        for found in memories.values()
    ]


def check_offers(study: "Study", cluster: Sequence[NodeKind]) -> ClusterFindings:
    """Compare a study with the nodes of a cluster."""
    kinds = list(cluster)
    if study.slurm.partition:
        wanted = study.slurm.partition.split(",")
        kinds = [kind for kind in cluster if kind.partition in wanted]
        if not kinds:
            known = _listed(kind.partition for kind in cluster)
            fault = f"is {study.slurm.partition!r}, which the cluster does not have"
            return ClusterFindings(
                (Fault("slurm.partition", fault, f"choose of: {known}"),)
            )
    kinds, faults = _with_gpus(study, kinds)
    if faults:
        return ClusterFindings(tuple(faults))
    warnings = list(_problems(kinds))
    try:
        strategies = strategies_of(study)
        shape = shape_of(study)
    except InvalidInputError:
        # Told by the checks of the study itself.
        return ClusterFindings((), tuple(warnings))
    for index, strategy in enumerate(strategies):
        field = f"strategies.{index}"
        fitting, found = _with_room(study, kinds, strategy, field)
        faults += found
        if shape is not None and not found:
            faults += _memory_faults(study, shape, strategy, fitting, field)
    if _needs_gpus(study) and not _has_known_memory(study, kinds):
        warnings.append(
            "the memory of the cluster's GPUs is not known, so nobody can tell whether"
            " the model fits: set slurm.gpu_memory_gb, or providers.slurm.gpus"
        )
    return ClusterFindings(tuple(faults), tuple(warnings))


def _needs_gpus(study: "Study") -> bool:
    return bool(study.slurm.gres)


def _has_known_memory(study: "Study", kinds: Iterable[NodeKind]) -> bool:
    return bool(study.slurm.gpu_memory_gb) or any(
        kind.gpu_memory_gb for kind in kinds if kind.gpus
    )


def _with_gpus(
    study: "Study", kinds: Sequence[NodeKind]
) -> tuple[list[NodeKind], list[Fault]]:
    """Return the kinds of nodes that have the GPUs of `slurm.gres`."""
    gres = study.slurm.gres
    if not gres:
        return list(kinds), []
    name, _, gpu_type = gres.partition(":")
    able = [kind for kind in kinds if kind.gpus]
    types = _listed(f"gpu:{kind.gpu}" if kind.gpu else "gpu" for kind in able)
    remedy = f"choose of: gpu, {types}" if able else 'set it to "" for CPUs only'
    if name != _GPU or not able:
        where = study.slurm.partition or "the cluster"
        fault = f"is {gres!r}, but the GPUs of {where} are called {types or 'nothing'}"
        return [], [Fault("slurm.gres", fault, remedy)]
    typed = [kind for kind in able if gpu_type in ("", kind.gpu)]
    if not typed:
        fault = f"asks for GPUs of the type {gpu_type!r}, which are not there"
        return [], [Fault("slurm.gres", fault, remedy)]
    return typed, []


def _problems(kinds: Sequence[NodeKind]) -> Iterable[str]:
    """Warn if no node of the kinds can be used now."""
    if all(kind.problem for kind in kinds):
        yield f"no node can be used now: {kinds[0].problem}"


def _with_room(
    study: "Study",
    kinds: Sequence[NodeKind],
    strategy: ParallelismStrategy,
    field: str,
) -> tuple[list[NodeKind], list[Fault]]:
    """Return the kinds of nodes with enough GPUs, if a partition has enough of them."""
    wide = list(kinds)
    if _needs_gpus(study):
        wide = [kind for kind in kinds if kind.gpus >= strategy.gpus_per_node]
    if not wide:
        most = max(kind.gpus for kind in kinds)
        fault = f"is {strategy.gpus_per_node}, but a node has at most {most} GPUs"
        remedy = "use more nodes with fewer GPUs each"
        return [], [Fault(f"{field}.gpus_per_node", fault, remedy)]
    nodes: dict[str, int] = {}
    for kind in wide:
        nodes[kind.partition] = nodes.get(kind.partition, 0) + kind.nodes
    most = max(nodes.values())
    if strategy.num_nodes > most:
        fault = (
            f"is {strategy.num_nodes}, but a partition has at most {most} such nodes"
        )
        return [], [Fault(f"{field}.nodes", fault, f"use at most {most}")]
    return wide, []


def _memory_faults(
    study: "Study",
    shape: ModelShape,
    strategy: ParallelismStrategy,
    kinds: Sequence[NodeKind],
    field: str,
) -> list[Fault]:
    """Check the model against the largest GPU that is offered.

    Where the study itself says what a GPU has, that was checked before.
    """
    known = [kind.gpu_memory_gb for kind in kinds if kind.gpu_memory_gb]
    is_known = len(known) == len(kinds) and _needs_gpus(study)
    if study.slurm.gpu_memory_gb or not is_known:
        return []
    need = max(_estimates(study, shape, strategy), key=lambda one: one.total)
    room = max(known)
    if need.total <= room:
        return []
    remedy = "split the model over more GPUs, or lower generation.batch_size"
    return [Fault(field, f"needs {too_much(need, room)}", remedy)]


def _estimates(
    study: "Study", shape: ModelShape, strategy: ParallelismStrategy
) -> Iterable[MemoryEstimate]:
    for point in strategy.points:
        for variant in VARIANTS:
            yield point_estimate(study, shape, strategy, point, variant)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))
