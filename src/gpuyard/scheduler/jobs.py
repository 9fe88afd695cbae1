"""Live jobs as the scheduler and the controller remember them."""

from dataclasses import dataclass

from gpuyard.domain.shape import Shape
from gpuyard.domain.states import JobState


@dataclass(slots=True)
class LiveJob:
    """A job that is not over. Times are UTC seconds; `waits_for` are the parents that have not completed.

    `kind` is its type (see `learning`); `served_s` the seconds its ended attempts have run; `preemptions` how many of
    them were preempted; `home` the provider where the newest of them ran.
    """

    id: str
    state: JobState
    shape: Shape
    priority: int
    created_at: float
    not_before: float | None = None
    timeout_s: float | None = None
    estimated_s: float | None = None
    project: str | None = None
    preemptible: bool = False
    waits_for: tuple[str, ...] = ()
    tier: str | None = None
    started_at: float | None = None
    attempts: int = 0
    attempt_id: str | None = None
    retry_count: int = 0
    failures: int = 0
    cancel_requested: bool = False
    resume_from: str | None = None
    kind: str = ""
    served_s: float = 0.0
    preemptions: int = 0
    home: str = ""

    @property
    def width(self) -> int:
        """How many GPUs it holds at once; one for a job without GPUs, which holds other things."""
        return max(1, self.shape.gpus * self.shape.nodes)
