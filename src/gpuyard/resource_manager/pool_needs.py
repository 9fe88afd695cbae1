"""What pools of nodes must know of models and batches: which work waits for a place
that no job in the queue stands for, and which nodes have models that nobody uses.
"""

import time
from collections.abc import Iterator
from itertools import islice

from gpuyard.controller.core import Core
from gpuyard.domain.shape import Shape
from gpuyard.residency.fleet import Phase
from gpuyard.residency.policies import ANSWER_S
from gpuyard.residency.switching import Switch
from gpuyard.resource_manager.batch import Batch
from gpuyard.resource_manager.batches import Batches
from gpuyard.resource_manager.resident import Resident, model_shape
from gpuyard.resource_manager.residents import Residents
from gpuyard.scheduler.nodes import Node
from gpuyard.scheduler.pool_demand import Wish

# A model stays where it is loaded: none follows in its place.
_STAYS_S = 3600.0
# The guess of an answer's time counts as much as so many answers, as in `Demand`.
_GUESSES = 3
# How long items take is estimated from so many of them.
_SAMPLE = 100


class PoolNeeds:
    """Answers from memory."""

    def __init__(self, core: Core, residents: Residents, batches: Batches) -> None:
        self._core = core
        self._residents = residents
        self._batches = batches

    def wishes(self) -> list[Wish]:
        """The models that want a place, and the items of batches that wait."""
        return [*self._models(), *self._items()]

    def _models(self) -> Iterator[Wish]:
        residents = self._residents
        if residents.closed_for_batch:
            return
        now = time.monotonic()
        for model, spec in residents.specs.items():
            is_failing = residents.servers.failures[model].until > now
            if spec.joined and not is_failing and self._wants_more(model):
                wait_s = self._wait_s(model)
                yield Wish(model_shape(spec), 1, _STAYS_S, wait_s)

    def _wants_more(self, model: str) -> bool:
        """Whether the model is needed where it is not, and is on its way to nowhere."""
        own = self._serving(model)
        if any(resident.phase is Phase.BOOTING for resident in own):
            return False
        return bool(self._waiting(model)) or (
            model in self._residents.pinned and not own
        )

    def _waiting(self, model: str) -> int:
        line = self._residents.request_queues.by_model[model].waiting
        return len(line) + self._core.view.queue.prompts[model]

    def _serving(self, model: str) -> list[Resident]:
        return [
            resident
            for resident in self._residents.servers.live.values()
            if resident.model == model
            and resident.phase not in (Phase.UNLOADING, Phase.ASLEEP)
            and not resident.must_leave
        ]

    def _wait_s(self, model: str) -> float | None:
        """How much longer the last request waits than it takes to load the model once
        more; None while nothing answers.
        """
        queue = self._residents.request_queues.by_model[model]
        if not queue.slots:
            return None
        answering_s = queue.answering_s + _GUESSES * ANSWER_S
        answer_s = answering_s / (queue.answered + _GUESSES)
        boot_s = self._residents.switch_times.seconds(model, Switch.BOOT)
        return self._waiting(model) * answer_s / queue.slots - boot_s

    def _items(self) -> Iterator[Wish]:
        alone = self._batches.exclusive_batch()
        for batch in self._batches.live.values():
            # The others have no workers until it has ended: nodes would come for
            # nothing, go and come again.
            is_its_turn = alone in (None, batch) or not batch.script.gpus
            is_paused = time.monotonic() < batch.paused_until
            may_work = is_its_turn and not is_paused
            if batch.script.joined and batch.queued and may_work:
                shape = Shape.of(self._batches.workers.spec(batch, None))
                item_s = _item_s(batch)
                wait_s = None
                if working := self._working(batch):
                    wait_s = len(batch.queued) * item_s / working
                yield Wish(shape, len(batch.queued), item_s, wait_s)

    def _working(self, batch: Batch) -> int:
        """How many workers of the batch have a place."""
        jobs = self._core.view.jobs
        own = (jobs.get(job_id) for job_id in batch.workers)
        return sum(job is not None and job.attempt_id is not None for job in own)

    def idle_since(self, node: Node, now: float) -> float | None:
        """Since when (UTC seconds) the models on this node are used by nobody; None if
        one is, if one never leaves, or if something else runs there.
        """
        residents = self._residents
        own = self.models_on(node)
        jobs = {resident.job_id for resident in own}
        if not own or not self._holders(node) <= jobs:
            return None
        for resident in own:
            is_pinned = resident.model in residents.pinned
            if is_pinned or not _is_idle(resident) or self._waiting(resident.model):
                return None
        used_at = max(map(_used_at, own))
        return now - (time.monotonic() - used_at)

    def models_on(self, node: Node) -> list[Resident]:
        """The models whose servers run on this node, or are about to."""
        return [
            resident
            for resident in self._residents.servers.live.values()
            if not node.devices.keys().isdisjoint(resident.gpus)
        ]

    def _holders(self, node: Node) -> set[str]:
        """The jobs that have booked something of the node."""
        attempts = self._core.view.attempts
        return {
            attempts[holder].job_id if holder in attempts else holder
            for holder in node.bookings
        }


def _item_s(batch: Batch) -> float:
    """How long the items take that wait, on average."""
    some = list(islice(batch.queued.values(), _SAMPLE))
    return sum(map(batch.expected_s, some)) / len(some)


def _is_idle(resident: Resident) -> bool:
    """Whether it is loaded, or asleep, and answers nothing."""
    if resident.is_changing or resident.phase not in (Phase.READY, Phase.ASLEEP):
        return False
    return resident.replica is None or not resident.replica.taken


def _used_at(resident: Resident) -> float:
    """When it was used last (monotonic seconds)."""
    return resident.replica.used_at if resident.replica else resident.since
