"""Pools: which nodes to ask a provider for, and which to end. A pure function of a
pool's limits, its nodes and the work that waits for them.

A node is asked for when work would wait longer than a node takes to come. It is ended
when it has had nothing to do for `idle_s` and no node was asked for meanwhile: so no
node comes, goes and comes again within that time. A sick node is drained at once, and
another one is asked for as soon as `most` allows it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gpuyard.domain.units import format_duration
from gpuyard.scheduler.nodes import Node

AGAIN_S = 15.0
LONGEST_AGAIN_S = 600.0
"""After a node could not be had: the pause before the next one is asked for. It doubles
with each failure in a row, up to the longest.
"""


class PoolStage(StrEnum):
    """Where a node of a pool is in its life. In the ledger, so a name is never
    changed.
    """

    ASKED = "asked"
    """Its row is committed; whether the provider knows of it is not sure."""
    BOOTING = "booting"
    """The provider starts it, or will."""
    JOINED = "joined"
    """It has joined the instance and runs jobs."""
    DRAINING = "draining"
    """It gets no new jobs, and ends with those that it has."""
    ENDING = "ending"
    """The provider is asked to end it, until it says that it is gone."""
    GONE = "gone"

    @property
    def comes(self) -> bool:
        """Whether it is on its way to its first job."""
        return self in (PoolStage.ASKED, PoolStage.BOOTING)


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Between `least` and `most` nodes; one that is idle for `idle_s` is too many. A
    new node runs its first job after `boot_s`.
    """

    least: int
    most: int
    idle_s: float
    boot_s: float


@dataclass(frozen=True, slots=True)
class PoolNode:
    """A node of a pool that is not gone. Times are UTC seconds.

    `idle_since`: since when nothing runs on it, None while something does or it has not
    joined. `sick` says for people why it must be replaced; empty if it need not be.
    `lost` says the same of one on which nothing runs any more.
    """

    id: str
    stage: PoolStage
    asked_at: float
    idle_since: float | None = None
    sick: str = ""
    lost: str = ""

    @property
    def may_leave(self) -> bool:
        """Whether it runs jobs, or is on its way to them."""
        return self.stage.comes or self.stage is PoolStage.JOINED

    @property
    def counts(self) -> bool:
        """Whether it is one of those that the pool needs."""
        return self.may_leave and not (self.sick or self.lost)


@dataclass(frozen=True, slots=True)
class WaitingWork:
    """`jobs` equal jobs for which no node has room, each on `nodes` nodes. A node of
    the pool has room for `per_node` of their shares at once.

    Each runs for about `run_s`. `wait_s`: without a new node, the last of them would
    start in so many seconds; None if that is not known.
    """

    jobs: int
    per_node: int
    nodes: int
    run_s: float
    wait_s: float | None


@dataclass(frozen=True, slots=True)
class Failures:
    """How many nodes in a row could not be had, when the last (UTC seconds), and why
    not.
    """

    count: int = 0
    at: float = 0.0
    why: str = ""

    @property
    def over_at(self) -> float:
        """When the next node may be asked for, in UTC seconds."""
        if not self.count:
            return -math.inf
        return self.at + min(AGAIN_S * 2.0 ** min(self.count - 1, 30), LONGEST_AGAIN_S)


NONE_FAILED = Failures()


@dataclass(slots=True)
class PoolPlace:
    """A pool as a place where jobs may run some day. `like` is an empty node like its
    own, None while their size is not known. It may have `most` of them. `why`: why it
    grows now or does not, for people.
    """

    like: Node | None
    most: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """What to do now: ask for so many nodes; drain and end these, each with the reason
    for people. `why`: why the pool grows, or why it does not. `wake_at` is when to plan
    again if nothing happens before, in UTC seconds; None for never.
    """

    ask: int
    drain: tuple[tuple[str, str], ...]
    end: tuple[tuple[str, str], ...]
    why: str
    wake_at: float | None


def plan_pool(
    limits: PoolLimits,
    nodes: Sequence[PoolNode],
    waiting: Sequence[WaitingWork],
    now: float,
    failures: Failures = NONE_FAILED,
) -> PoolPlan:
    """What the pool needs now. `nodes` are all that are not gone."""
    wanted = nodes_for(waiting, limits.boot_s)
    ask, why = _growth(limits, nodes, wanted, now, failures)
    if not wanted and waiting and not ask:
        why = f"{_jobs(waiting)} before a new node would be there"
    drain: list[tuple[str, str]] = []
    end: list[tuple[str, str]] = []
    for node, reason in _leaving(limits, nodes, wanted, now):
        may_run_jobs = node.stage is PoolStage.JOINED and not node.lost
        leaving = drain if may_run_jobs else end
        leaving.append((node.id, reason))
    wake_at = _wake_at(limits, nodes, now, failures)
    return PoolPlan(ask, tuple(drain), tuple(end), why, wake_at)


