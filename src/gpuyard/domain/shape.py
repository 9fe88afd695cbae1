"""Shape: everything the scheduler needs to know of what a job asks for. Interned, so equal needs are one object."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any

from gpuyard.domain.jobspec import JobKind, JobSpec
from gpuyard.domain.workspaces import workspace_key

_interned: dict["Shape", "Shape"] = {}


@dataclass(frozen=True, slots=True)
class Shape:
    """Needs per node: `cpus` cores, `memory_gb`, `gpus` devices with at least so much; `nodes` of them at once.

    `image`: it runs in a container. `owned`: it runs only where an agent of ours is. `workspace`: the key of the one it
    uses. `quarantined`: it may also run on what is in quarantine. Of places that are not
    ours: `regions` it may be in (empty: any), the most that all of it may cost an hour in the currency of billing (0:
    no bound), whether it may be interrupted (`spot`), and by which `strategy` one is chosen (empty: the yard's own).
    """

    cpus: float = 1.0
    memory_gb: float = 0.0
    nodes: int = 1
    gpus: int = 0
    gpu_memory_gb: float = 0.0
    gpu_capability: str = ""
    gpu_class: str = ""
    gpu_uuids: tuple[str, ...] = ()
    provider: str = ""
    providers: tuple[str, ...] = ()
    image: bool = False
    owned: bool = False
    regions: tuple[str, ...] = ()
    max_price: float = 0.0
    spot: bool = False
    strategy: str = ""
    workspace: str = ""
    quarantined: bool = False
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Every decision looks shapes up by the hundred; hashing ten fields each time was most of its cost.
        object.__setattr__(self, "_hash", hash(tuple(getattr(self, name) for name in _NEEDS)))

    def __hash__(self) -> int:
        return self._hash

    @classmethod
    def of(cls, spec: JobSpec) -> "Shape":
        """What `spec` books. A job that names no CPU count books one core; no memory books none.

        A model's server books no core, since it needs one now and then; a prompt waits for its answer most of the time.
        """
        need, gpus = spec.resources, spec.resources.gpus
        return cls(
            cpus=need.cpus if need.cpus is not None else _cores(spec),
            memory_gb=need.memory_gb or 0.0,
            nodes=need.nodes,
            gpus=gpus.count,
            gpu_memory_gb=gpus.memory_gb or 0.0,
            gpu_capability=gpus.compute_capability or "",
            gpu_class=gpus.gpu_class or "",
            gpu_uuids=tuple(sorted(gpus.uuid)),
            provider=spec.provider or "",
            providers=tuple(sorted(spec.allowed.providers)),
            image=spec.image is not None,
            owned=spec.kind is not JobKind.COMMAND,
            regions=tuple(sorted(spec.allowed.regions)),
            max_price=float(spec.max_price or 0),
            spot=spec.spot,
            strategy=spec.strategy or "",
            workspace=workspace_key(spec.project, spec.workspace) if spec.workspace else "",
            quarantined=spec.allowed.quarantined,
        ).interned()

    def interned(self) -> "Shape":
        """The one object that stands for all equal shapes."""
        return _interned.setdefault(self, self)

    def to_row(self) -> dict[str, Any]:
        """As JSON-able data; fields at their default are left out."""
        return {name: value for name in _NEEDS if (value := getattr(self, name)) != getattr(_DEFAULT, name)}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "Shape":
        """The inverse of `to_row`."""
        if lists := {name: tuple(row[name]) for name in _LISTS if name in row}:
            row = {**row, **lists}
        return _from_items(tuple(row.items()))


@lru_cache(maxsize=4096)
def _from_items(items: tuple[tuple[str, Any], ...]) -> Shape:
    # A server that starts reads a hundred thousand rows of a few shapes.
    return Shape(**dict(items)).interned()


_CORES = {JobKind.MODEL: 0.0, JobKind.LLM: 0.1}
_BESIDE_A_GPU = 0.1


def _cores(spec: JobSpec) -> float:
    """What is booked where a spec names no cores. A batch's worker on a GPU waits for that most of the time."""
    if spec.kind is JobKind.WORKER and spec.resources.gpus.count:
        return _BESIDE_A_GPU
    return _CORES.get(spec.kind, 1.0)


_LISTS = ("gpu_uuids", "providers", "regions")
_NEEDS = tuple(field.name for field in fields(Shape) if field.init)
_DEFAULT = Shape()


@dataclass(frozen=True, slots=True)
class Placement:
    """One node's share of an attempt: the GPUs by UUID, the cores and the gigabytes booked there.

    `ahead`: nothing is booked; the attempt waits on the node for the place of another that ends there.
    `offer`: the attempt is sent to an engine that places it itself, and `node_id` is what the engine says later.
    """

    node_id: str
    gpu_uuids: tuple[str, ...] = ()
    cpus: float = 0.0
    memory_gb: float = 0.0
    ahead: bool = False
    offer: str = ""

    def to_row(self) -> dict[str, Any]:
        """As JSON-able data."""
        row: dict[str, Any] = {"node_id": self.node_id, "gpu_uuids": list(self.gpu_uuids),
                               "cpus": self.cpus, "memory_gb": self.memory_gb}  # fmt: skip
        if self.offer:
            row["offer"] = self.offer
        return {**row, "ahead": True} if self.ahead else row

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "Placement":
        """The inverse of `to_row`."""
        return cls(row["node_id"], tuple(row["gpu_uuids"]), row["cpus"], row["memory_gb"], row.get("ahead", False),
                   row.get("offer", ""))  # fmt: skip
