"""Arrays of which only some tasks may run at once."""

from dataclasses import dataclass, field

from gpuyard.scheduler.queue import LazyHeap


@dataclass(slots=True)
class LiveArray:
    """An array of which at most `at_most` tasks may be in the queue or have an attempt
    at once.

    `admitted`: the tasks that are in the queue or have an attempt. `waiting`: those
    that only the limit keeps out of the queue, in the order of their ids, which is that
    of their indices.
    """

    at_most: int
    admitted: set[str] = field(default_factory=set[str])
    waiting: LazyHeap[str] = field(default_factory=LazyHeap[str])

    def admit(self, job_id: str) -> bool:
        """Whether the task may be in the queue; if not, it waits here."""
        if job_id in self.admitted or len(self.admitted) < self.at_most:
            self.admitted.add(job_id)
            self.waiting.discard(job_id)
            return True
        self.waiting.add(job_id)
        return False

    def leave(self, job_id: str) -> None:
        """The task neither waits for its turn nor runs; idempotent."""
        self.admitted.discard(job_id)
        self.waiting.discard(job_id)

    def next(self) -> str | None:
        """A task that may go into the queue now, None without one. It is admitted."""
        first = self.waiting.first()
        if first is None or len(self.admitted) >= self.at_most:
            return None
        self.admit(first)
        return first
