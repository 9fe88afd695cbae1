"""What people are told about shares. This looks at all jobs, so it is for
people's questions and not for decisions.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from gpuyard.domain.units import format_duration, iso_time
from gpuyard.scheduler.fair_order import FairOrder, expected_rate
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.parties import Group, ShareKey, ShareRules, group_of
from gpuyard.scheduler.ranking import Ranking
from gpuyard.scheduler.view import View

MOST_TURNS = 20_000
"""Turns beyond are not played, so that an answer does not take seconds."""
_MOST_NAMED = 3


def named(line: ShareKey) -> str:
    """Whose line it is, for people."""
    project, user = line
    who = user or "the owner of this instance"
    return f"{who} in project {project}" if project else who


def jobs_ahead(
    view: View, job: LiveJob, now: float, ranking: Ranking
) -> Counter[ShareKey]:
    """How many jobs of each line get a place before `job`, if places become free one by
    one. Those that a quota holds back do not.
    """
    lines = _lines(view, job, now, ranking)
    groups: dict[Group, list[ShareKey]] = {}
    for line in lines:
        groups.setdefault(group_of(line), []).append(line)
    order = FairOrder(view.usage, groups, lambda line: lines[line][-1].id, now)
    ahead = Counter[ShareKey]()
    for _ in range(MOST_TURNS):
        line = order.next()
        if line is None:
            break
        jobs = lines[line]
        first = jobs.pop()
        if first.id == job.id:
            break
        ahead[line] += 1
        if jobs:
            order.charge(line, expected_rate(view, first))
        else:
            order.drop()
    return ahead


def _lines(
    view: View, job: LiveJob, now: float, ranking: Ranking
) -> dict[ShareKey, list[LiveJob]]:
    """The jobs of each line, the first one last."""
    lines: dict[ShareKey, list[LiveJob]] = {job.party.line: []}
    for other in view.queue:
        if other.id != job.id and view.usage.allows(other):
            lines.setdefault(other.party.line, []).append(other)
    lines[job.party.line].append(job)
    for jobs in lines.values():
        jobs.sort(key=lambda one: ranking.of(one, now), reverse=True)
    return lines


@dataclass(frozen=True, slots=True)
class ShareUsed:
    """How many times its share a line has used, and its organisation; the name of that
    is empty if there is none.
    """

    times: float
    organisation: str
    times_of_organisation: float


def share_used(view: View, line: ShareKey, now: float) -> ShareUsed | None:
    """What the line has used, among those that have jobs now; None if nobody has used
    anything.
    """
    usage = view.usage
    live = {job.party.line for job in view.jobs.values()}
    live.add(line)
    groups = {group_of(other): other for other in live}
    rules = usage.rules
    root = rules.root_of(group_of(line))
    beside = [other for group, other in groups.items() if rules.root_of(group) == root]
    members = [other for other in live if group_of(other) == group_of(line)]
    within = sum(rules.within_group(other) for other in members)
    due_of_root = due = _due_of_root(rules, groups.values(), line)
    organisation = rules.organisation_of(line[0])
    if organisation:
        due *= rules.of_group(line) / sum(map(rules.of_group, beside))
    due *= rules.within_group(line) / within
    users = {user for _, user in live}
    total = sum(usage.gpu_seconds(("", user), now)[1] for user in users)
    if total <= 0:
        return None
    return ShareUsed(
        usage.gpu_seconds(line, now)[1] / total / due,
        organisation,
        usage.of_organisation(organisation, now) / total / due_of_root,
    )


def _due_of_root(rules: ShareRules, lines: Iterable[ShareKey], line: ShareKey) -> float:
    """The part that is due to what stands for the line at the first level."""
    roots = {rules.root_of(group_of(other)): other for other in lines}
    return rules.of_root(line) / sum(map(rules.of_root, roots.values()))


def share_in_the_way(
    view: View, job: LiveJob, now: float, ahead: Counter[ShareKey]
) -> str:
    """Whose share is in the way of the job, for people; empty if nobody's is."""
    if not ahead:
        return ""
    line = job.party.line
    used = share_used(view, line, now)
    half_life = format_duration(view.usage.rules.half_life_s)
    if ahead.total() == 1:
        before = f"before it comes a job of {named(next(iter(ahead)))}"
    else:
        before = f"before it come {ahead.total()} jobs: {_listed(ahead.most_common())}"
    if used is None:
        return f"{_capitalised(before)}."
    who = _capitalised(named(line))
    whole = ""
    if used.organisation:
        whole = (
            f", and the organisation {used.organisation}"
            f" {used.times_of_organisation:.1f} times its own"
        )
    return (
        f"{who} has used {used.times:.1f} times the share due (what was used counts"
        f" half after {half_life}){whole}; {before}."
    )


def _capitalised(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def quota_in_words(view: View, job: LiveJob) -> str:
    """The quota that keeps the job from starting, for people; empty if none does."""
    month = view.usage.month_in_the_way(job)
    if month is not None:
        return (
            f"{_whose(month.whose, job)} may use {month.hours:g} GPU hours in a month"
            f" (the quota gpu_hours_per_month), and has used {month.used:.1f}. The"
            f" month ends at {iso_time(month.ends_at)}."
        )
    quota = view.usage.quota_in_the_way(job)
    if quota is None:
        return ""
    whose, limit, running = quota
    gpus = "GPU" if limit == 1 else "GPUs"
    return (
        f"{_whose(whose, job)} may use {limit} {gpus} at once (the quota"
        f" running_gpus), and {running} {'is' if running == 1 else 'are'} in use."
    )


def _whose(whose: str, job: LiveJob) -> str:
    """Whose quota it is, at the beginning of a sentence."""
    is_project = whose == "project"
    who = f"project {job.project}" if is_project else named(("", job.owner or ""))
    return _capitalised(who)


def _listed(ahead: Iterable[tuple[ShareKey, int]]) -> str:
    counts = list(ahead)
    parts = [f"{count} of {named(line)}" for line, count in counts[:_MOST_NAMED]]
    rest = sum(count for _, count in counts[_MOST_NAMED:])
    if rest:
        parts.append(f"{rest} of others")
    return ", ".join(parts)
