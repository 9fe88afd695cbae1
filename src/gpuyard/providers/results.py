"""The state of attempts, from the agents' reports: answers to `get_job_status`."""

import signal
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpuyard.domain import wire
from gpuyard.domain.jobconfig import JobResult, JobStatus
from gpuyard.domain.reasons import Reason


@dataclass(frozen=True, slots=True)
class KnownAttempt:
    """An attempt: its node, its GPUs and its latest state."""

    node_id: str
    result: JobResult
    gpu_uuids: tuple[str, ...] = ()

    @property
    def is_over(self) -> bool:
        """True once the attempt has ended; later reports do not change it."""
        return self.result.status.is_over


class AttemptResults:
    """Every live attempt, and the `kept` attempts that ended last."""

    def __init__(self, kept: int = 1_000) -> None:
        self._kept = kept
        self._live: dict[str, KnownAttempt] = {}
        self._ended: OrderedDict[str, KnownAttempt] = OrderedDict()

    def find(self, attempt_id: str) -> KnownAttempt | None:
        """An attempt; None when it is unknown or was dropped."""
        return self._live.get(attempt_id) or self._ended.get(attempt_id)

    def gpus_in_use(self) -> set[str]:
        """The UUIDs given to live attempts."""
        return {uuid for known in self._live.values() for uuid in known.gpu_uuids}

    def add_submitted(
        self, attempt_id: str, node_id: str, gpu_uuids: Iterable[str]
    ) -> None:
        """Add an attempt that was sent to a node, whichever other one claims it."""
        known = self.find(attempt_id)
        if known is None or known.node_id != node_id:
            self._ended.pop(attempt_id, None)
            result = JobResult(attempt_id, JobStatus.PENDING, created_at=time.time())
            self._live[attempt_id] = KnownAttempt(node_id, result, tuple(gpu_uuids))

    def add_listed(self, node_id: str, attempt_id: str, state: str) -> None:
        """Add an attempt that a node's agent lists as `running` or `ended`.

        The agent reports the end itself separately.
        """
        if state == "running":
            self._update(attempt_id, node_id, status=JobStatus.RUNNING)
        elif self.find(attempt_id) is None:
            self._update(attempt_id, node_id, status=JobStatus.UNKNOWN)

    def update(self, node_id: str, bodies: Sequence[Any]) -> None:
        """Update attempts from the bodies of reports."""
        # The report of an end says all that the one of its start says.
        ended = {body.attempt_id for body in bodies if isinstance(body, wire.Ended)}
        for body in bodies:
            if isinstance(body, wire.Started) and body.attempt_id not in ended:
                self._update(
                    body.attempt_id,
                    node_id,
                    status=JobStatus.RUNNING,
                    started_at=body.at,
                )
            elif isinstance(body, wire.Ended):
                self._update(
                    body.attempt_id,
                    node_id,
                    status=outcome_of(body),
                    started_at=body.started_at,
                    completed_at=body.at,
                    exit_code=body.exit_code,
                    error_message=explanation(body),
                )

    def _update(self, attempt_id: str, node_id: str, **values: Any) -> None:
        old = self.find(attempt_id)
        if old is None:
            result = JobResult(attempt_id, JobStatus.UNKNOWN, created_at=time.time())
            old = KnownAttempt(node_id, result)
        if old.is_over or old.node_id != node_id:
            return  # an attempt does not move, whatever another node says
        known = KnownAttempt(node_id, replace(old.result, **values), old.gpu_uuids)
        if not known.is_over:
            self._live[attempt_id] = known
            return
        self._live.pop(attempt_id, None)
        self._ended[attempt_id] = known
        while len(self._ended) > self._kept:
            self._ended.popitem(last=False)


def outcome_of(body: wire.Ended) -> JobStatus:
    """The state of an attempt that has ended so."""
    if Reason.of(body.stopped).ends_job:
        return JobStatus.CANCELLED
    if body.stopped or body.reason or body.exit_code != 0:
        return JobStatus.FAILED
    return JobStatus.COMPLETED


def explanation(body: wire.Ended) -> str | None:
    """Why the attempt failed, for people.

    None when it completed, or when there is only its exit code.
    """
    killed = f"killed by {_signal_name(body.signal)}" if body.signal else ""
    parts = (body.stopped.replace("_", " "), body.reason, body.message, killed)
    return ": ".join(part for part in parts if part) or None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
