"""External queues: providers with their own queue, such as Slurm and Kubernetes. We
choose which jobs to submit, and they place them.

Only a few attempts of each shape wait in an external queue: enough to keep it busy. The
other jobs wait here, so our order applies to them, and they can still start elsewhere.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpuyard.domain.gpus import GPUClass, compute_capability, resolve_gpu_class
from gpuyard.domain.offers import Offer, Strategy
from gpuyard.domain.shape import Placement, Shape
from gpuyard.domain.units import format_gb
from gpuyard.scheduler.history import History
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.learning import Learning
from gpuyard.scheduler.optimiser import USUAL_RUN_S, Forecast, Need, hourly, ranked
from gpuyard.scheduler.policy import Policy
from gpuyard.scheduler.rankings import KeptRankings, about
from gpuyard.scheduler.spot import InterruptedZones, in_careful_order
from gpuyard.scheduler.trust import TrustTable

SLACK = 1e-6
# An offer without capacity is asked again after this time, which doubles each time in a
# row.
_RETRY_S = 60.0
_LONGEST_RETRY_S = 3600.0
_MOST_DOUBLINGS = 10


@dataclass(slots=True)
class ExternalQueue:
    """One external queue, and its offers by id. At most `max_pending` attempts of a
    shape wait there at once.

    `problem`: why nothing is sent there, for people; empty if there is no problem.
    """

    name: str
    max_pending: int = 8
    offers: Mapping[str, Offer] = field(default_factory=dict[str, Offer])
    problem: str = ""


@dataclass(slots=True)
class ExternalQueueTable:
    """All external queues `by_name`, and what is known about them.

    - `containers`: by provider of nodes, the provider that runs containers on them.
    - `waiting`: the offer of each attempt that waits there, by attempt id, or by job
      id while the start is tentative.
    - `reasons`: why an attempt waits, as its external queue says.
    - `retry_at`: by offer without capacity, when it is asked again (UTC seconds).
    - `no_capacity`: by offer without capacity, what its queue said.
    - `history`: how attempts went at each offer.
    - `trust`: scores and quarantines of places.
    - `interrupted`: where attempts on spot offers were interrupted.
    - `workspace_providers`: by workspace, the provider that used it last.
    - `recheck_waiting`: true if a waiting attempt might have to be withdrawn, because
      room came free here or a quarantine changed.
    """

    by_name: dict[str, ExternalQueue] = field(default_factory=dict[str, ExternalQueue])
    containers: dict[str, str] = field(default_factory=dict[str, str])
    waiting: dict[str, str] = field(default_factory=dict[str, str])
    retry_at: dict[str, float] = field(default_factory=dict[str, float])
    no_capacity: dict[str, str] = field(default_factory=dict[str, str])
    reasons: dict[str, str] = field(default_factory=dict[str, str])
    history: History = field(default_factory=History)
    trust: TrustTable = field(default_factory=TrustTable)
    interrupted: InterruptedZones = field(default_factory=InterruptedZones)
    workspace_providers: dict[str, str] = field(default_factory=dict[str, str])
    recheck_waiting: bool = False
    _no_capacity_counts: dict[str, int] = field(default_factory=dict[str, int])
    _rankings: KeptRankings = field(
        default_factory=KeptRankings, repr=False, compare=False
    )

    def note_no_capacity(self, offer: str, now: float, said: str = "") -> None:
        """The offer has no capacity: send nothing there for a while, longer each time
        in a row. `said`: what its queue says, for people.
        """
        self.no_capacity[offer] = said
        times = self._no_capacity_counts.get(offer, 0) + 1
        self._no_capacity_counts[offer] = times
        factor = 2.0 ** min(times - 1, _MOST_DOUBLINGS)
        self.retry_at[offer] = now + min(_RETRY_S * factor, _LONGEST_RETRY_S)

    def note_start(self, offer: str, wait_s: float) -> None:
        """An attempt started there after `wait_s` seconds, so the offer has
        capacity.
        """
        self._no_capacity_counts.pop(offer, None)
        self.retry_at.pop(offer, None)
        self.no_capacity.pop(offer, None)
        self.history.note_wait(offer, wait_s)

    def note_interruption(self, offer_id: str, at: float) -> None:
        """An attempt at this offer was taken back by its provider."""
        offer = self.offer(offer_id)
        if offer is not None:
            self.interrupted.note(offer, at)

    def add_waiting(self, holder: str, offer: str) -> None:
        """`holder` waits at the offer."""
        self.waiting[holder] = offer

    def remove_waiting(self, holder: str) -> None:
        """`holder` runs or has ended; idempotent."""
        self.waiting.pop(holder, None)
        self.reasons.pop(holder, None)

    def offers(self) -> Iterable[tuple[ExternalQueue, Offer]]:
        """All offers, each with its external queue, in a fixed order."""
        for name in sorted(self.by_name):
            queue = self.by_name[name]
            for offer_id in sorted(queue.offers):
                yield queue, queue.offers[offer_id]

    def offers_like(self, shape: Shape) -> Iterable[Offer]:
        """The models for a prompt, and all other offers for another job."""
        for _, offer in self.offers():
            if bool(offer.model) == bool(shape.model):
                yield offer

    def offer(self, offer_id: str) -> Offer | None:
        """The offer with this id; None if there is none now."""
        queue = self.by_name.get(offer_id.partition("/")[0])
        return queue.offers.get(offer_id) if queue else None

    def next_retry(self, now: float) -> float | None:
        """When (UTC seconds) the next offer without capacity is asked again; None if
        there is no such offer.
        """
        self.retry_at = {
            offer: until for offer, until in self.retry_at.items() if until > now
        }
        return min(self.retry_at.values(), default=None)

    def suitable_offers(self, shape: Shape) -> list[Offer]:
        """The offers that suit the shape, even if nothing can be sent there now.

        A job without GPUs gets offers that are for jobs with GPUs only if it has no
        others.
        """
        wanted = resolve_gpu_class(shape.gpu_class) if shape.gpu_class else None
        found = [
            offer
            for queue in self.by_name.values()
            for offer in queue.offers.values()
            if suits(offer, shape, wanted)
        ]
        if shape.gpus:
            return found
        return [offer for offer in found if not offer.for_gpu_jobs] or found

    def ranked_offers(
        self, shape: Shape, need: Need, strategy: Strategy
    ) -> list[Forecast]:
        """The offers that suit, best first; `strategy` is for jobs that name none."""
        chosen = Strategy(shape.strategy) if shape.strategy else strategy
        offers = self.suitable_offers(shape)
        return ranked(offers, shape, need, self.history, chosen, self.trust)

    def kept_ranking(
        self, shape: Shape, need: Need, strategy: Strategy
    ) -> Sequence[Forecast]:
        """As `ranked_offers`, for about this need, and mostly at once: what was ranked
        for an earlier decision is used again. It is good until the next call.
        """
        chosen = Strategy(shape.strategy) if shape.strategy else strategy
        readings = [self.by_name[name].offers for name in sorted(self.by_name)]
        return self._rankings.get(
            (shape, about(need), chosen),
            readings,
            self.history,
            self.trust,
            lambda: self.suitable_offers(shape),
        )

    def listing(self, strategy: Strategy) -> list[Offer]:
        """All offers: those with GPUs first, the best for a job of one GPU first."""
        offers = [offer for _, offer in self.offers() if not offer.model]
        with_gpus = [offer for offer in offers if offer.gpus]
        others = [offer for offer in offers if not offer.gpus]
        forecasts = [
            *ranked(
                with_gpus, Shape(gpus=1), Need(), self.history, strategy, self.trust
            ),
            *ranked(others, Shape(), Need(), self.history, strategy, self.trust),
        ]
        return [forecast.offer for forecast in forecasts]

    def obstacle(self, offer: Offer, shape: Shape, now: float) -> str:
        """Why no such job is sent to the offer now, for people; empty if it can be."""
        queue = self.by_name[offer.provider]
        if queue.problem or offer.problem:
            return queue.problem or offer.problem
        if quarantine := self.quarantine(offer, shape):
            return f"is {quarantine}"
        retry_at = self.retry_at.get(offer.id, 0.0)
        if retry_at > now:
            said = self.no_capacity.get(offer.id, "")
            why = f" ({said})" if said else ""
            rest_s = retry_at - now
            return f"had nothing left{why}; it is asked again in {rest_s:.0f} s"
        return ""

    def quarantine(self, offer: Offer, shape: Shape) -> str:
        """The quarantine that keeps such jobs from the offer, for people; empty if
        none does.
        """
        return "" if shape.quarantined else self.trust.of_offer(offer)


def allows(offer: Offer, shape: Shape) -> bool:
    """True if the job may be sent to the offer's provider."""
    if shape.model or offer.model:
        return shape.model == offer.model
    return may_use(offer.provider, shape)


