"""Holds: who books a GPU that several models are on. The scheduler knows nothing of sharing: one of them books it."""

from collections.abc import Callable, Collection, Iterable

from gpuyard.controller import moves
from gpuyard.controller.core import Core
from gpuyard.controller.resident import Resident
from gpuyard.domain.shape import Placement
from gpuyard.scheduler.fleet import Phase
from gpuyard.scheduler.view import LiveAttempt


class Holds:
    """Keeps account of bookings by models' attempts."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def attempt(self, resident: Resident) -> LiveAttempt | None:
        """The attempt that its server is."""
        job = self._core.view.jobs.get(resident.job_id)
        return self._core.view.attempts.get(job.attempt_id or "") if job else None

    def is_others(self, gpus: Collection[str], jobs: Collection[str]) -> bool:
        """Whether one of the GPUs is booked by a job that is none of these."""
        attempts = self._core.view.attempts.values()
        return any(uuid in gpus and attempt.job_id not in jobs
                   for attempt in attempts for share in attempt.placements for uuid in share.gpu_uuids)  # fmt: skip

    def keep(self, residents: Iterable[Resident], unload: Callable[[Resident], None]) -> None:
        """See to it that a GPU with models awake on it is booked by one of them, and one without by none."""
        view, now = self._core.view, self._core.clock()
        holders = {uuid: a.id for a in view.attempts.values() for place in a.placements for uuid in place.gpu_uuids}
        there = [(resident, attempt) for resident in residents if (attempt := self.attempt(resident))]
        for resident, attempt in there:
            if not resident.awake and holders.get(resident.gpu) == attempt.id:
                self._core.emit([moves.moved(attempt, (), now)])
                del holders[resident.gpu]  # who sleeps has one
        ours = {attempt.id for _, attempt in there}
        for resident, attempt in there:
            if not resident.awake or len(resident.gpus) > 1:
                continue
            holder = holders.setdefault(resident.gpu, attempt.id)
            if holder == attempt.id and not any(resident.gpu in place.gpu_uuids for place in attempt.placements):
                self._core.emit([moves.moved(attempt, (resident.gpu,), now)])
            elif holder not in ours and resident.phase is not Phase.UNLOADING:
                unload(resident)  # somebody else was given the GPU: what is booked counts

    def promise(self, job_id: str, gpus: tuple[str, ...], residents: Iterable[Resident]) -> None:
        """What is freed of the GPUs of a model that needs several is kept for it."""
        view = self._core.view
        job, node = view.jobs[job_id], next((d.node_id for gpu in gpus if (d := view.devices.get(gpu))), None)
        there = {attempt.id for attempt in view.attempts.values() for place in attempt.placements
                 if not {*gpus}.isdisjoint(place.gpu_uuids)}  # fmt: skip
        # One of several on a GPU books it, and hands it on to another when it goes.
        there |= {attempt.id for resident in residents
                  if not {*gpus}.isdisjoint(resident.gpus) and (attempt := self.attempt(resident))}  # fmt: skip
        if len(gpus) > 1 and job.attempt_id is None and there and node:
            place = Placement(node, gpus, job.shape.cpus, job.shape.memory_gb)
            view.promise(job_id, (place,), frozenset(there))
