"""How the cluster behaves where clusters differ, and how quick it is."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Options:
    """`window`: how many changes are kept for watches. `job_propagation`: what a DELETE
    of a Job without a policy does;
    batch/v1 orphans. `garbage_s`: how long what nobody owns any more stays. `version`: from 1.31 on a Job is Failed only when its pods have
    ended. `gone_as_http`: a watch from too old a version is answered with HTTP 410
    instead of an event. `job_mark_s`: how long after its last pod has succeeded a Job
    is marked as complete.
    """

    version: str = "1.30"
    images: frozenset[str] = frozenset(
        {"python:3.11-slim", "busybox:1.36", "gpuyard/test:1"}
    )
    pull_s: float = 0.0
    pull_backoff_s: float = 0.2
    restart_backoff_s: float = 0.2
    job_backoff_s: float = 0.05
    window: int = 10_000
    bookmark_s: float = 1.0
    toleration_s: int = 1
    pod_gc_s: float = 0.3
    garbage_s: float = 0.0
    job_propagation: str = "Orphan"
    gone_as_http: bool = False
    job_mark_s: float = 0.0
    kueue: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def minor(self) -> int:
        return int(self.version.split(".")[1])