def may_use(provider: str, shape: Shape) -> bool:
    """True if the job may be sent to the provider."""
    if shape.owned or (shape.provider and shape.provider != provider):
        return False
    return not shape.providers or provider in shape.providers


def suits(offer: Offer, shape: Shape, wanted: frozenset[GPUClass] | None) -> bool:
    """True if the offer can hold the shape. `wanted`: the GPU classes that the shape
    asks for; None for any.

    It agrees with `unmet_needs`, and takes a hundredth of its time: a decision asks it
    for every offer.
    """
    if shape.gpus > offer.gpus or not allows(offer, shape):
        return False
    runs_its_kind = offer.containers if shape.image else offer.processes
    if not runs_its_kind or (shape.workspace and not offer.workspaces):
        return False
    if shape.artifacts and not offer.artifacts:
        return False
    if shape.datasets and not offer.datasets:
        return False
    if (
        shape.nodes > offer.nodes
        or offer.cpus + SLACK < shape.cpus
        or offer.memory_gb + SLACK < shape.memory_gb
    ):
        return False
    if offer.spot and not shape.spot:
        return False
    if shape.regions and offer.region not in shape.regions:
        return False
    if shape.max_price and _too_expensive(offer, shape):
        return False
    return not shape.gpus or _gpus_suit(offer, shape, wanted)


