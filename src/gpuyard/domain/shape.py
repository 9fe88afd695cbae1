"""Shape: what the scheduler needs to know about the needs of a job.

Shapes are interned, so equal needs are one object.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any

from gpuyard.domain.jobspec import JobKind, JobSpec
from gpuyard.domain.own_options import ModelPlace, WorkerOrder
from gpuyard.domain.workspaces import workspace_key

_interned: dict["Shape", "Shape"] = {}


@dataclass(frozen=True, slots=True)
class Shape:
    """Needs per node: `cpus` cores, `memory_gb`, and `gpus` devices with at least the
    given properties; `nodes` of them at once.

    `image`: it runs in a container. `owned`: it runs only where an agent of gpuyard is.
    `workspace`: the key of its workspace. `quarantined`: it may also run on quarantined
    places. `portable`: it may run on machines that have joined, which have none of the
    server's folders: it brings its code along, or the settings say that its files are
    there. A command that is `live` needs those folders as they are. `artifacts`: files
    that it leaves are kept. `datasets`: it reads some. `model`: it is a prompt for this
    model, and takes no place on a node; then `gpu_uuids` are the GPUs whose server it
    prefers.

    For external places: the `regions` where it may run (empty: any), `max_price`, the
    most that all of it may cost per hour in the currency of billing (0: no limit),
    `spot`, whether it may be interrupted, and the `strategy` that chooses one (empty:
    the instance's own).
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
    portable: bool = False
    artifacts: bool = False
    datasets: bool = False
    model: str = ""
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Every decision looks up hundreds of shapes, and most of its time went into
        # hashing their fields again.
        values = tuple(getattr(self, name) for name in _NEEDS)
        object.__setattr__(self, "_hash", hash(values))

    def __hash__(self) -> int:
        return self._hash

    @classmethod
    def of(cls, spec: JobSpec) -> "Shape":
        """What `spec` books. A job without a number of CPUs books one core, and a job
        without memory books none. A prompt books nothing. The jobs of gpuyard itself
        book less, because they mostly wait.
        """
        if spec.kind is JobKind.LLM:
            preferred = tuple(sorted(spec.resources.gpus.uuid))
            return cls.of_prompt(spec.model or "", preferred)
        need = spec.resources
        gpus = need.gpus
        workspace = ""
        if spec.workspace:
            workspace = workspace_key(spec.project, spec.workspace)
        return cls(
            cpus=_default_cpus(spec) if need.cpus is None else need.cpus,
            memory_gb=need.memory_gb or 0.0,
            nodes=need.nodes,
            gpus=gpus.count,
            gpu_memory_gb=gpus.memory_gb or 0.0,
            gpu_capability=gpus.compute_capability or "",
            gpu_class=gpus.gpu_class or "",
            gpu_uuids=tuple(sorted(_pinned_gpus(spec))),
            provider=spec.provider or "",
            providers=tuple(sorted(spec.allowed.providers)),
            image=spec.image is not None,
            owned=_needs_agent(spec),
            regions=tuple(sorted(spec.allowed.regions)),
            max_price=float(spec.max_price or 0),
            spot=spec.spot,
            strategy=spec.strategy or "",
            workspace=workspace,
            quarantined=spec.allowed.quarantined,
            artifacts=bool(spec.artifacts),
            datasets=bool(spec.datasets),
            portable=_is_portable(spec),
        ).interned()

    @classmethod
    def of_prompt(cls, model: str, preferred: tuple[str, ...] = ()) -> "Shape":
        """What a prompt for this model books: nothing. `preferred`: the GPUs whose
        server it prefers, sorted.
        """
        return cls(cpus=0.0, model=model, gpu_uuids=preferred).interned()

    def interned(self) -> "Shape":
        """The one object for all equal shapes."""
        return _interned.setdefault(self, self)

    def to_row(self) -> dict[str, Any]:
        """As data for JSON; fields with their default value are left out."""
        row: dict[str, Any] = {}
        for name in _NEEDS:
            value = getattr(self, name)
            if value != getattr(_DEFAULT, name):
                row[name] = value
        return row

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "Shape":
        """The inverse of `to_row`."""
        values = dict(row)
        for name in _LISTS:
            if name in values:
                values[name] = tuple(values[name])
        return _from_items(tuple(values.items()))


@lru_cache(maxsize=4096)
def _from_items(items: tuple[tuple[str, Any], ...]) -> Shape:
    # A starting server reads a hundred thousand rows with few different shapes.
    return Shape(**dict(items)).interned()


def _pinned_gpus(spec: JobSpec) -> tuple[str, ...]:
    """The GPUs that it must have. A model that comes beside another books none, and
    must be on the node of its GPUs all the same.
    """
    gpus = spec.resources.gpus
    options = spec.provider_options
    if spec.kind is JobKind.MODEL and not gpus.count and "port" in options:
        return ModelPlace.read(options).gpus
    return gpus.uuid


def _is_portable(spec: JobSpec) -> bool:
    """Whether the job needs no folder of the machine where it was submitted."""
    is_command = spec.kind is JobKind.COMMAND
    has_code = is_command and spec.submitted_code
    is_live = is_command and spec.live
    has_folder = spec.workdir and not has_code
    needs_folder = bool(spec.workspace or is_live or has_folder)
    is_everywhere = is_command or _is_said_to_be_everywhere(spec)
    return is_everywhere and not (needs_folder or spec.image)


def _is_said_to_be_everywhere(spec: JobSpec) -> bool:
    """Whether the settings of its model or script say that the files of that are on
    machines that have joined.
    """
    match spec.kind:
        case JobKind.MODEL:
            return spec.provider_options.get("joined") is True
        case JobKind.SCRIPT | JobKind.WORKER:
            return WorkerOrder.read(spec.provider_options).joined
        case _:
            return False


def _needs_agent(spec: JobSpec) -> bool:
    """Whether the job runs only where an agent of gpuyard is."""
    is_command = spec.kind is JobKind.COMMAND
    return not is_command or bool(spec.interactive or spec.packages)


# A model's server needs a core only now and then.
_CPUS = {JobKind.MODEL: 0.0}
# A batch's worker with a GPU waits for that most of the time.
_WORKER_WITH_GPU_CPUS = 0.1


def _default_cpus(spec: JobSpec) -> float:
    if spec.kind is JobKind.WORKER and spec.resources.gpus.count:
        return _WORKER_WITH_GPU_CPUS
    return _CPUS.get(spec.kind, 1.0)


_LISTS = ("gpu_uuids", "providers", "regions")
_NEEDS = tuple(field.name for field in fields(Shape) if field.init)
_DEFAULT = Shape()


@dataclass(frozen=True, slots=True)
class Placement:
    """One node's share of an attempt: the GPUs by UUID, the cores and the gigabytes
    that are booked there.

    `prefetched`: nothing is booked; the attempt waits on the node until an attempt of
    its shape ends there. `offer`: an external queue places the attempt, and later
    reports the `node_id`. `end`: how this share ended, if others still run
    (`domain/wire.py`, Ended). `prices`: what an hour of each part of a rented machine
    costs, if it is paid for more than the machine, and `price_sources` who said so and
    when.
    """

    node_id: str
    gpu_uuids: tuple[str, ...] = ()
    cpus: float = 0.0
    memory_gb: float = 0.0
    prefetched: bool = False
    offer: str = ""
    end: Mapping[str, Any] | None = field(default=None, hash=False)
    prices: Mapping[str, str] | None = field(default=None, hash=False)
    price_sources: Mapping[str, str] | None = field(default=None, hash=False)

    @property
    def booked_gpus(self) -> tuple[str, ...]:
        """The GPUs that it books; those that an external queue chose are booked
        there.
        """
        return () if self.offer else self.gpu_uuids

    def to_row(self) -> dict[str, Any]:
        """As data for JSON."""
        row: dict[str, Any] = {
            "node_id": self.node_id,
            "gpu_uuids": list(self.gpu_uuids),
            "cpus": self.cpus,
            "memory_gb": self.memory_gb,
        }
        if self.offer:
            row["offer"] = self.offer
        if self.prefetched:
            row["ahead"] = True
        if self.end is not None:
            row["end"] = self.end
        if self.prices:
            row["prices"] = dict(self.prices)
        if self.price_sources:
            row["price_sources"] = dict(self.price_sources)
        return row

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "Placement":
        """The inverse of `to_row`."""
        return cls(
            row["node_id"],
            tuple(row["gpu_uuids"]),
            row["cpus"],
            row["memory_gb"],
            row.get("ahead", False),
            row.get("offer", ""),
            row.get("end"),
            row.get("prices"),
            row.get("price_sources"),
        )
