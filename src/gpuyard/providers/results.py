"""What agents have said of attempts: the answers to `get_job_status`."""

import signal
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from gpuyard.domain import wire
from gpuyard.domain.jobconfig import JobResult, JobStatus

_OVER = frozenset({JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED})


@dataclass(frozen=True, slots=True)
class Known:
    """An attempt: its node, the GPUs it was given, the latest word of it."""

    node_id: str
    result: JobResult
    gpu_uuids: tuple[str, ...] = ()

    @property
    def over(self) -> bool:
        """True once the attempt has ended: nothing said later changes it."""
        return self.result.status in _OVER


class Results:
    """Every live attempt, and the `kept` that ended last."""

    def __init__(self, kept: int = 1_000) -> None:
        self._kept = kept
        self._live: dict[str, Known] = {}
        self._over: OrderedDict[str, Known] = OrderedDict()

    def find(self, attempt_id: str) -> Known | None:
        """What is known of an attempt; None when nothing is, or no more."""
        return self._live.get(attempt_id) or self._over.get(attempt_id)

    def gpus_held(self) -> set[str]:
        """The UUIDs given to live attempts."""
        return {uuid for known in self._live.values() for uuid in known.gpu_uuids}

    def submitted(self, attempt_id: str, node_id: str, gpu_uuids: Iterable[str]) -> None:
        """The attempt was sent to a node."""
        if self.find(attempt_id) is None:
            result = JobResult(attempt_id, JobStatus.PENDING, created_at=time.time())
            self._live[attempt_id] = Known(node_id, result, tuple(gpu_uuids))

    def listed(self, node_id: str, attempt_id: str, state: str) -> None:
        """A node's agent says that it holds the attempt: `running`, or `ended` with its end reported separately."""
        if state == "running":
            self._update(attempt_id, node_id, status=JobStatus.RUNNING)
        elif self.find(attempt_id) is None:
            self._update(attempt_id, node_id, status=JobStatus.UNKNOWN)

    def learn(self, node_id: str, body: Any) -> None:
        """Take in the body of a report."""
        if isinstance(body, wire.Started):
            self._update(body.attempt_id, node_id, status=JobStatus.RUNNING, started_at=body.at)
        elif isinstance(body, wire.Ended):
            self._update(body.attempt_id, node_id, status=_outcome(body), started_at=body.started_at,
                         completed_at=body.at, exit_code=body.exit_code, error_message=_explain(body))  # fmt: skip

    def _update(self, attempt_id: str, node_id: str, **values: Any) -> None:
        old = self.find(attempt_id)
        if old and old.over:
            return
        result = old.result if old else JobResult(attempt_id, JobStatus.UNKNOWN, created_at=time.time())
        known = Known(node_id, replace(result, **values), old.gpu_uuids if old else ())
        if not known.over:
            self._live[attempt_id] = known
            return
        self._live.pop(attempt_id, None)
        self._over[attempt_id] = known
        while len(self._over) > self._kept:
            self._over.popitem(last=False)


def _outcome(body: wire.Ended) -> JobStatus:
    if body.stopped:
        return JobStatus.CANCELLED if body.stopped == "cancelled" else JobStatus.FAILED
    return JobStatus.COMPLETED if body.exit_code == 0 and not body.reason else JobStatus.FAILED


def _explain(body: wire.Ended) -> str | None:
    """Why it did not end well by itself, for people; None when it did, or when its exit code says it all."""
    killed = f"killed by {_signal_name(body.signal)}" if body.signal else ""
    parts = (body.stopped.replace("_", " "), body.reason, body.message, killed)
    return ": ".join(part for part in parts if part) or None


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"