def _gpus_suit(offer: Offer, shape: Shape, wanted: frozenset[GPUClass] | None) -> bool:
    if shape.gpu_uuids:
        return False
    if wanted is not None and not (offer.classes and offer.classes <= wanted):
        return False
    if shape.gpu_memory_gb and offer.gpu_gb + SLACK < shape.gpu_memory_gb:
        return False
    if not shape.gpu_capability:
        return True
    return offer.capability >= compute_capability(shape.gpu_capability)


def unmet_needs(offer: Offer, shape: Shape) -> list[str]:
    """Why the offer cannot hold the shape, for people; empty if it can.

    Each reason is read after the offer's id.
    """
    elsewhere = _not_for(offer, shape)
    if elsewhere:
        return [elsewhere]
    return [*_unmet_abilities(offer, shape), *_unmet_sizes(offer, shape)]


def _not_for(offer: Offer, shape: Shape) -> str:
    """Why jobs of this kind never run there; empty if they may."""
    if shape.model != offer.model:
        return f"answers prompts for {offer.model}" if offer.model else "runs no model"
    if shape.owned:
        return "runs no jobs of this kind: they need an agent of gpuyard"
    if shape.provider and shape.provider != offer.provider:
        return f"belongs to provider {offer.provider}; the job names {shape.provider}"
    if shape.providers and offer.provider not in shape.providers:
        return f"belongs to provider {offer.provider}, which the job does not allow"
    return ""


def _unmet_abilities(offer: Offer, shape: Shape) -> list[str]:
    """What the job needs or forbids, whatever its size."""
    found: list[str] = []
    if shape.image and not offer.containers:
        found.append("runs no containers")
    if not shape.image and not offer.processes:
        found.append("runs only containers; name an image")
    if shape.workspace and not offer.workspaces:
        found.append("has no place for workspaces")
    if shape.artifacts and not offer.artifacts:
        found.append("keeps no artifacts, because this host does not see its folders")
    if shape.datasets and not offer.datasets:
        found.append("has no place for datasets")
    if offer.spot and not shape.spot:
        found.append("is spot, and the job does not allow interruptions (spot)")
    if shape.regions and offer.region not in shape.regions:
        place = f"is in region {offer.region}" if offer.region else "names no region"
        found.append(f"{place}; the job allows {', '.join(shape.regions)}")
    return found


def _unmet_sizes(offer: Offer, shape: Shape) -> list[str]:
    """What the job needs more of, and its price."""
    found: list[str] = []
    if shape.max_price and _too_expensive(offer, shape):
        found.append(_price_problem(offer, shape))
    if shape.nodes > offer.nodes:
        found.append(f"has {offer.nodes} nodes, {shape.nodes} needed")
    if shape.gpus:
        found += _unmet_gpu_needs(offer, shape)
    if offer.cpus + SLACK < shape.cpus:
        found.append(f"has {offer.cpus:g} cores a node, {shape.cpus:g} needed")
    if offer.memory_gb + SLACK < shape.memory_gb:
        found.append(
            f"has {format_gb(offer.memory_gb)} of memory a node,"
            f" {format_gb(shape.memory_gb)} needed"
        )
    return found


def why_unsuitable(offer: Offer, shape: Shape) -> list[str]:
    """Why the offer is not among those that suit the shape, for people."""
    return unmet_needs(offer, shape) or ["is for jobs with GPUs, and others suit"]


def _too_expensive(offer: Offer, shape: Shape) -> bool:
    price = hourly(offer, shape)
    return price is None or price > shape.max_price + SLACK


def _price_problem(offer: Offer, shape: Shape) -> str:
    price = hourly(offer, shape)
    if price is None and offer.price_per_hour is None:
        return "has a price that is not known; max_price is set"
    if price is None:
        return (
            f"has its price in {offer.currency}, of which no rate is known"
            " (billing.rates); max_price is set"
        )
    return f"costs {price:.4g} an hour, and max_price is {shape.max_price:.4g}"


