"""Which jobs a listing shows."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import sqlalchemy as sa

from gpuyard.ledger.queries.visibility import visible
from gpuyard.ledger.tables import jobs, specs

Condition = sa.ColumnElement[bool] | sa.TextClause


@dataclass(frozen=True, slots=True)
class JobFilter:
    """What a job must be to be shown; what is not given admits all.

    `names`: one of them; in each, `*` stands for any characters and `?` for one.
    `labels`: all of them. `user`: who submitted it. `since`: it was submitted then or
    later (UTC seconds). `array_id`: a task of this array; `without_tasks`: of none.
    `hidden`: of none of these projects.
    """

    states: Sequence[str] = ()
    kinds: Sequence[str] = ()
    names: Sequence[str] = ()
    project: str | None = None
    user: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    since: float | None = None
    array_id: str | None = None
    without_tasks: bool = False
    hidden: Collection[str] = ()

    def conditions(self, dialect: str) -> list[Condition]:
        """The conditions on a row of `jobs`, in the words of that database."""
        found: list[Condition] = []
        if self.states:
            found.append(jobs.c.state.in_(self.states))
        if self.kinds:
            found.append(jobs.c.kind.in_(self.kinds))
        if self.names:
            found.append(sa.or_(*(_named(name, dialect) for name in self.names)))
        if self.project is not None:
            found.append(jobs.c.project == self.project)
        found += visible(jobs.c.project, self.hidden)
        if self.user is not None:
            submitter = specs.c.body["user"].as_string()
            theirs = sa.select(specs.c.job_id).where(submitter == self.user)
            found.append(sa.or_(jobs.c.id.in_(theirs), jobs.c.array_id.in_(theirs)))
        if self.since is not None:
            found.append(jobs.c.created_at >= self.since)
        if self.array_id is not None:
            found.append(jobs.c.array_id == self.array_id)
        if self.without_tasks:
            found.append(jobs.c.array_id.is_(None))
        for number, (name, value) in enumerate(self.labels.items()):
            found.append(_labelled(number, name, value, dialect))
        return found


ALL_JOBS = JobFilter()


def _named(pattern: str, dialect: str) -> sa.ColumnElement[bool]:
    is_one_name = "*" not in pattern and "?" not in pattern
    if is_one_name:
        return jobs.c.name == pattern
    # To LIKE of SQLite, upper and lower case are the same.
    return _glob(pattern) if dialect == "sqlite" else _like(pattern)


def _glob(pattern: str) -> sa.ColumnElement[bool]:
    """The name matches the pattern, by SQLite's GLOB. That has the same wildcards, and
    sets in brackets, which a pattern does not have.
    """
    without_sets = pattern.replace("[", "[[]")
    matches = jobs.c.name.op("GLOB", is_comparison=True)
    return matches(without_sets)


def _like(pattern: str) -> sa.ColumnElement[bool]:
    """The name matches the pattern, by LIKE. Its wildcards are `%` and `_`."""
    like = pattern.replace("\\", "\\\\")
    like = like.replace("%", "\\%").replace("_", "\\_")
    like = like.replace("*", "%").replace("?", "_")
    return jobs.c.name.like(like, escape="\\")


def _labelled(number: int, name: str, value: str, dialect: str) -> sa.TextClause:
    key = f"label_{number}"
    wanted = f"label_value_{number}"
    if dialect == "sqlite":
        # A path such as `$.name` would read some names as something else.
        condition = (
            "EXISTS (SELECT 1 FROM json_each(jobs.labels) AS label"
            f" WHERE label.key = :{key} AND label.value = :{wanted})"
        )
    else:
        condition = f"jobs.labels ->> CAST(:{key} AS TEXT) = CAST(:{wanted} AS TEXT)"
    return sa.text(condition).bindparams(**{key: name, wanted: value})
