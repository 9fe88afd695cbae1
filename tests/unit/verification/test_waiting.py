"""Why the job of a solver has not begun or has ended, by what the instance says."""

from pathlib import Path
from typing import Any, cast

import pytest

from gpuyard.client.aio import AsyncClient
from gpuyard.client.aio_job import AsyncJobHandle
from gpuyard.client.calls import Call
from gpuyard.config.verification import ExecutorSettings
from gpuyard.domain.errors import GpuyardError, UnreachableError
from gpuyard.domain.gpus import GPUClass
from gpuyard.domain.jobs import Job
from gpuyard.verification.executors import Executor
from gpuyard.verification.solver_jobs import NotStartedError, SolverJobs
from gpuyard.verification.waiting import Obstacle, wait_of

pytestmark = pytest.mark.anyio
HERE: dict[str, object] = {}
NAMED: dict[str, object] = {"gpu": "GPU-7"}
SLURM: dict[str, object] = {"provider": "slurm"}
HANDED_OVER = {
    "id": "attempt_1",
    "number": 1,
    "state": "pending",
    "token": 1,
    "provider": "slurm",
    "created_at": 0.0,
}
STARTED = {**HANDED_OVER, "state": "running", "started_at": 1.0}
Body = dict[str, Any]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def job_of(state: str = "queued", **fields: object) -> Job:
    """A job of the instance."""
    known = {"id": "job_1", "name": "check", "kind": "command", "priority": 3}
    return Job.model_validate({**known, "state": state, "created_at": 0.0, **fields})


def executor_of(**settings: object) -> Executor:
    found = ExecutorSettings.model_validate({"class": "t4", **settings})
    return Executor("rented", GPUClass.T4, found)


class Handle:
    """A job that is in these states, one after the other; the last one stays."""

    def __init__(self, *states: Job) -> None:
        self.states = list(states)
        self.info = states[0]
        self.id = "job_1"

    async def refresh(self) -> Job:
        self.info = self.states[0]
        if len(self.states) > 1:
            self.states.pop(0)
        return self.info


class Instance:
    """A client of an instance that answers with the first of these, then the next; the
    last one stays. The jobs `solvers` are those of checks.
    """

    def __init__(self, *answers: Body | list[Body] | Exception) -> None:
        self.answers = list(answers)
        self.solvers = ("job_7",)

    async def call(self, asked: Call[Any]) -> Body | list[Body]:
        answer = self.answers[0]
        if len(self.answers) > 1:
            self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def job(self, job_id: str) -> Handle:
        labels = {"verification": "chk_2"} if job_id in self.solvers else {}
        return Handle(job_of("running", labels=labels))


def waits_for(constraint: str, *behind: str, hidden: int = 0) -> Body:
    """What `why` answers."""
    total = len(behind) + hidden
    return {
        "pending": True,
        "constraint": constraint,
        "behind": behind,
        "behind_total": total,
    }


def client_of(instance: Instance) -> AsyncClient:
    return cast(AsyncClient, instance)


@pytest.mark.parametrize(
    ("settings", "answer", "obstacle"),
    [
        (HERE, waits_for("capacity", "job_2"), Obstacle.OTHER_JOBS),
        (HERE, waits_for("gpu_class", "job_7", "job_2"), Obstacle.OTHER_JOBS),
        (HERE, waits_for("share"), Obstacle.OTHER_JOBS),
        # Jobs of a project that we may not see are no solvers of ours.
        (HERE, waits_for("capacity", hidden=1), Obstacle.OTHER_JOBS),
        # The solvers of a batch would explain each other.
        (HERE, waits_for("capacity", "job_7"), Obstacle.UNKNOWN),
        (NAMED, waits_for("pinned", "job_7"), Obstacle.OTHER_JOBS),
        # Whose node or GPU is away, whatever runs elsewhere.
        (HERE, waits_for("offline"), Obstacle.UNKNOWN),
        (NAMED, waits_for("pinned"), Obstacle.UNKNOWN),
        ({"provider": "docker"}, waits_for("capacity", "job_2"), Obstacle.OTHER_JOBS),
        # An external queue takes so many jobs of ours at once, and answers or not.
        (SLURM, waits_for("engine", "job_7"), Obstacle.OTHER_JOBS),
        (SLURM, waits_for("engine"), Obstacle.UNKNOWN),
        (SLURM, waits_for("quota"), Obstacle.OWN_RULE),
        (SLURM, waits_for("budget"), Obstacle.OWN_RULE),
        (SLURM, waits_for("held"), Obstacle.OWN_RULE),
        # What is kept for others has no job on it that could be ended.
        (HERE, waits_for("reserved"), Obstacle.OWN_RULE),
        (SLURM, {"pending": False, "summary": "it runs"}, Obstacle.UNKNOWN),
        (SLURM, GpuyardError("500"), Obstacle.UNKNOWN),
    ],
)
async def test_only_what_the_instance_says_of_its_own_queue_explains_a_wait(
    settings: dict[str, object], answer: Body | Exception, obstacle: Obstacle
) -> None:
    client = client_of(Instance(answer))
    wait = await wait_of(client, executor_of(**settings), job_of())
    assert wait.obstacle is obstacle


