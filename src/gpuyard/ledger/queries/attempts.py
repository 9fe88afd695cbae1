"""Reading attempts."""

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

import sqlalchemy as sa

from gpuyard.domain.ids import first_id
from gpuyard.domain.jobspec import JobKind
from gpuyard.domain.reasons import Reason
from gpuyard.domain.states import AttemptState
from gpuyard.ledger.queries.base import LedgerReader, Row
from gpuyard.ledger.tables import attempts, jobs

_LIVE_ATTEMPTS = tuple(state.value for state in AttemptState if state.live)


# 2 ** -x for x from 0 to 1, within a fifth of a percent.
_HALVING = (1.0, -0.6715729, 0.1715729)


class PastUsage(NamedTuple):
    """What attempts of one user in one project have run for jobs of one `shape` (JSON):
    `seconds`, of which each counts half after a half-life. `placements` (JSON) is None
    if it was not asked for.
    """

    project: str | None
    owner: str | None
    shape: str
    placements: str | None
    seconds: float


class AttemptQueries(LedgerReader):
    """Reads of attempts."""

    def attempts_of(self, job_ids: Iterable[str]) -> dict[str, list[Row]]:
        """Each job's attempts in order."""
        found: dict[str, list[Row]] = {}
        where = attempts.c.job_id.in_(list(job_ids))
        for row in self._rows(sa.select(attempts).where(where).order_by(attempts.c.id)):
            found.setdefault(row["job_id"], []).append(row)
        return found

    def live_attempts(self) -> list[Row]:
        """Every attempt that holds a booking."""
        return self._rows(
            sa.select(attempts)
            .where(attempts.c.state.in_(_LIVE_ATTEMPTS))
            .order_by(attempts.c.id)
        )

    def newest_ended(self, most: int, provider: str) -> list[Row]:
        """A provider's ended attempts, newest first.

        Each has the `name`, `labels` and `shape` of its job too.
        """
        columns = (attempts, jobs.c.name, jobs.c.labels, jobs.c.shape)
        found = (
            sa.select(*columns)
            .join(jobs, jobs.c.id == attempts.c.job_id)
            .where(attempts.c.provider == provider, attempts.c.ended_at.is_not(None))
        )
        return self._rows(found.order_by(attempts.c.id.desc()).limit(most))

    def ended_on(
        self,
        node_ids: Collection[str],
        made_since: float,
        ended_since: float,
        before: str,
        most: int,
    ) -> list[Row]:
        """The attempts that have started on one of these nodes and ended, and that were
        made and have ended since then (UTC seconds): `id`, `job_id`, `ended_at` and
        `node_id`, which is the first of an attempt on several nodes. The newest come
        first: at most so many of those with an id before this one; empty for any.
        """
        placements = sa.cast(attempts.c.placements, sa.Text)
        names = [placements.contains(node_id) for node_id in node_ids]
        columns = (attempts.c.id, attempts.c.job_id, attempts.c.ended_at)
        found = (
            sa.select(*columns, attempts.c.placements)
            .where(attempts.c.id >= first_id("attempt", made_since), sa.or_(*names))
            .where(attempts.c.started_at.is_not(None))
            .where(attempts.c.ended_at >= ended_since)
        )
        if before:
            found = found.where(attempts.c.id < before)
        rows = self._rows(found.order_by(attempts.c.id.desc()).limit(most))
        for row in rows:
            row["node_id"] = row.pop("placements")[0]["node_id"]
        return rows

    def service(self, job_ids: Iterable[str]) -> dict[str, tuple[float, int]]:
        """By job: how many seconds its ended attempts ran, how many were preempted."""
        by_wall_clock = attempts.c.ended_at - attempts.c.started_at
        measured = sa.func.coalesce(attempts.c.ran_s, by_wall_clock)
        ran = sa.func.sum(measured).label("seconds")
        preempted = sa.func.sum(
            sa.case((attempts.c.reason == Reason.PREEMPTED.value, 1), else_=0)
        ).label("preempted")
        found = sa.select(attempts.c.job_id, ran, preempted).where(
            attempts.c.job_id.in_(list(job_ids)), attempts.c.ended_at.is_not(None)
        )
        rows = self._rows(found.group_by(attempts.c.job_id))
        return {
            row["job_id"]: (row["seconds"] or 0.0, row["preempted"]) for row in rows
        }

    def homes(self, job_ids: Iterable[str]) -> dict[str, str]:
        """By job: the provider of its newest ended attempt that ran."""
        ran = (
            attempts.c.job_id.in_(list(job_ids)),
            attempts.c.started_at.is_not(None),
            attempts.c.ended_at.is_not(None),
        )
        found = (
            sa.select(attempts.c.job_id, attempts.c.provider)
            .where(*ran)
            .order_by(attempts.c.id)
        )
        return {row["job_id"]: row["provider"] for row in self._rows(found)}

    def gpu_seconds_since(
        self, begin: float
    ) -> list[tuple[str | None, str | None, float]]:
        """What ended attempts of people's jobs have used since then (UTC seconds), in
        GPU seconds: project, owner and sum.
        """
        by_wall_clock = attempts.c.ended_at - attempts.c.started_at
        ran_s = sa.func.coalesce(attempts.c.ran_s, by_wall_clock)
        before_s = sa.case(
            (attempts.c.started_at < begin, begin - attempts.c.started_at), else_=0.0
        )
        within_s = sa.case((ran_s > before_s, ran_s - before_s), else_=0.0)
        whose = (jobs.c.project, jobs.c.owner)
        found = (
            sa.select(*whose, sa.func.sum(attempts.c.gpus * within_s))
            .join(jobs, jobs.c.id == attempts.c.job_id)
            .where(
                attempts.c.ended_at >= begin,
                attempts.c.started_at.is_not(None),
                attempts.c.gpus > 0,
                jobs.c.kind.not_in([JobKind.MODEL, JobKind.WORKER]),
            )
            .group_by(*whose)
        )
        return self._results(
            found,
            (),
            lambda result: [_gpu_seconds(*row) for row in result],
        )

    def past_usage(
        self, now: float, half_life_s: float, half_lives: int, *, by_place: bool
    ) -> list[PastUsage]:
        """What ended attempts have used, decayed until `now` (UTC seconds). Those that
        began more than so many half-lives ago are left out. `by_place`: with their
        placements, which takes longer.
        """
        by_wall_clock = attempts.c.ended_at - attempts.c.started_at
        ran_s = sa.func.coalesce(attempts.c.ran_s, by_wall_clock)
        # All counts as if it had been used in the middle of its time.
        age = (now - attempts.c.ended_at + ran_s / 2) / half_life_s
        nothing = sa.null()
        shape = sa.cast(jobs.c.shape, sa.Text)
        placements = sa.cast(attempts.c.placements, sa.Text) if by_place else nothing
        columns = (jobs.c.project, jobs.c.owner, shape, placements)
        # Ids begin with the time, so the oldest need not be read.
        began_ms = max(0, int((now - half_lives * half_life_s) * 1000))
        found = (
            sa.select(*columns, sa.func.sum(ran_s * _decayed(age, half_lives)))
            .join(jobs, jobs.c.id == attempts.c.job_id)
            .where(
                attempts.c.id >= f"attempt_{began_ms:012x}",
                attempts.c.ended_at.is_not(None),
                attempts.c.started_at.is_not(None),
            )
            # PostgreSQL groups by no constants.
            .group_by(*(c for c in columns if c is not nothing))
        )
        return self._results(
            found, (), lambda result: [PastUsage(*row) for row in result]
        )


def _gpu_seconds(
    project: str | None, owner: str | None, used: float
) -> tuple[str | None, str | None, float]:
    return project, owner, float(used)


def _decayed(age: sa.ColumnElement[float], half_lives: int) -> sa.ColumnElement[float]:
    """The weight of what is so many half-lives old. SQLite may lack powers, so each
    half-life has a polynomial.
    """
    constant, linear, square = _HALVING
    whens: list[tuple[Any, Any]] = []
    for whole in range(half_lives):
        rest = age - whole
        weight = constant + linear * rest + square * rest * rest
        whens.append((age < whole + 1, weight * 2.0**-whole))
    return sa.case(*whens, else_=0.0)
