"""Fair shares and quotas: from settings and ledger to the scheduler's usage, and the
refusal of jobs over a quota.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache, partial
from zoneinfo import ZoneInfo

import msgspec

from gpuyard.billing.periods import month_at
from gpuyard.config.settings import Settings
from gpuyard.config.shares import QuotaLimits
from gpuyard.domain.errors import RefusedError
from gpuyard.domain.events import Event, Row, Table
from gpuyard.domain.shape import Placement, Shape
from gpuyard.ledger.queries import Queries
from gpuyard.scheduler.parties import ProjectShare, Quota, Quotas, ShareRules
from gpuyard.scheduler.policy import QueueOrder
from gpuyard.scheduler.usage import OWN_KINDS, Usage, rate_of
from gpuyard.scheduler.view import View

HALF_LIVES = 5
"""What was used so many half-lives ago counts for a thirtieth, and is not read."""


def new_usage(settings: Settings) -> Usage:
    """The usage that these settings ask for, of nobody yet."""
    shares = settings.fair_share
    projects = {
        name: ProjectShare(
            project.shares,
            {user: share.shares for user, share in project.users.items()},
            project.organisation or "",
        )
        for name, project in shares.projects.items()
    }
    users = {name: share.shares for name, share in shares.users.items()}
    organisations = {name: one.shares for name, one in shares.organisations.items()}
    return Usage(
        ShareRules(shares.half_life, projects, users, organisations=organisations),
        Quotas(_quotas(settings.quotas.users), _quotas(settings.quotas.projects)),
        by_share=settings.scheduler.policy == QueueOrder.FAIR,
        month_of=partial(month_at, zone=ZoneInfo(settings.quotas.timezone)),
    )


def _quotas(limits: Mapping[str, QuotaLimits]) -> dict[str, Quota]:
    return {
        name: Quota(limit.running_gpus, limit.queued_jobs, limit.gpu_hours_per_month)
        for name, limit in limits.items()
    }


def read_past_usage(view: View, queries: Queries, now: float) -> None:
    """Count what ended attempts have used; `view` knows the nodes."""
    usage = view.usage
    if usage.look_at_month(now):
        begins_at = usage.month.begins_at
        for project, owner, gpu_seconds in queries.gpu_seconds_since(begins_at):
            usage.month.add(("user", owner or ""), gpu_seconds)
            usage.month.add(("project", project or ""), gpu_seconds)
    if not usage.by_share:
        return
    capacity = usage.capacity(view.nodes)
    # Where all GPUs weigh the same, it does not matter which ones were used.
    weights = {capacity.weight(device) for device in view.devices.values()}
    found = queries.past_usage(
        now, usage.rules.half_life_s, HALF_LIVES, by_place=len(weights) > 1
    )
    for past in found:
        shape = _shape(past.shape)
        rate = capacity.rate_of_shape(shape)
        if past.placements:
            placements = [
                Placement.from_row(share)
                for share in msgspec.json.decode(past.placements)
            ]
            rate = rate_of(capacity, shape, placements, view.nodes)
        gpu_seconds = rate * past.seconds
        usage.add_past(past.project or "", past.owner or "", gpu_seconds, now)


@lru_cache(maxsize=4096)
def _shape(text: str) -> Shape:
    return Shape.from_row(msgspec.json.decode(text))


def refuse_over_quota(usage: Usage, events: Iterable[Event]) -> None:
    """RefusedError if the new jobs of `events` would be more queued jobs than a quota
    allows, or if one asks for more GPUs than may ever run at once.
    """
    if not (usage.limits_queued or usage.limits_running):
        return
    by_user = Counter[str]()
    by_project = Counter[str]()
    for row in _new_jobs(events):
        user = row.get("owner") or ""
        project = row.get("project") or ""
        by_user[user] += 1
        by_project[project] += 1
        _refuse_too_wide(usage.quotas, row["shape"], user, project)
    for user, more in by_user.items():
        limit = usage.quotas.of_user(user).queued_jobs
        _refuse_too_many(_named(user), limit, usage.queued_by_user[user], more)
    for project, more in by_project.items():
        limit = usage.quotas.of_project(project).queued_jobs
        whose = f"the project {project}"
        _refuse_too_many(whose, limit, usage.queued_by_project[project], more)


def _new_jobs(events: Iterable[Event]) -> Iterator[Row]:
    """The rows of the jobs that people submit."""
    for event in events:
        for change in event.changes:
            row = change.values
            if change.table is Table.JOBS and row and row["kind"] not in OWN_KINDS:
                yield row


def _named(user: str) -> str:
    return f"the user {user}" if user else "the owner of this instance"


def _refuse_too_many(whose: str, limit: int | None, queued: int, more: int) -> None:
    if limit is None or queued + more <= limit:
        return
    raise RefusedError(
        f"{whose[0].upper()}{whose[1:]} may have {_jobs(limit)} queued at once (the"
        f" quota queued_jobs), has {queued}, and submits {_jobs(more)} more.",
        "Wait until some have started or cancel some; an administrator can raise the"
        " quota in the settings.",
    )


def _jobs(number: int) -> str:
    return f"{number} {'job' if number == 1 else 'jobs'}"


def _refuse_too_wide(quotas: Quotas, shape: Row, user: str, project: str) -> None:
    gpus = shape.get("gpus", 0) * shape.get("nodes", 1)
    for whose, quota in (
        (_named(user), quotas.of_user(user)),
        (f"the project {project}", quotas.of_project(project)),
    ):
        limit = quota.running_gpus
        if limit is not None and gpus > limit:
            raise RefusedError(
                f"The job asks for {gpus} GPUs, and {whose} may use {limit} at once"
                " (the quota running_gpus).",
                "Ask for fewer GPUs; an administrator can raise the quota in the"
                " settings.",
            )
