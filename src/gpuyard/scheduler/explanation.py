"""What `why` answers about a pending job."""

from dataclasses import dataclass

MOST_BEHIND = 100
"""An explanation has the ids of at most so many jobs."""


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """What a job finds on a node or at an offer.

    `fits_now`: a share fits now. `would_fit_empty`: it would fit if nothing were booked
    and nothing broken. `expects`: of an offer that suits, wait, run time and cost.
    """

    node: str
    name: str
    fits_now: bool
    would_fit_empty: bool
    reasons: tuple[str, ...]
    expects: str = ""


@dataclass(frozen=True, slots=True)
class Why:
    """Why a job has not started.

    `constraint` is one word: `dependency`, `backoff`, `starting`, `preempting`,
    `priority`, `share`, `quota`, `budget`, `reservation`, `reserved`, `capacity`,
    `no_nodes`, `offline`, `quarantined`, `engine` (an external queue), `impossible`, or
    the need that cannot be met: `pinned`, `gpu_class`, `gpu_memory`, `gpu_capability`,
    `gpus`, `nodes`, `cpus`, `memory`.

    `deadline` says whether it can still end in time, if it has one.

    `behind`: the jobs of this instance that have what it needs, or that come before it,
    by id: the oldest, at most MOST_BEHIND. `behind_total`: how many there are. None if
    it waits for something else, such as a node or an external queue.

    `position` (from 1) and `ahead` count the jobs that may start now; `position` is
    None for a job that may not. `estimate_s`: in how many seconds it starts at the
    latest; None if nothing limits that. `estimate_basis` gives the reason.
    """

    summary: str
    constraint: str
    estimate_basis: str
    estimate_s: float | None = None
    position: int | None = None
    ahead: int = 0
    candidates: tuple[NodeVerdict, ...] = ()
    would_help: tuple[str, ...] = ()
    deadline: str = ""
    behind: tuple[str, ...] = ()
    behind_total: int = 0