def _unmet_gpu_needs(offer: Offer, shape: Shape) -> list[str]:
    if shape.gpu_uuids:
        return ["cannot be asked for certain GPUs"]
    if offer.gpus < shape.gpus:
        return [f"has {offer.gpus} GPUs a node, {shape.gpus} needed"]
    found: list[str] = []
    if shape.gpu_class:
        wanted = resolve_gpu_class(shape.gpu_class)
        if not offer.classes or not offer.classes <= wanted:
            found.append(f"has {offer.gpu or 'unnamed GPUs'}, {shape.gpu_class} needed")
    if shape.gpu_memory_gb and offer.gpu_gb + SLACK < shape.gpu_memory_gb:
        known = format_gb(offer.gpu_gb) if offer.gpu_gb else "an unknown amount"
        found.append(
            f"has GPUs with {known} of memory, {format_gb(shape.gpu_memory_gb)} needed"
        )
    if shape.gpu_capability:
        least = compute_capability(shape.gpu_capability)
        if offer.capability < least:
            found.append(f"does not have compute capability {shape.gpu_capability}")
    return found


class Dispatch:
    """Chooses offers in one decision, for jobs that find no room on our own nodes."""

    def __init__(
        self,
        table: ExternalQueueTable,
        jobs: Mapping[str, LiveJob],
        attempts: Mapping[str, str],
        now: float,
        policy: Policy,
        learning: Learning,
    ) -> None:
        """`attempts`: the job of each attempt that waits in an external queue."""
        self._table = table
        self._now = now
        self._policy = policy
        self._learning = learning
        self._only_prompts = all(
            offer.model
            for queue in table.by_name.values()
            for offer in queue.offers.values()
        )
        self._waiting: dict[tuple[str, Shape, int], int] = {}
        for holder, offer in table.waiting.items():
            # While a start is tentative, the holder is the job itself.
            job = jobs.get(attempts.get(holder, holder))
            if job:
                self._count(_line(offer.partition("/")[0], job))

    def may_take(self, shape: Shape) -> bool:
        """False if no offer is for jobs of this kind. There may be thousands of buckets
        of jobs, and only models to be had.
        """
        return bool(shape.model) or not self._only_prompts

    def place(self, job: LiveJob) -> tuple[Placement, ...] | None:
        """The best offer to which the job can be sent now, as a placement; None if
        there is none.
        """
        shape = job.shape
        queues = self._table.by_name.values()
        if not any(queue.offers and self._has_room(queue, job) for queue in queues):
            return None
        need = need_of(job, self._learning, self._table.workspace_providers)
        forecasts = self._table.kept_ranking(shape, need, self._policy.strategy)
        for forecast in self._ordered(job, forecasts):
            offer = forecast.offer
            queue = self._table.by_name[offer.provider]
            has_room = self._has_room(queue, job)
            if has_room and not self._table.obstacle(offer, shape, self._now):
                self._count(_line(queue.name, job))
                return (Placement("", (), shape.cpus, shape.memory_gb, offer=offer.id),)
        return None

    def _has_room(self, queue: ExternalQueue, job: LiveJob) -> bool:
        """Whether one more of such jobs may wait there."""
        return self._waiting.get(_line(queue.name, job), 0) < queue.max_pending

    def _ordered(
        self, job: LiveJob, forecasts: Sequence[Forecast]
    ) -> Sequence[Forecast]:
        """The forecasts as this job had better take them: only a job that may run on
        spot takes others than the rest of its shape.
        """
        if not job.shape.spot:
            return forecasts
        return in_careful_order(
            job,
            forecasts,
            self._table.interrupted,
            self._policy.spot_attempts,
            self._now,
        )

    def _count(self, line: tuple[str, Shape, int]) -> None:
        self._waiting[line] = self._waiting.get(line, 0) + 1


def _line(queue: str, job: LiveJob) -> tuple[str, Shape, int]:
    """What counts together against the limit of an external queue: jobs of one shape.
    Prompts also by priority, because the queue of their model puts urgent ones first.
    Those that prefer a GPU have a shape of their own, so they keep nobody from others.
    """
    return queue, job.shape, job.priority if job.shape.model else 0


def need_of(
    job: LiveJob, learning: Learning, workspace_providers: Mapping[str, str]
) -> Need:
    """How long the job is expected to run, and the provider where its data is: where it
    ran last, or else where its workspace was used last.
    """
    run_s = job.estimated_s or learning.usual_s(job.job_type) or USUAL_RUN_S
    workspace_provider = workspace_providers.get(job.shape.workspace, "")
    return Need(run_s, job.service.last_provider or workspace_provider)
