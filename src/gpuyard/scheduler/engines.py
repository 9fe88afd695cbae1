"""Engines: places that have a queue of their own (Slurm, Kubernetes). We choose whom to send, and they place.

An engine is given a few jobs of each shape more than it runs: enough to keep it busy, and no more, so that our order
decides and what waits there can still be had elsewhere.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpuyard.domain.gpus import compute_capability, resolve_gpu_class
from gpuyard.domain.offers import Offer
from gpuyard.domain.shape import Placement, Shape
from gpuyard.domain.units import format_gb
from gpuyard.scheduler.jobs import LiveJob

SLACK = 1e-6


@dataclass(slots=True)
class Engine:
    """A provider that queues, and what it offers. At most `max_pending` attempts of a shape wait there at once.

    `problem`: why nothing is sent there, for people; empty while all is well.
    """

    name: str
    max_pending: int = 8
    offers: Mapping[str, Offer] = field(default_factory=dict[str, Offer])
    problem: str = ""


@dataclass(slots=True)
class Engines:
    """Every engine by name; `waiting` is who waits there: the offer, by attempt or by job whose start is tentative.

    `containers`: by provider of nodes, the provider that runs containers on them. `put_off`: until when (UTC seconds)
    nothing is sent to an offer that had nothing left. `reasons`: why an attempt waits, in its engine's words.
    """

    known: dict[str, Engine] = field(default_factory=dict[str, Engine])
    containers: dict[str, str] = field(default_factory=dict[str, str])
    waiting: dict[str, str] = field(default_factory=dict[str, str])
    put_off: dict[str, float] = field(default_factory=dict[str, float])
    reasons: dict[str, str] = field(default_factory=dict[str, str])

    def send(self, holder: str, offer: str) -> None:
        """`holder` waits there."""
        self.waiting[holder] = offer

    def leave(self, holder: str) -> None:
        """It runs, or is over; nothing changes when it did not wait."""
        self.waiting.pop(holder, None)
        self.reasons.pop(holder, None)

    def offers(self) -> Iterable[tuple[Engine, Offer]]:
        """All that engines offer, in a fixed order."""
        for name in sorted(self.known):
            engine = self.known[name]
            for offer_id in sorted(engine.offers):
                yield engine, engine.offers[offer_id]

    def offer(self, offer_id: str) -> Offer | None:
        """The offer by its id; None when there is none, or no more."""
        engine = self.known.get(offer_id.partition("/")[0])
        return engine.offers.get(offer_id) if engine else None

    def next_try(self, now: float) -> float | None:
        """When (UTC seconds) an offer that had nothing left is next asked again; None if none waits for that."""
        self.put_off = {offer: until for offer, until in self.put_off.items() if until > now}
        return min(self.put_off.values(), default=None)

    def able(self, shape: Shape) -> list[tuple[Engine, Offer]]:
        """The offers that suit the shape, whether or not anything can be sent there now."""
        return [(engine, offer) for engine, offer in self.offers() if not lacks(offer, shape)]

    def obstacle(self, engine: Engine, offer: Offer, now: float) -> str:
        """Why nothing is sent to the offer now, for people; empty when it can be."""
        if engine.problem or offer.problem:
            return engine.problem or offer.problem
        until = self.put_off.get(offer.id, 0.0)
        return f"had nothing left; it is asked again in {until - now:.0f} s" if until > now else ""


def allows(offer: Offer, shape: Shape) -> bool:
    """True when the job lets itself be sent to the offer's provider."""
    if shape.owned or (shape.provider and shape.provider != offer.provider):
        return False
    return not shape.providers or offer.provider in shape.providers


def lacks(offer: Offer, shape: Shape) -> list[str]:
    """Why the offer cannot hold the shape, in words read after its id; empty when it can."""
    if shape.owned:
        return ["runs no jobs of this kind: they need an agent of gpuyard"]
    if shape.provider and shape.provider != offer.provider:
        return [f"belongs to provider {offer.provider}; the job names {shape.provider}"]
    if shape.providers and offer.provider not in shape.providers:
        return [f"belongs to provider {offer.provider}, which the job does not allow"]
    found = [] if (offer.containers if shape.image else offer.processes) else [_wrong_kind(shape)]
    if shape.nodes > offer.nodes:
        found.append(f"has {offer.nodes} nodes, {shape.nodes} needed")
    found += _lacks_gpus(offer, shape) if shape.gpus else []
    if offer.cpus + SLACK < shape.cpus:
        found.append(f"has {offer.cpus:g} cores a node, {shape.cpus:g} needed")
    if offer.memory_gb + SLACK < shape.memory_gb:
        found.append(f"has {format_gb(offer.memory_gb)} of memory a node, {format_gb(shape.memory_gb)} needed")
    return found


def _wrong_kind(shape: Shape) -> str:
    return "runs no containers" if shape.image else "runs only containers; name an image"


def _lacks_gpus(offer: Offer, shape: Shape) -> list[str]:
    if shape.gpu_uuids:
        return ["cannot be asked for certain GPUs"]
    if offer.gpus < shape.gpus:
        return [f"has {offer.gpus} GPUs a node, {shape.gpus} needed"]
    found: list[str] = []
    if shape.gpu_class and not (offer.classes and offer.classes <= resolve_gpu_class(shape.gpu_class)):
        found.append(f"has {offer.gpu or 'unnamed GPUs'}, {shape.gpu_class} needed")
    if shape.gpu_memory_gb and offer.gpu_gb + SLACK < shape.gpu_memory_gb:
        known = format_gb(offer.gpu_gb) if offer.gpu_gb else "an unknown amount"
        found.append(f"has GPUs with {known} of memory, {format_gb(shape.gpu_memory_gb)} needed")
    if shape.gpu_capability and offer.capability < compute_capability(shape.gpu_capability):
        found.append(f"does not have compute capability {shape.gpu_capability}")
    return found


class Dispatch:
    """Whom to send where in one decision: the heads of the line that found no room on our own nodes."""

    def __init__(self, engines: Engines, jobs: Mapping[str, LiveJob], attempts: Mapping[str, str], now: float) -> None:
        """`attempts`: the job of each attempt that waits on an engine."""
        self._engines, self._now = engines, now
        self._waiting: dict[tuple[str, Shape], int] = {}
        self._able: dict[Shape, list[tuple[Engine, Offer]]] = {}
        for holder, offer in engines.waiting.items():
            job = jobs.get(attempts.get(holder, holder))
            if job:
                self._count(offer.partition("/")[0], job.shape)

    def place(self, shape: Shape) -> tuple[Placement, ...] | None:
        """Where a job of this shape is sent now; None when nowhere."""
        if shape not in self._able:
            self._able[shape] = self._engines.able(shape)
        for engine, offer in self._able[shape]:
            room = self._waiting.get((engine.name, shape), 0) < engine.max_pending
            if room and not self._engines.obstacle(engine, offer, self._now):
                self._count(engine.name, shape)
                return (Placement("", (), shape.cpus, shape.memory_gb, offer=offer.id),)
        return None

    def _count(self, name: str, shape: Shape) -> None:
        self._waiting[name, shape] = self._waiting.get((name, shape), 0) + 1
