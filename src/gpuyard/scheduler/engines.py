"""Engines: places that have a queue of their own (Slurm, Kubernetes). We choose whom to send, and they place.

An engine is given a few jobs of each shape more than it runs: enough to keep it busy, and no more, so that our order
decides and what waits there can still be had elsewhere.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpuyard.domain.gpus import GPUClass, compute_capability, resolve_gpu_class
from gpuyard.domain.offers import Offer, Strategy
from gpuyard.domain.shape import Placement, Shape
from gpuyard.domain.units import format_gb
from gpuyard.scheduler.history import History
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.learning import Learning
from gpuyard.scheduler.optimiser import USUAL_RUN_S, Forecast, Need, hourly, ranked
from gpuyard.scheduler.trust import Trust

SLACK = 1e-6
# An offer that had nothing left is left alone for so long, and twice as long each time in a row.
_PUT_OFF_S, _LONGEST_PUT_OFF_S = 60.0, 3600.0
_MOST_DOUBLINGS = 10


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
    `history`: what became of those that were sent. `trust`: what was found out about places. `keeps`: by workspace, the
    provider where it was used last.
    `missed`: room came here while one was on its way to an engine.
    """

    known: dict[str, Engine] = field(default_factory=dict[str, Engine])
    containers: dict[str, str] = field(default_factory=dict[str, str])
    waiting: dict[str, str] = field(default_factory=dict[str, str])
    put_off: dict[str, float] = field(default_factory=dict[str, float])
    reasons: dict[str, str] = field(default_factory=dict[str, str])
    history: History = field(default_factory=History)
    trust: Trust = field(default_factory=Trust)
    keeps: dict[str, str] = field(default_factory=dict[str, str])
    missed: bool = False
    _empty: dict[str, int] = field(default_factory=dict[str, int])

    def had_nothing(self, offer: str, now: float) -> None:
        """The offer had nothing left: leave it alone for a while, longer each time in a row."""
        times = self._empty[offer] = self._empty.get(offer, 0) + 1
        longer = 2.0 ** min(times - 1, _MOST_DOUBLINGS)
        self.put_off[offer] = now + min(_PUT_OFF_S * longer, _LONGEST_PUT_OFF_S)

    def began(self, offer: str, wait_s: float) -> None:
        """An attempt began there: it has something."""
        self._empty.pop(offer, None)
        self.put_off.pop(offer, None)
        self.history.began(offer, wait_s)

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

    def able(self, shape: Shape) -> list[Offer]:
        """The offers that suit the shape, whether or not anything can be sent there now."""
        wanted = resolve_gpu_class(shape.gpu_class) if shape.gpu_class else None
        return [offer for engine in self.known.values() for offer in engine.offers.values()
                if suits(offer, shape, wanted)]  # fmt: skip

    def ranked(self, shape: Shape, need: Need, strategy: Strategy) -> list[Forecast]:
        """The offers that suit, best first; the job's own strategy comes before `strategy`."""
        chosen = Strategy(shape.strategy) if shape.strategy else strategy
        return ranked(self.able(shape), shape, need, self.history, chosen, self.trust)

    def listing(self, strategy: Strategy) -> list[Offer]:
        """Every offer, the best for a job of one GPU first; those without any come last."""
        found = [offer for _, offer in self.offers()]
        gpus, others = [offer for offer in found if offer.gpus], [offer for offer in found if not offer.gpus]
        best = [*ranked(gpus, Shape(gpus=1), Need(), self.history, strategy, self.trust),
                *ranked(others, Shape(), Need(), self.history, strategy, self.trust)]  # fmt: skip
        return [forecast.offer for forecast in best]

    def obstacle_of(self, offer: Offer, shape: Shape, now: float) -> str:
        """`obstacle` of the offer's own engine."""
        return self.obstacle(self.known[offer.provider], offer, shape, now)

    def obstacle(self, engine: Engine, offer: Offer, shape: Shape, now: float) -> str:
        """Why no such job is sent to the offer now, for people; empty when it can be."""
        if engine.problem or offer.problem:
            return engine.problem or offer.problem
        if quarantine := self.quarantine(offer, shape):
            return f"is {quarantine}"
        until = self.put_off.get(offer.id, 0.0)
        return f"had nothing left; it is asked again in {until - now:.0f} s" if until > now else ""

    def quarantine(self, offer: Offer, shape: Shape) -> str:
        """The quarantine that keeps such jobs from the offer, for people; empty when none does."""
        return "" if shape.quarantined else self.trust.of_offer(offer)


def allows(offer: Offer, shape: Shape) -> bool:
    """True when the job lets itself be sent to the offer's provider."""
    if shape.owned or (shape.provider and shape.provider != offer.provider):
        return False
    return not shape.providers or offer.provider in shape.providers


