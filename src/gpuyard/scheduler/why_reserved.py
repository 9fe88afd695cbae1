"""Which advance reservation is in the way of a job, and until when."""

from gpuyard.domain.units import format_duration, iso_time
from gpuyard.scheduler.advance import AdvanceReservation
from gpuyard.scheduler.explanation import Why
from gpuyard.scheduler.fitting import may_use
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.placement import place
from gpuyard.scheduler.policy import Policy
from gpuyard.scheduler.reservation import Reservations
from gpuyard.scheduler.view import View

_MOST_NAMED = 2


def in_the_way(
    view: View, job: LiveJob, now: float, policy: Policy
) -> list[AdvanceReservation]:
    """Those that keep the job off GPUs of nodes that it may use."""
    found = Reservations(view, now, policy).kept_out_by(job)
    nodes = view.nodes
    return [
        one
        for one in found
        if any(may_use(nodes[node_id], job.shape) for node_id in one.shares)
    ]


def in_words(reservations: list[AdvanceReservation]) -> str:
    """What is reserved for whom, for people; empty if nothing is."""
    said = [
        f"{_what(one)} reserved for {_whose(one)} from {iso_time(one.begins_at)} to"
        f" {iso_time(one.ends_at)} ({one.id})"
        for one in reservations[:_MOST_NAMED]
    ]
    more = len(reservations) - _MOST_NAMED
    if more > 0:
        said.append(f"there are {more} more reservations")
    return ", and ".join(said)


def kept_for_others(view: View, job: LiveJob, now: float, policy: Policy) -> Why | None:
    """Why it does not start although it would fit; None if no reservation is why."""
    spaces = Reservations(view, now, policy).spaces(job, float("inf"))
    would_fit = place(view, job.shape) is not None
    if not would_fit or place(view, job.shape, spaces) is not None:
        return None
    found = in_the_way(view, job, now, policy)
    ends_at = min((one.ends_at for one in found), default=now)
    begins_at = min((one.begins_at for one in found), default=now)
    help_ = ["mark it preemptible: it may run there until the holder's jobs come"]
    rest_s = begins_at - now - policy.end_margin_s
    if rest_s > 0:
        help_.insert(0, f"give it a timeout of at most {format_duration(rest_s)}")
    return Why(
        f"There is room for it, but {in_words(found)}.",
        "reserved",
        "then the reservation ends",
        ends_at - now,
        would_help=tuple(help_),
    )


def _what(one: AdvanceReservation) -> str:
    if one.gpus is None:
        return f"node {one.node} is"
    return f"{one.gpus} GPU{' is' if one.gpus == 1 else 's are'}"


def _whose(one: AdvanceReservation) -> str:
    return f"project {one.project}" if one.project is not None else f"{one.user}"