async def test_who_has_got_a_job_explains_by_itself_why_it_does_not_begin() -> None:
    client = client_of(Instance(waits_for("capacity", "job_2")))
    job = job_of(attempts=[HANDED_OVER])
    assert (await wait_of(client, executor_of(), job)).obstacle is Obstacle.UNKNOWN


async def test_an_instance_that_is_away_explains_no_wait() -> None:
    client = client_of(Instance(UnreachableError("No server answers.")))
    with pytest.raises(UnreachableError):
        await wait_of(client, executor_of(), job_of())


async def obstacle_after(tmp_path: Path, instance: Instance, *states: Job) -> Obstacle:
    """What a job that is in these states has waited for when its time is over."""
    jobs = SolverJobs(client_of(instance), tmp_path)
    handle = cast(AsyncJobHandle, Handle(*states))
    with pytest.raises(NotStartedError) as found:
        await jobs.wait_until_started(executor_of(**SLURM), handle, 0.01)
    return found.value.obstacle


async def test_who_gets_a_job_late_is_not_blamed_for_the_time_before(
    tmp_path: Path,
) -> None:
    full = waits_for("engine", "job_2")
    waiting = job_of()
    handed_over = job_of(attempts=[HANDED_OVER])
    late = await obstacle_after(tmp_path, Instance(full), waiting, waiting, handed_over)
    assert late is Obstacle.OTHER_JOBS
    early = await obstacle_after(tmp_path, Instance(full), handed_over)
    assert early is Obstacle.UNKNOWN, "it had the time that it was given"
    gone = waits_for("offline")
    left = await obstacle_after(tmp_path, Instance(full, gone), waiting)
    assert left is Obstacle.UNKNOWN, "what it waits for at last counts"


async def test_a_job_that_begins_is_not_asked_why_it_waits(tmp_path: Path) -> None:
    jobs = SolverJobs(client_of(Instance(AssertionError("asked"))), tmp_path)
    handle = cast(AsyncJobHandle, Handle(job_of(attempts=[STARTED])))
    assert await jobs.wait_until_started(executor_of(), handle, 60.0) is handle.info


def event(kind: str, **data: object) -> Body:
    """An event of the journal, as the API has it."""
    return {"seq": 1, "at": 0.0, "kind": kind, "job_id": "job_1", "data": data}


@pytest.mark.parametrize(
    ("job", "events", "ours"),
    [
        (job_of("cancelled", attempts=[STARTED]), ["job.cancel_requested"], True),
        (job_of("running", attempts=[STARTED]), ["job.cancel_requested"], True),
        (job_of("cancelled"), [], True),
        # Its agent, or another queue, says so.
        (job_of("cancelled", attempts=[STARTED]), ["job.cancelled"], False),
        (job_of("failed", attempts=[STARTED]), [], False),
    ],
)
async def test_only_who_asked_the_instance_has_ended_a_job(
    tmp_path: Path, job: Job, events: list[str], ours: bool
) -> None:
    instance = Instance([event(kind, reason="cancelled") for kind in events])
    jobs = SolverJobs(client_of(instance), tmp_path)
    assert await jobs.is_ended_by_us(cast(AsyncJobHandle, Handle(job))) is ours


@pytest.mark.parametrize(
    ("reason", "ours"), [("budget", True), ("timed_out", False), ("preempted", False)]
)
async def test_a_budget_ends_a_job_and_its_time_limit_does_not_excuse_it(
    tmp_path: Path, reason: str, ours: bool
) -> None:
    instance = Instance([event("attempt.ending", reason=reason)])
    jobs = SolverJobs(client_of(instance), tmp_path)
    handle = cast(AsyncJobHandle, Handle(job_of("running", attempts=[STARTED])))
    assert await jobs.is_ended_by_us(handle) is ours