def suits(offer: Offer, shape: Shape, wanted: frozenset[GPUClass] | None) -> bool:
    """True exactly when `lacks` finds nothing, in a hundredth of its time; `wanted`: the classes the shape asks for."""
    if (
        (shape.gpus > offer.gpus)
        or not allows(offer, shape)
        or not (offer.containers if shape.image else offer.processes)
        or (shape.workspace and not offer.workspaces)
        or shape.nodes > offer.nodes
        or offer.cpus + SLACK < shape.cpus
        or offer.memory_gb + SLACK < shape.memory_gb
        or (offer.spot and not shape.spot)
        or (shape.regions and offer.region not in shape.regions)
        or (shape.max_price and _too_dear(offer, shape))
    ):
        return False
    return not shape.gpus or not (
        shape.gpu_uuids
        or (wanted is not None and not (offer.classes and offer.classes <= wanted))
        or (shape.gpu_memory_gb and offer.gpu_gb + SLACK < shape.gpu_memory_gb)
        or (shape.gpu_capability and offer.capability < compute_capability(shape.gpu_capability))
    )


def lacks(offer: Offer, shape: Shape) -> list[str]:
    """Why the offer cannot hold the shape, in words read after its id; empty when it can."""
    if shape.owned:
        return ["runs no jobs of this kind: they need an agent of gpuyard"]
    if shape.provider and shape.provider != offer.provider:
        return [f"belongs to provider {offer.provider}; the job names {shape.provider}"]
    if shape.providers and offer.provider not in shape.providers:
        return [f"belongs to provider {offer.provider}, which the job does not allow"]
    found = [] if (offer.containers if shape.image else offer.processes) else [_wrong_kind(shape)]
    if shape.workspace and not offer.workspaces:
        found.append("has no place for workspaces")
    if offer.spot and not shape.spot:
        found.append("is spot, and the job does not allow interruptions (spot)")
    if shape.regions and offer.region not in shape.regions:
        place = f"is in region {offer.region}" if offer.region else "names no region"
        found.append(f"{place}; the job allows {', '.join(shape.regions)}")
    if shape.max_price and _too_dear(offer, shape):
        found.append(_price_words(offer, shape))
    if shape.nodes > offer.nodes:
        found.append(f"has {offer.nodes} nodes, {shape.nodes} needed")
    found += _lacks_gpus(offer, shape) if shape.gpus else []
    if offer.cpus + SLACK < shape.cpus:
        found.append(f"has {offer.cpus:g} cores a node, {shape.cpus:g} needed")
    if offer.memory_gb + SLACK < shape.memory_gb:
        found.append(f"has {format_gb(offer.memory_gb)} of memory a node, {format_gb(shape.memory_gb)} needed")
    return found


def _too_dear(offer: Offer, shape: Shape) -> bool:
    price = hourly(offer, shape)
    return price is None or price > shape.max_price + SLACK


def _price_words(offer: Offer, shape: Shape) -> str:
    price = hourly(offer, shape)
    if price is None and offer.price_per_hour is None:
        return "has a price that is not known; max_price is set"
    if price is None:
        return f"has its price in {offer.currency}, of which no rate is known (billing.rates); max_price is set"
    return f"costs {price:.4g} an hour, and max_price is {shape.max_price:.4g}"


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

    def __init__(
        self, engines: Engines, jobs: Mapping[str, LiveJob], attempts: Mapping[str, str], now: float,
        strategy: Strategy, learning: Learning,
    ) -> None:  # fmt: skip
        """`attempts`: the job of each attempt that waits on an engine."""
        self._engines, self._now, self._strategy, self._learning = engines, now, strategy, learning
        self._waiting: dict[tuple[str, Shape], int] = {}
        self._ranked: dict[tuple[Shape, Need], list[Forecast]] = {}
        for holder, offer in engines.waiting.items():
            job = jobs.get(attempts.get(holder, holder))
            if job:
                self._count(offer.partition("/")[0], job.shape)

    def place(self, job: LiveJob) -> tuple[Placement, ...] | None:
        """Where the job is sent now: the best offer that can be had. None when nowhere."""
        shape = job.shape
        key = shape, need_of(job, self._learning, self._engines.keeps)
        if key not in self._ranked:
            self._ranked[key] = self._engines.ranked(*key, self._strategy)
        for forecast in self._ranked[key]:
            offer = forecast.offer
            engine = self._engines.known[offer.provider]
            room = self._waiting.get((engine.name, shape), 0) < engine.max_pending
            if room and not self._engines.obstacle(engine, offer, shape, self._now):
                self._count(engine.name, shape)
                return (Placement("", (), shape.cpus, shape.memory_gb, offer=offer.id),)
        return None

    def _count(self, name: str, shape: Shape) -> None:
        self._waiting[name, shape] = self._waiting.get((name, shape), 0) + 1


def need_of(job: LiveJob, learning: Learning, keeps: Mapping[str, str]) -> Need:
    """How long the job will run, as far as anybody knows, and where its data is: where it ran before, or else where
    its workspace was used last (`keeps`)."""
    run_s = job.estimated_s or learning.usual_s(job.kind) or USUAL_RUN_S
    return Need(run_s, job.home or keeps.get(job.shape.workspace, ""))
