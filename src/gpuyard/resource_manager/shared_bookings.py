"""Bookings of GPUs that several models share.

The scheduler does not know of sharing: one of the models books the whole GPU.
"""

from collections.abc import Callable, Collection, Iterable

from gpuyard.controller import transitions
from gpuyard.controller.core import Core
from gpuyard.domain.shape import Placement
from gpuyard.residency.fleet import Phase
from gpuyard.resource_manager.resident import Resident
from gpuyard.scheduler.attempts import LiveAttempt


class SharedBookings:
    """Moves bookings between the attempts of models."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def attempt_of(self, resident: Resident) -> LiveAttempt | None:
        """The attempt that runs its server."""
        job = self._core.view.jobs.get(resident.job_id)
        if job is None:
            return None
        return self._core.view.attempts.get(job.attempt_id or "")

    def booked_by_others(self, gpus: Collection[str], jobs: Collection[str]) -> bool:
        """Whether a job other than `jobs` has booked one of the GPUs."""
        for attempt in self._core.view.attempts.values():
            if attempt.job_id not in jobs and _books_any(attempt, gpus):
                return True
        return False

    def update(
        self, residents: Iterable[Resident], unload: Callable[[Resident], None]
    ) -> None:
        """Let one awake model on each shared GPU book it, and let sleeping models book
        nothing.

        Models on a GPU that another job has booked are unloaded.
        """
        now = self._core.clock()
        holders = self._holders()
        running: list[tuple[Resident, LiveAttempt]] = []
        for resident in residents:
            attempt = self.attempt_of(resident)
            if attempt:
                running.append((resident, attempt))
        for resident, attempt in running:
            if not resident.is_awake and holders.get(resident.gpu) == attempt.id:
                # A model that can sleep has one GPU.
                self._core.emit([transitions.moved(attempt, (), now)])
                del holders[resident.gpu]
        ours = {attempt.id for _, attempt in running}
        for resident, attempt in running:
            if not resident.is_awake or len(resident.gpus) > 1:
                continue
            holder = holders.setdefault(resident.gpu, attempt.id)
            if holder == attempt.id and not _books_any(attempt, resident.gpus):
                self._core.emit([transitions.moved(attempt, (resident.gpu,), now)])
            elif holder not in ours and resident.phase is not Phase.UNLOADING:
                # Another job was given the GPU, and its booking counts.
                unload(resident)

    def _holders(self) -> dict[str, str]:
        """The attempt that has booked each GPU."""
        view = self._core.view
        holders: dict[str, str] = {}
        # By node, because thousands of prompts book nothing.
        for node in view.nodes.values():
            for holder, share in node.bookings.items():
                if holder in view.attempts:
                    holders.update(dict.fromkeys(share.gpu_uuids, holder))
        return holders

    def reserve(
        self, job_id: str, gpus: tuple[str, ...], residents: Iterable[Resident]
    ) -> None:
        """Reserve the GPUs of a model: free ones at once, whatever jobs wait for them,
        and those of a model on several as the attempts there leave them.
        """
        view = self._core.view
        job = view.jobs[job_id]
        devices = [view.devices[gpu] for gpu in gpus if gpu in view.devices]
        node_id = devices[0].node_id if devices else None
        leaving = {
            attempt.id
            for attempt in view.attempts.values()
            if _books_any(attempt, gpus)
        }
        # Models that share a GPU pass its booking on, so all of them must leave, but
        # one that sleeps may stay.
        for resident in residents:
            attempt = self.attempt_of(resident)
            is_there = not set(gpus).isdisjoint(resident.gpus)
            if attempt and is_there and resident.is_awake:
                leaving.add(attempt.id)
        is_sharing = job.shape.gpus < len(gpus)
        may_wait = len(gpus) > 1 or not leaving
        if may_wait and not is_sharing and job.attempt_id is None and node_id:
            place = Placement(node_id, gpus, job.shape.cpus, job.shape.memory_gb)
            view.promise(job_id, (place,), frozenset(leaving))


def _books_any(attempt: LiveAttempt, gpus: Collection[str]) -> bool:
    return any(
        uuid in gpus
        for placement in attempt.placements
        for uuid in placement.booked_gpus
    )
