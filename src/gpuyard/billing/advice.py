"""Advice on costs: what would have cost less, from what was measured of attempts that
have ended. Pure; nothing is guessed: what was not measured gets no advice.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from heapq import nlargest

from gpuyard.billing.ended_attempts import EndedAttempt
from gpuyard.billing.meter import cost
from gpuyard.domain.cost_advice import AdviceTopic, CostAdvice, CostAdviceReport
from gpuyard.domain.offers import Offer
from gpuyard.domain.tiers import Tier, Tiers

# GPUs that are less busy than this were idle most of the time.
MOSTLY_IDLE = 0.5
# A program that uses this part of its cores uses all of them.
ALL_CORES = 0.9
# What ran for less than this in all says too little of a program, in seconds.
LEAST_S = 300.0
# What saves less than this is not worth a line.
LEAST_SAVED = Decimal("0.01")
# A smaller tier must have so many times what was used.
HEADROOM = 1.25
# So little is lost when a spot offer is taken back, in seconds.
SHORT_S = 3600.0
# An offer that interrupts a larger part of its attempts is no advice.
MOST_INTERRUPTED = 0.25
_HOUR_S = 3600.0
_EXAMPLES = 3
_MICRO = Decimal("0.000001")
Program = tuple[str, str, str]
"""The user, the name of the jobs, and the currency."""


@dataclass(frozen=True, slots=True)
class SpotOffer:
    """A spot offer of the same machines: its price as a part of the price on demand,
    and which part of the attempts there is interrupted.
    """

    id: str
    price: Decimal
    interrupted: float


@dataclass(slots=True)
class _Case:
    """Some attempts of one program, added up: money and seconds."""

    attempts: int = 0
    amount: Decimal = Decimal(0)
    saved: Decimal = Decimal(0)
    seconds: float = 0.0
    gpu_s: float = 0.0
    busy_s: float = 0.0
    longest_s: float = 0.0
    cores: float = 0.0
    memory_gb: float = 0.0
    gpu_memory_gb: float = 0.0
    has_saved: bool = True
    dearest: list[tuple[Decimal, str]] = field(
        default_factory=list[tuple[Decimal, str]]
    )

    def add(self, attempt: EndedAttempt, saved: Decimal = Decimal(0)) -> None:
        gpu_s = attempt.ran_s * attempt.gpus
        self.attempts += 1
        self.amount += attempt.cost
        self.saved += saved
        self.seconds += attempt.ran_s
        self.gpu_s += gpu_s
        self.busy_s += gpu_s * (attempt.gpu_used or 0.0)
        self.longest_s = max(self.longest_s, attempt.ran_s)
        self.cores = max(self.cores, attempt.cores_used or 0.0)
        self.memory_gb = max(self.memory_gb, attempt.memory_gb or 0.0)
        self.gpu_memory_gb = max(self.gpu_memory_gb, attempt.gpu_memory_gb or 0.0)
        self.has_saved = self.has_saved and attempt.has_saved
        self._note_job(attempt)

    def _note_job(self, attempt: EndedAttempt) -> None:
        if len(self.dearest) == _EXAMPLES and attempt.cost <= self.dearest[-1][0]:
            return
        # Of a job with several attempts, the dearest counts.
        by_job = {job_id: spent for spent, job_id in self.dearest}
        known = by_job.get(attempt.job_id, attempt.cost)
        by_job[attempt.job_id] = max(known, attempt.cost)
        pairs = [(spent, job_id) for job_id, spent in by_job.items()]
        self.dearest = nlargest(_EXAMPLES, pairs)

    @property
    def jobs(self) -> list[str]:
        return [job_id for _, job_id in self.dearest]

    @property
    def busy(self) -> float:
        """How busy its GPUs were on average."""
        return self.busy_s / self.gpu_s if self.gpu_s else 0.0


@dataclass(frozen=True, slots=True)
class _RentedSize:
    """What was rented for some attempts of a program."""

    program: Program
    tier: str
    gpus: int


class CostAdviser:
    """Adds up attempts, and gives advice on them.

    `tiers`: those from which somebody chooses here; None where jobs cost the same in
    each. `spot`: the spot offer of the same machines, by the id of an offer.
    """

    def __init__(self, tiers: Tiers | None, spot: Mapping[str, SpotOffer]) -> None:
        self._tiers = tiers
        self._spot = spot
        self._attempts = 0
        self._memory_measured = 0
        self._gpu_s = 0.0
        self._measured_gpu_s = 0.0
        self._idle: dict[Program, _Case] = {}
        self._waiting: dict[Program, _Case] = {}
        self._sizes: dict[_RentedSize, _Case] = {}
        self._interruptible: dict[tuple[Program, str], _Case] = {}

    def add(self, attempt: EndedAttempt) -> None:
        """Take the next attempt."""
        self._attempts += 1
        if attempt.memory_gb is not None:
            self._memory_measured += 1
        gpu_s = attempt.ran_s * attempt.gpus
        self._gpu_s += gpu_s
        program = (attempt.user, attempt.program, attempt.currency)
        if attempt.gpu_used is not None:
            self._measured_gpu_s += gpu_s
            self._see_gpus(program, attempt, attempt.gpu_used)
        if attempt.has_completed:
            self._see_size(program, attempt)
            self._see_spot(program, attempt)

    def _see_gpus(self, program: Program, attempt: EndedAttempt, used: float) -> None:
        if used >= MOSTLY_IDLE or not attempt.gpus:
            return
        idle = (attempt.cost * (1 - Decimal(str(used)))).quantize(_MICRO)
        cases = self._waiting if _uses_all_cores(attempt) else self._idle
        cases.setdefault(program, _Case()).add(attempt, idle)

    def _see_size(self, program: Program, attempt: EndedAttempt) -> None:
        # Of several nodes, what was measured is that of the first.
        if attempt.nodes > 1 or attempt.tier is None or attempt.basis != "list":
            return
        knows_gpus = not attempt.gpus or attempt.gpu_memory_gb is not None
        if attempt.memory_gb is None or not knows_gpus:
            return
        size = _RentedSize(program, attempt.tier, attempt.gpus)
        self._sizes.setdefault(size, _Case()).add(attempt)

    def _see_spot(self, program: Program, attempt: EndedAttempt) -> None:
        spot = self._spot.get(attempt.offer)
        loses_little = attempt.has_saved or attempt.ran_s <= SHORT_S
        if spot is None or attempt.asked_for_spot or not loses_little:
            return
        # What is interrupted is paid for twice.
        part = spot.price * (1 + Decimal(str(spot.interrupted)))
        saved = (attempt.cost * (1 - part)).quantize(_MICRO)
        key = (program, attempt.offer)
        self._interruptible.setdefault(key, _Case()).add(attempt, saved)

    def report(self, begin: float, end: float) -> CostAdviceReport:
        """The advice on all attempts so far, which ended from `begin` until before
        `end`.
        """
        items = [each for each in self._items() if each.saved >= LEAST_SAVED]
        items.sort(key=lambda item: (item.currency, -item.saved, item.program))
        return CostAdviceReport(
            begin=begin,
            end=end,
            items=items,
            attempts=self._attempts,
            memory_measured=self._memory_measured,
            gpu_hours=self._gpu_s / _HOUR_S,
            gpu_hours_measured=self._measured_gpu_s / _HOUR_S,
        )

    def _items(self) -> Iterator[CostAdvice]:
        for program, case in self._idle.items():
            if case.seconds >= LEAST_S:
                yield _on_idle_gpus(program, case)
        for program, case in self._waiting.items():
            if case.seconds >= LEAST_S:
                yield _on_waiting_gpus(program, case)
        for size, case in self._sizes.items():
            smaller = self._smaller_tier(size, case)
            if smaller is not None and case.seconds >= LEAST_S:
                yield _on_tier(size, case, smaller)
        for (program, offer), case in self._interruptible.items():
            yield _on_spot(program, case, self._spot[offer])

    def _smaller_tier(self, size: _RentedSize, case: _Case) -> Tier | None:
        """The cheapest tier that would have done; None if it is the one rented."""
        if self._tiers is None:
            return None
        rented = next((tier for tier in self._tiers if tier.id == size.tier), None)
        if rented is None:
            return None
        fitting = [tier for tier in self._tiers if _fits(tier, rented, size, case)]
        if not fitting:
            return None
        return min(fitting, key=lambda tier: tier.cost_per_hour * tier.units(size.gpus))


def _fits(tier: Tier, rented: Tier, size: _RentedSize, case: _Case) -> bool:
    """Whether a tier costs less than the one rented, and has what was used."""
    units = tier.units(size.gpus)
    price = tier.cost_per_hour * units
    return (
        tier.currency == rented.currency == size.program[2]
        and price < rented.cost_per_hour * rented.units(size.gpus)
        and bool(tier.gpu_count) == bool(size.gpus)
        and tier.gpu_memory_gb >= case.gpu_memory_gb * HEADROOM
        and tier.memory_gb * units >= case.memory_gb * HEADROOM
        and tier.cpu * units >= case.cores * HEADROOM
        and tier.max_runtime_s >= case.longest_s
    )


def _uses_all_cores(attempt: EndedAttempt) -> bool:
    """Whether its processors were busy while its GPUs were not."""
    return (attempt.cores_used or 0.0) >= ALL_CORES * attempt.cpus


def spot_offers(
    offers: Iterable[Offer], interrupted: Mapping[str, float]
) -> dict[str, SpotOffer]:
    """The cheapest spot offer of the same machines, by the id of each offer on demand.
    `interrupted`: which part of its attempts each spot offer interrupts, by its id.
    """
    listed = [offer for offer in offers if offer.price_per_hour and not offer.problem]
    calm = [
        offer
        for offer in listed
        if offer.spot and interrupted.get(offer.id, 1.0) <= MOST_INTERRUPTED
    ]
    found: dict[str, SpotOffer] = {}
    for offer in listed:
        cheapest = None if offer.spot else _cheapest_spot(offer, calm, interrupted)
        if cheapest is not None:
            found[offer.id] = cheapest
    return found


def _cheapest_spot(
    offer: Offer, spots: Iterable[Offer], interrupted: Mapping[str, float]
) -> SpotOffer | None:
    """The cheapest of these spot offers that is of the same machines and costs less."""
    cheapest: SpotOffer | None = None
    for spot in spots:
        part = _price_part(offer, spot)
        if part is not None and (cheapest is None or part < cheapest.price):
            cheapest = SpotOffer(spot.id, part, interrupted[spot.id])
    return cheapest


def _price_part(offer: Offer, spot: Offer) -> Decimal | None:
    """The price of a spot offer as a part of that of an offer on demand; None if it is
    not one of the same machines, or not cheaper.
    """
    ours = (offer.provider, offer.region, offer.kind, offer.gpus, offer.currency)
    its = (spot.provider, spot.region, spot.kind, spot.gpus, spot.currency)
    if its != ours:
        return None
    if offer.price_per_hour is None or spot.price_per_hour is None:
        return None
    part = spot.price_per_hour / offer.price_per_hour
    return part if part < 1 else None


def _advice(
    topic: AdviceTopic,
    program: Program,
    case: _Case,
    measured: str,
    remedy: str,
    *,
    saved: Decimal | None = None,
    instead: str | None = None,
) -> CostAdvice:
    user, name, currency = program
    return CostAdvice(
        topic=topic,
        user=user,
        program=name,
        attempts=case.attempts,
        jobs=case.jobs,
        hours=case.seconds / _HOUR_S,
        currency=currency,
        amount=case.amount,
        saved=case.saved if saved is None else saved,
        measured=measured,
        remedy=remedy,
        instead=instead,
    )


def _busy_part(case: _Case) -> str:
    hours = case.gpu_s / _HOUR_S
    return f"its GPUs were busy {case.busy:.0%} of {hours:.1f} GPU hours"


def _on_idle_gpus(program: Program, case: _Case) -> CostAdvice:
    return _advice(
        AdviceTopic.GPU_IDLE,
        program,
        case,
        _busy_part(case),
        "ask for fewer GPUs, prepare data in a job without GPUs, or raise the batch"
        " size",
    )


def _on_waiting_gpus(program: Program, case: _Case) -> CostAdvice:
    return _advice(
        AdviceTopic.GPU_WAITS_FOR_DATA,
        program,
        case,
        f"{_busy_part(case)}, while the program used all of its cores",
        "ask for more cores (--cpus) and use more workers in the data loader, or"
        " prepare the data beforehand",
    )


def _on_tier(size: _RentedSize, case: _Case, smaller: Tier) -> CostAdvice:
    per_hour = smaller.cost_per_hour * smaller.units(size.gpus)
    instead = cost(per_hour, case.seconds)
    used = f"it used at most {case.memory_gb:.1f} GB of memory"
    if size.gpus:
        used += f" and {case.gpu_memory_gb:.1f} GB of each GPU"
    return _advice(
        AdviceTopic.TIER_TOO_LARGE,
        size.program,
        case,
        f"in {size.tier} {used}",
        f"ask for {smaller.id}: {case.seconds / _HOUR_S:.1f} hours there cost"
        f" {instead:.2f} {smaller.currency}, if it takes as long",
        saved=case.amount - instead,
        instead=smaller.id,
    )


def _on_spot(program: Program, case: _Case, spot: SpotOffer) -> CostAdvice:
    why = f"each ran for {SHORT_S / 60:.0f} minutes at most"
    if case.has_saved:
        why = "each left a checkpoint"
    elif case.longest_s > SHORT_S:
        why = f"each left a checkpoint, or ran for {SHORT_S / 60:.0f} minutes at most"
    return _advice(
        AdviceTopic.SPOT,
        program,
        case,
        f"it completed on demand, and {why}",
        f"allow spot offers (--spot): {spot.id} costs {spot.price:.0%} of that now, and"
        f" interrupts {spot.interrupted:.0%} of its attempts",
        instead=spot.id,
    )
