"""Why the job of a solver has not begun, as far as the instance can tell.

The instance keeps its own queue, so what it says of a job that is still there is
evidence that no executor has a part in.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from gpuyard.client import calls
from gpuyard.domain.errors import GpuyardError, UnreachableError
from gpuyard.domain.jobs import Job
from gpuyard.verification.executors import Executor

if TYPE_CHECKING:
    from gpuyard.client.aio import AsyncClient

SOLVER_LABEL = "verification"
"""The label that the jobs of solvers have; its value is the check."""
# What `why` calls it when a rule of ours keeps a job back, whoever has the place.
_RULES = frozenset({"quota", "budget", "held", "reserved"})
# What it says when others get the place first.
_TURNS = frozenset({"share", "preempting"})
# What it says of external queues; the rest is about nodes with agents of ours.
_EXTERNAL = "engine"


class Obstacle(StrEnum):
    """What keeps a job from beginning.

    `other_jobs`: other jobs of ours have its place, or come first. `own_rule`: a quota,
    a budget, a reservation for others, or a person who holds it. `unknown`: none of
    these, as far as we can tell.
    """

    OTHER_JOBS = "other_jobs"
    OWN_RULE = "own_rule"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a job waits. `behind`: the jobs of ours that have what it needs, by id."""

    obstacle: Obstacle = Obstacle.UNKNOWN
    behind: tuple[str, ...] = ()


async def wait_of(client: "AsyncClient", executor: Executor, job: Job) -> Wait:
    """Why the job of a solver is still in our queue; UnreachableError.

    What a job waits for once it was handed over is in the hands of the place.
    """
    if job.attempts:
        return Wait()
    try:
        answer = await client.call(calls.why(job.id))
        return await _read(client, executor, answer)
    except UnreachableError:
        raise
    except GpuyardError:
        return Wait()


async def _read(
    client: "AsyncClient", executor: Executor, answer: dict[str, Any]
) -> Wait:
    constraint = answer.get("constraint")
    behind = tuple(map(str, answer.get("behind", ())))
    if constraint in _RULES:
        return Wait(Obstacle.OWN_RULE)
    if constraint in _TURNS or await _is_behind(client, executor, answer):
        return Wait(Obstacle.OTHER_JOBS, behind)
    return Wait()


async def _is_behind(
    client: "AsyncClient", executor: Executor, answer: dict[str, Any]
) -> bool:
    """Whether other jobs of ours have what it needs.

    On nodes of ours, solvers do not count unless the executor has a GPU by name: those
    of a batch would explain each other. In an external queue they do: it takes so many
    jobs of ours at once, and a check may stand behind those of other places.
    """
    named: list[str] = answer.get("behind", [])
    total: int = answer.get("behind_total", 0)
    all_count = executor.settings.gpu or answer.get("constraint") == _EXTERNAL
    if all_count or total > len(named):  # those that we may not see are no solvers
        return total > 0
    for job_id in named:
        other = await client.job(job_id)
        if SOLVER_LABEL not in other.info.labels:
            return True
    return False
