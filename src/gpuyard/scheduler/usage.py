"""Usage: what each user and project has used, for fair shares and quotas.

Usage is counted in GPU seconds, and halves every half-life. A job is charged by its
dominant resource: the largest of its parts of the GPUs, cores and memory of the
instance, as a number of GPUs. So a job with one of 8 GPUs and half of the cores counts
as 4 GPUs. A GPU weighs by its memory; the mean one weighs 1.

All usage decays at one rate. So it is not decayed: newer usage is inflated instead, and
nothing changes while time passes but the part of what runs. With `rate` r and an
inflation g(t), running jobs add r (G(now) - G(start)), where G is the integral of g; so
a sum over any number of running jobs is two numbers.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from gpuyard.domain.jobspec import JobKind
from gpuyard.domain.shape import Placement, Shape
from gpuyard.domain.states import JobState
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.month import (
    MonthlyLimit,
    MonthlyUse,
    MonthOf,
    Whose,
    limit_in_the_way,
)
from gpuyard.scheduler.nodes import Device, Node
from gpuyard.scheduler.parties import (
    EVERYBODY,
    NO_SHARES,
    Group,
    Party,
    Quotas,
    ShareKey,
    ShareRules,
)

Name = TypeVar("Name", str, ShareKey)
_REBASED_AT = 64.0
"""After so many half-lives, the inflation begins anew, so that no number overflows."""
_CPUS_PER_GPU = 16.0
_MEMORY_GB_PER_GPU = 128.0
OWN_KINDS = (JobKind.MODEL, JobKind.WORKER)
"""The jobs that gpuyard itself adds; no quota limits them."""


class Scales(NamedTuple):
    """What the inflation has summed up to, and what a GPU that has just started counts,
    inflated.
    """

    summed: float
    ahead: float


@dataclass(slots=True)
class Meter:
    """The usage of one user, project or line, inflated.

    `settled` is that of what has ended. `rate` and `offset` are the sums of the rates
    of what runs, and of these times what the inflation summed up to at each start.
    `held` is the rate of all that runs or is about to, `gpus` its GPUs without those of
    model servers, and `holders` its number. `shares` are those by which it is divided.
    """

    settled: float = 0.0
    rate: float = 0.0
    offset: float = 0.0
    held: float = 0.0
    gpus: int = 0
    holders: int = 0
    shares: float = 1.0

    def value(self, scales: Scales) -> float:
        """The usage for each share, inflated."""
        used = self.settled + self.rate * scales.summed - self.offset
        return (max(0.0, used) + self.held * scales.ahead) / self.shares

    def used(self, summed: float) -> float:
        """The inflated usage when the inflation has summed up to this."""
        return max(0.0, self.settled + self.rate * summed - self.offset)


@dataclass(slots=True)
class _Hold:
    """What an attempt, or a job with a tentative start, holds. `limited`: whose month
    it counts to. `started_at` (UTC seconds) is None until it runs.
    """

    project: str
    meters: tuple[Meter, ...]
    rate: float
    gpus: int
    limited: tuple[Whose, ...] = ()
    started_at: float | None = None


@dataclass(frozen=True, slots=True)
class Capacity:
    """All that the instance has, and the mean memory of its GPUs. An instance that has
    no GPUs or no cores is taken to have 16 cores and 128 GB for each GPU.
    """

    cpus_per_gpu: float = _CPUS_PER_GPU
    memory_gb_per_gpu: float = _MEMORY_GB_PER_GPU
    gpu_memory_gb: float = 0.0

    @classmethod
    def of(cls, nodes: Iterable[Node]) -> "Capacity":
        """The capacity of these nodes, whether they are online or not."""
        known = list(nodes)
        memories = [
            device.memory_gb for node in known for device in node.devices.values()
        ]
        gpus = len(memories)
        cpus = math.fsum(node.cpus for node in known)
        memory_gb = math.fsum(node.memory_gb for node in known)
        return cls(
            cpus / gpus if gpus and cpus else _CPUS_PER_GPU,
            memory_gb / gpus if gpus and memory_gb else _MEMORY_GB_PER_GPU,
            math.fsum(memories) / gpus if gpus else 0.0,
        )

    def weight(self, device: Device | None) -> float:
        """The weight of a GPU; one that is not known weighs 1."""
        if device is None or not device.memory_gb or not self.gpu_memory_gb:
            return 1.0
        return device.memory_gb / self.gpu_memory_gb

    def rate(self, gpus: float, cpus: float, memory_gb: float) -> float:
        """How many GPUs these amounts count as: `gpus` is the sum of weights."""
        return max(gpus, cpus / self.cpus_per_gpu, memory_gb / self.memory_gb_per_gpu)

    def rate_of_shape(self, shape: Shape) -> float:
        """How many GPUs a job counts as that gets GPUs of the mean weight."""
        return shape.nodes * self.rate(shape.gpus, shape.cpus, shape.memory_gb)


class Usage:
    """The usage of all users and projects.

    `by_share`: jobs wait in lines by party. `active`: that, or quotas are set; else
    nothing is counted. `queued_by_user` and `queued_by_project` count queued jobs.

    `month` is used if quotas limit months; `now` (UTC seconds) is the time of the last
    `look_at_month`.
    """

    def __init__(
        self,
        rules: ShareRules | None = None,
        quotas: Quotas | None = None,
        *,
        by_share: bool = False,
        month_of: MonthOf = lambda _: (-math.inf, math.inf),
    ) -> None:
        self.rules = rules or ShareRules()
        self.quotas = quotas or Quotas()
        self.by_share = by_share
        self.limits_running = self.quotas.limit_running
        self.limits_queued = self.quotas.limit_queued
        self.limits_months = self.quotas.limit_months
        self.active = (
            by_share or self.limits_running or self.limits_queued or self.limits_months
        )
        self.month = MonthlyUse(month_of)
        self.now = -math.inf
        self.queued_by_user = Counter[str]()
        self.queued_by_project = Counter[str]()
        self._users: dict[str, Meter] = {}
        self._organisations: dict[str, Meter] = {}
        self._projects: dict[str, Meter] = {}
        self._lines: dict[ShareKey, Meter] = {}
        self._holds: dict[str, _Hold] = {}
        self._parties: dict[ShareKey, Party] = {}
        self._capacity: Capacity | None = None
        self._origin: float | None = None

    # --- whose a job is ---

    def party(self, project: str | None, owner: str | None) -> Party:
        """The party of a job of this project and owner."""
        if not self.active:
            return EVERYBODY
        key = project or "", owner or ""
        known = self._parties.get(key)
        if known is None:
            line = self.line(*key) if self.by_share else NO_SHARES
            is_limited = self.limits_running or self.limits_months
            limits = key if is_limited else NO_SHARES
            known = self._parties[key] = Party(line, limits)
        return known

    def line(self, project: str, user: str) -> ShareKey:
        """The line of this user's jobs in this project."""
        return (project if project in self.rules.projects else "", user)

    # --- what is queued ---

    def note_state(self, job: LiveJob, before: JobState | None, now: JobState) -> None:
        """The job has gone from one state to another; None for a job that was not
        known.
        """
        if not self.limits_queued or job.kind in OWN_KINDS:
            return
        change = (now is JobState.QUEUED) - (before is JobState.QUEUED)
        if change:
            self.queued_by_user[job.owner or ""] += change
            self.queued_by_project[job.project or ""] += change

    # --- what is held ---

    def hold(
        self,
        holder: str,
        job: LiveJob,
        placements: Iterable[Placement],
        nodes: Mapping[str, Node],
    ) -> None:
        """An attempt, or a job with a tentative start, holds `placements` from now on;
        idempotent.
        """
        if not self.active or holder in self._holds:
            return
        capacity = self.capacity(nodes)
        rate = rate_of(capacity, job.shape, placements, nodes)
        self._hold(holder, job, rate)

    def _hold(self, holder: str, job: LiveJob, rate: float) -> None:
        project = job.project or ""
        user = job.owner or ""
        # The owner of the instance has no fewer because everybody asks a model.
        is_model = job.kind == JobKind.MODEL
        gpus = 0 if is_model else job.shape.gpus * job.shape.nodes
        meters = self._meters(project, user)
        for meter in meters:
            meter.held += rate
            meter.gpus += gpus
            meter.holders += 1
        limited: tuple[Whose, ...] = ()
        if self.limits_months and gpus and job.kind not in OWN_KINDS:
            limited = ("user", user), ("project", project)
        self._holds[holder] = _Hold(project, meters, rate, gpus, limited)

    def _meters(self, project: str, user: str) -> tuple[Meter, ...]:
        """The meters that count work of this user in this project."""
        rules = self.rules
        outside = Meter(shares=rules.of_group(("", user)))
        meters = [self._users.setdefault(user, outside)]
        line = project, user
        if project in rules.projects:
            of_project = Meter(shares=rules.of_group(line))
            own = Meter(shares=rules.within_group(line))
            meters.append(self._projects.setdefault(project, of_project))
            meters.append(self._lines.setdefault(line, own))
            if organisation := rules.organisation_of(project):
                whole = Meter(shares=rules.of_organisation(organisation))
                meters.append(self._organisations.setdefault(organisation, whole))
        elif project and self.limits_running:
            meters.append(self._projects.setdefault(project, Meter()))
        return tuple(meters)

    def begin(self, holder: str, started_at: float) -> None:
        """The attempt runs since then (UTC seconds); idempotent."""
        hold = self._holds.get(holder)
        if hold is None or hold.started_at is not None:
            return
        hold.started_at = started_at
        if hold.limited:
            self.month.begin(holder, hold.limited, hold.gpus, started_at)
        offset = hold.rate * self._summed(started_at)
        for meter in hold.meters:
            meter.rate += hold.rate
            meter.offset += offset

    def end(self, holder: str, ran_s: float = 0.0) -> None:
        """What was held is free, after it ran for so many seconds; idempotent."""
        hold = self._holds.pop(holder, None)
        if hold is None:
            return
        self.month.end(holder, ran_s)
        used = offset = rate = 0.0
        if hold.started_at is not None:
            # The later time first: it may begin the inflation anew.
            at_end = self._summed(hold.started_at + ran_s)
            at_start = self._summed(hold.started_at)
            rate = hold.rate
            offset = rate * at_start
            used = rate * (at_end - at_start)
        for meter in hold.meters:
            meter.settled += used
            meter.held -= hold.rate
            meter.rate -= rate
            meter.offset -= offset
            meter.gpus -= hold.gpus
            meter.holders -= 1
            if not meter.holders:
                # What rounding has left.
                meter.held = meter.rate = meter.offset = 0.0
        self._forget(hold.project)

    def _forget(self, project: str) -> None:
        """Forget a project that has no shares and holds nothing: people may invent any
        number of them.
        """
        has_shares = project in self.rules.projects
        meter = None if has_shares else self._projects.get(project)
        if meter is not None and not meter.holders:
            del self._projects[project]

    def add_past(self, project: str, user: str, gpu_seconds: float, now: float) -> None:
        """Count what was used before the view was made, decayed until `now`."""
        inflated = gpu_seconds * self._inflation(now)
        for meter in self._meters(project, user):
            meter.settled += inflated
        self._forget(project)

    def take_past(self, before: "Usage") -> None:
        """Count what has ended by `before`, which the view had that this one
        replaces.
        """
        self._origin = before._origin
        self.month.take(before.month)
        self._users = _settled(before._users)
        self._organisations = _settled(before._organisations)
        self._projects = _settled(before._projects)
        self._lines = _settled(before._lines)

    def capacity_changed(self) -> None:
        """Nodes have come, gone or changed."""
        self._capacity = None

    def capacity(self, nodes: Mapping[str, Node]) -> Capacity:
        """The capacity by which usage is counted now."""
        if self._capacity is None:
            self._capacity = Capacity.of(nodes.values())
        return self._capacity

    # --- questions ---

    def allows(self, job: LiveJob) -> bool:
        """True if no quota keeps the job from starting now."""
        if self.limits_running and self.quota_in_the_way(job) is not None:
            return False
        return not self.limits_months or self.month_in_the_way(job) is None

    def look_at_month(self, now: float) -> bool:
        """It is `now`; returns whether a new month has begun."""
        if not self.limits_months:
            return False
        self.now = now
        return self.month.turn(now)

    def month_in_the_way(self, job: LiveJob) -> MonthlyLimit | None:
        """The quota of the month that keeps the job from starting now; None if none
        does.
        """
        if not self.limits_months or not job.shape.gpus or job.kind in OWN_KINDS:
            return None
        project = job.project or ""
        user = job.owner or ""
        hours = {
            ("user", user): self.quotas.of_user(user).gpu_hours_per_month,
            ("project", project): self.quotas.of_project(project).gpu_hours_per_month,
        }
        return limit_in_the_way(self.month, hours, self.now)

    def quota_in_the_way(self, job: LiveJob) -> tuple[str, int, int] | None:
        """The quota of running GPUs that keeps the job from starting now: whose it is
        (`user` or `project`), its limit, and how many run; None if none does.
        """
        wanted = job.shape.gpus * job.shape.nodes
        if not wanted or job.kind in OWN_KINDS:
            return None
        project = job.project or ""
        user = job.owner or ""
        for whose, limit, meter in (
            ("user", self.quotas.of_user(user), self._users.get(user)),
            ("project", self.quotas.of_project(project), self._projects.get(project)),
        ):
            running = meter.gpus if meter else 0
            if limit.running_gpus is not None and running + wanted > limit.running_gpus:
                return whose, limit.running_gpus, running
        return None

    def gpus_of_user(self, user: str) -> int:
        """How many GPUs the user holds, or is about to."""
        meter = self._users.get(user)
        return meter.gpus if meter else 0

    def gpu_seconds(self, line: ShareKey, now: float) -> tuple[float, float]:
        """What the group of the line (see `ShareRules.of_group`) and the line itself
        have used, decayed until `now` (UTC seconds), in GPU seconds.
        """
        project, user = line
        group = self._projects.get(project) if project else self._users.get(user)
        own = self._lines.get(line) if project else group
        inflation = self._inflation(now)
        summed = self._summed(now)
        of_group = group.used(summed) / inflation if group else 0.0
        return of_group, own.used(summed) / inflation if own else 0.0

    def of_organisation(self, name: str, now: float) -> float:
        """What the organisation has used, decayed until `now` (UTC seconds), in GPU
        seconds.
        """
        meter = self._organisations.get(name)
        return meter.used(self._summed(now)) / self._inflation(now) if meter else 0.0

    def scales(self, now: float) -> Scales:
        """By what usage is compared at this time (UTC seconds)."""
        ahead = self.rules.ahead_s * self._inflation(now)
        return Scales(self._summed(now), ahead)

    def value_of_organisation(self, name: str, scales: Scales) -> float:
        """What the organisation has used for each of its shares: the least comes
        first.
        """
        meter = self._organisations.get(name)
        return meter.value(scales) if meter else 0.0

    def value_of_group(self, group: Group, scales: Scales) -> float:
        """What the group has used for each of its shares: the least comes first."""
        if len(group) == 1:
            meter = self._projects.get(group[0])
        else:
            meter = self._users.get(group[1])
        return meter.value(scales) if meter else 0.0

    def value_in_group(self, line: ShareKey, scales: Scales) -> float:
        """What the line has used for each of its shares within its group."""
        meter = self._lines.get(line)
        return meter.value(scales) if meter else 0.0

    def known_lines(self) -> set[ShareKey]:
        """The lines in projects, and one for each user, of all who have used any."""
        return {*self._lines, *(("", user) for user in self._users)}

    # --- inflation ---

    def _inflation(self, at: float) -> float:
        """The inflation at this time (UTC seconds)."""
        if self._origin is None:
            self._origin = at
        half_lives = (at - self._origin) / self.rules.half_life_s
        if half_lives > _REBASED_AT:
            self._rebase(math.floor(half_lives))
            half_lives -= math.floor(half_lives)
        return 2.0 ** max(-_REBASED_AT, half_lives)

    def _summed(self, at: float) -> float:
        """The integral of the inflation until this time."""
        return self.rules.half_life_s / math.log(2) * self._inflation(at)

    def _rebase(self, half_lives: int) -> None:
        """Begin the inflation anew, so many half-lives later."""
        assert self._origin is not None
        self._origin += half_lives * self.rules.half_life_s
        factor = 2.0**-half_lives
        every = (
            *self._users.values(),
            *self._organisations.values(),
            *self._projects.values(),
            *self._lines.values(),
        )
        for meter in every:
            meter.settled *= factor
            meter.offset *= factor


def _settled(meters: Mapping[Name, Meter]) -> dict[Name, Meter]:
    """Copies of the meters, without what runs."""
    return {
        name: Meter(meter.settled, shares=meter.shares)
        for name, meter in meters.items()
    }


def rate_of(
    capacity: Capacity,
    shape: Shape,
    placements: Iterable[Placement],
    nodes: Mapping[str, Node],
) -> float:
    """How many GPUs a job counts as."""
    gpus = cpus = memory_gb = 0.0
    for share in placements:
        cpus += share.cpus
        memory_gb += share.memory_gb
        node = nodes.get(share.node_id)
        if node is None or not share.gpu_uuids:
            gpus += shape.gpus * (shape.nodes if share.offer else 1)
            continue
        gpus += sum(capacity.weight(node.devices.get(uuid)) for uuid in share.gpu_uuids)
    return capacity.rate(gpus, cpus, memory_gb)
