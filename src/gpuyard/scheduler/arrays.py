"""Arrays of which only some tasks may run at once."""

from dataclasses import dataclass, field

from gpuyard.scheduler.heaps import LazyHeap
from gpuyard.scheduler.jobs import LiveJob


@dataclass(slots=True)
class LiveArray:
    """An array of which at most `at_most` tasks may be in the queue or have an attempt
    at once.

    `expected` of its tasks are still to come, for it was only just submitted; `live`
    are in the view. `admitted` are those that are in the queue or have an attempt: more
    than `at_most` if that became less while they ran. `waiting` are those that could be
    in the queue but for the limit: the urgent ones first, then in the order of their
    ids, which is that of their indices.
    """

    at_most: int
    expected: int = 0
    live: int = 0
    admitted: set[str] = field(default_factory=set[str])
    waiting: LazyHeap[tuple[float, str]] = field(
        default_factory=LazyHeap[tuple[float, str]]
    )

    @property
    def is_over(self) -> bool:
        """True when none of its tasks is live, or still to come."""
        return self.live == 0 and self.expected == 0

    def join(self) -> None:
        """One more of its tasks is live."""
        self.live += 1
        self.expected = max(self.expected - 1, 0)

    def admit(self, job: LiveJob) -> bool:
        """Whether the task may be in the queue; if not, it waits here."""
        self.leave(job)
        if len(self.admitted) < self.at_most:
            self.admitted.add(job.id)
            return True
        self.waiting.add(_turn(job))
        return False

    def send_back(self, job: LiveJob) -> None:
        """The task, which was admitted, waits for its turn again."""
        self.admitted.discard(job.id)
        self.waiting.add(_turn(job))

    def waits(self, job: LiveJob) -> bool:
        """Whether the task waits for its turn."""
        return _turn(job) in self.waiting

    def stop_waiting(self, job: LiveJob) -> None:
        """The task does not wait for its turn; idempotent."""
        self.waiting.discard(_turn(job))

    def leave(self, job: LiveJob) -> None:
        """The task neither waits for its turn nor runs; idempotent."""
        self.admitted.discard(job.id)
        self.stop_waiting(job)

    def next(self) -> str | None:
        """The task whose turn it is, None without one."""
        first = self.waiting.first()
        if first is None or len(self.admitted) >= self.at_most:
            return None
        return first[1]


def _turn(job: LiveJob) -> tuple[float, str]:
    return (-job.priority, job.id)