def nodes_for(waiting: Sequence[WaitingWork], boot_s: float) -> int:
    """How many new nodes the work is worth that waits longer than one takes to come.

    Of short jobs, a node runs several in the time that another would take to come.
    """
    parts: list[float] = []
    for work in waiting:
        if work.wait_s is not None and work.wait_s <= boot_s:
            continue
        in_turn = max(1, math.floor(boot_s / work.run_s)) if work.run_s > 0 else 1
        shares = work.jobs * work.nodes
        part = shares / (work.per_node * in_turn)
        # All shares of a job start together, each on a node of its own.
        parts.append(max(part, float(work.nodes)) if work.nodes > 1 else part)
    # Sums of parts are not exact: ten tenths are one node.
    return math.ceil(math.fsum(parts) - 1e-9)


def _growth(
    limits: PoolLimits,
    nodes: Sequence[PoolNode],
    wanted: int,
    now: float,
    failures: Failures,
) -> tuple[int, str]:
    """How many nodes to ask for, and why as many, for people."""
    coming = sum(node.counts and node.stage.comes for node in nodes)
    good = sum(node.counts for node in nodes)
    missing = max(limits.least - good, wanted - coming, 0)
    if not missing:
        if coming:
            return 0, f"{_nodes(coming)} on the way"
        return 0, "nothing waits for it"
    room = max(limits.most - len(nodes), 0)
    if not room:
        return 0, f"it has the {_nodes(limits.most)} that it may have"
    if now < failures.over_at:
        pause = format_duration(math.ceil(failures.over_at - now))
        return 0, f"it asks again in {pause}: {failures.why}"
    reason = "for what waits" if wanted > coming else "for its minimum"
    return min(missing, room), f"it asks for {_nodes(min(missing, room))} {reason}"


def _leaving(
    limits: PoolLimits, nodes: Sequence[PoolNode], wanted: int, now: float
) -> Iterator[tuple[PoolNode, str]]:
    """The nodes to drain or to end, each with the reason."""
    for node in nodes:
        if node.stage is PoolStage.DRAINING and node.idle_since is not None:
            yield node, ""
        elif node.lost and node.stage is not PoolStage.ENDING:
            yield node, node.lost
        elif node.sick and node.may_leave:
            yield node, node.sick
    good = sorted((node for node in nodes if node.counts), key=_use)
    surplus = max(len(good) - limits.most, 0)
    for node in good[:surplus]:
        yield node, f"the pool may have {_nodes(limits.most)}"
    if wanted or _has_just_grown(limits, nodes, now):
        return
    spare = len(good) - surplus - limits.least
    for node in good[surplus : surplus + max(spare, 0)]:
        if node.idle_since is not None and node.idle_since + limits.idle_s <= now:
            yield node, f"nothing ran on it for {format_duration(limits.idle_s)}"


def _has_just_grown(limits: PoolLimits, nodes: Sequence[PoolNode], now: float) -> bool:
    """Whether a node was asked for within the last `idle_s`."""
    return any(now < node.asked_at + limits.idle_s for node in nodes)


def _use(node: PoolNode) -> tuple[bool, float, float]:
    """Sorts nodes, the one that is needed least first: idle for the longest time, then
    on its way, then the newest.
    """
    if node.idle_since is not None:
        return (False, node.idle_since, 0.0)
    return (True, 0.0 if node.stage.comes else 1.0, -node.asked_at)


def _wake_at(
    limits: PoolLimits, nodes: Sequence[PoolNode], now: float, failures: Failures
) -> float | None:
    """When time alone may change the plan: a node has been idle for long enough, or
    the pause after a failure is over.
    """
    times = [
        max(node.idle_since, max(other.asked_at for other in nodes)) + limits.idle_s
        for node in nodes
        if node.idle_since is not None
    ]
    times.append(failures.over_at)
    return min((at for at in times if now < at < math.inf), default=None)


def _nodes(count: int) -> str:
    return f"{count} node{'' if count == 1 else 's'}"


def _jobs(waiting: Sequence[WaitingWork]) -> str:
    count = sum(work.jobs for work in waiting)
    return "the job that waits starts" if count == 1 else f"{count} jobs start"
