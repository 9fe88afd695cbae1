"""What the cloud and the agent say of a rented machine, as the state of its attempt:
pure functions.
"""

from dataclasses import dataclass, replace

from gpuyard.domain import wire
from gpuyard.domain.jobconfig import JobResult, JobStatus
from gpuyard.domain.reasons import Reason
from gpuyard.providers.instances.api import Instance, InstanceState
from gpuyard.providers.instances.settings import InstanceSettings
from gpuyard.providers.results import explanation, outcome_of

STARTS = "the machine starts"
BOOTS = "the machine boots, and has not joined yet"
ABOUT_TO_START = "the machine has joined, and the job is about to start"


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """What is known of the machine of one attempt.

    `instance`: what the cloud says, None if it does not know it. `known_s`: for how
    many seconds this server has known of it, `away_s`: for how long its agent has not
    been connected; 0 while it is. `joined`: its agent has been connected. `fault`: why
    it cannot run the attempt. `started_at`: when the attempt started (UTC seconds).
    `end`: what the agent said of its end. `stopped`: its end was asked for.
    """

    provider: str
    instance: Instance | None
    known_s: float
    away_s: float = 0.0
    joined: bool = False
    fault: str = ""
    started_at: float | None = None
    end: wire.Ended | None = None
    stopped: bool = False
    node_id: str = ""
    gpu_uuids: tuple[str, ...] = ()


def result_of(
    reference: str, facts: MachineFacts, settings: InstanceSettings, now: float
) -> JobResult:
    """The state of the attempt, at `now` (UTC seconds)."""
    paid_s = _paid_s(facts.instance, now)
    if facts.end is not None:
        return replace(_ended(reference, facts, facts.end), paid_s=paid_s)
    lost = _why_lost(facts, settings)
    if lost is not None:
        reason, why = lost
        is_cancelled = facts.stopped and reason != Reason.PREEMPTED
        return JobResult(
            reference,
            JobStatus.CANCELLED if is_cancelled else JobStatus.FAILED,
            started_at=facts.started_at,
            completed_at=now,
            error_message=why,
            reason=Reason.CANCELLED if is_cancelled else reason,
            paid_s=paid_s,
        )
    if facts.instance is None:
        return JobResult(reference, JobStatus.UNKNOWN, started_at=facts.started_at)
    is_running = facts.started_at is not None
    return JobResult(
        reference,
        JobStatus.RUNNING if is_running else JobStatus.PENDING,
        created_at=facts.instance.launched_at,
        started_at=facts.started_at,
        error_message=None if is_running else _why_waiting(facts, facts.instance),
        node=facts.node_id,
        gpus=facts.gpu_uuids,
    )


def _paid_s(instance: Instance | None, now: float) -> float | None:
    """For how many seconds the machine is paid for if it ends now: the cloud bills its
    boot, too. None if that is not known.
    """
    if instance is None or instance.launched_at is None:
        return None
    return max(now - instance.launched_at, 0.0)


def _ended(reference: str, facts: MachineFacts, end: wire.Ended) -> JobResult:
    exit_code = end.exit_code
    if exit_code is None and end.signal:
        exit_code = -end.signal
    return JobResult(
        reference,
        outcome_of(end),
        started_at=end.started_at,
        completed_at=end.at,
        exit_code=exit_code,
        error_message=explanation(end),
        reason=end.stopped or end.reason,
        node=facts.node_id,
        gpus=facts.gpu_uuids,
        usage=end.usage,
        ran_s=end.ran_s,
    )


def _why_lost(
    facts: MachineFacts, settings: InstanceSettings
) -> tuple[Reason, str] | None:
    """Why the machine will not run the attempt to its end; None if it may."""
    instance = facts.instance
    if instance is None:
        return None
    name = f"{facts.provider}'s machine {instance.id}"
    said = f" ({instance.why})" if instance.why else ""
    if not instance.state.is_live:
        if instance.interrupted:
            return Reason.PREEMPTED, f"{facts.provider} took {instance.id} back{said}"
        return Reason.NODE_LOST, f"{name} has ended{said}"
    if facts.fault:
        return Reason.NODE_LOST, f"{name} cannot run it: {facts.fault}"
    if not facts.joined and facts.known_s > settings.boot_timeout_s:
        waited = f"within {settings.boot_timeout_s:.0f} s"
        return Reason.NODE_LOST, f"{name} has not joined {waited}{said}"
    if facts.away_s > settings.silence_s:
        return Reason.NODE_SILENT, f"{name} said nothing for {facts.away_s:.0f} s"
    return None


def _why_waiting(facts: MachineFacts, instance: Instance) -> str:
    if facts.joined:
        return ABOUT_TO_START
    place = f"{instance.type} in {instance.zone}"
    what = STARTS if instance.state is InstanceState.PENDING else BOOTS
    return f"{what} ({place})"
