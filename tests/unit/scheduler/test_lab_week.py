"""A week of a lab, decided by the real scheduler in virtual time."""

import pytest

from tests.support.lab_week import (
    BUDGET_GPU_HOURS,
    DAYS,
    GPUS,
    HOUR,
    POOR,
    PROJECTS,
    SAVES_S,
    LabWeek,
    entitlement,
)

# Jobs of hours do not divide a week exactly.
TOLERANCE = 0.06


@pytest.fixture(scope="module", params=[7])
def week(request: pytest.FixtureRequest) -> LabWeek:
    """The same people, with other bursts."""
    return LabWeek(request.param).run()


def test_each_project_uses_what_is_due_to_it(week: LabWeek) -> None:
    for project in PROJECTS:
        due = pytest.approx(week.part_due(project), abs=TOLERANCE)
        assert week.part(project) == due, project


def test_the_gpus_do_not_idle_while_people_wait(week: LabWeek) -> None:
    used = sum(sum(hour.used.values()) for hour in week.hours)
    assert used > 0.95 * GPUS * DAYS * 24


def test_reservations_begin_on_time(week: LabWeek) -> None:
    """At the latest once the jobs that were lent their GPUs have saved their work."""
    assert set(week.began) == set(week.bookings)
    for late_s in week.began.values():
        assert late_s <= SAVES_S


def test_a_budget_that_has_run_out_stops_its_project_and_nobody_else(
    week: LabWeek,
) -> None:
    assert week.spent[POOR] <= BUDGET_GPU_HOURS * HOUR
    starts = dict.fromkeys(PROJECTS, 0.0)
    for job_id, at in week.started.items():
        project = week.project_of[job_id]
        starts[project] = max(starts[project], at - week.begins_at)
    ran_out_at = starts.pop(POOR)
    assert ran_out_at < (DAYS - 1) * 24 * HOUR
    assert min(starts.values()) > (DAYS - 1) * 24 * HOUR
    jobs = week.world.view.budgets.waiting_jobs()
    assert jobs
    assert {job.project for job in jobs} == {POOR}
    assert week.ran_out_at is not None
    # No job of the week runs for longer than four hours.
    last_hours = week.hours[int(ran_out_at // HOUR) + 5 :]
    assert sum(hour.used[POOR] for hour in last_hours) == 0.0


def test_nobody_starves(week: LabWeek) -> None:
    """Who has waited for a day has had GPUs by then."""
    usage = week.world.view.usage
    now = week.world.now
    for job in week.world.view.queue:
        if now - job.created_at > 24 * HOUR:
            _, used = usage.gpu_seconds((job.project or "", job.owner or ""), now)
            assert used > 0, job


def test_what_is_due_is_divided_by_shares_to_nobody_more_than_they_want() -> None:
    everybody = dict.fromkeys(PROJECTS, 100.0)
    due = entitlement(everybody)
    assert due["vision"] == pytest.approx(GPUS * 2 / 3 * 2 / 3)
    assert due["text"] == pytest.approx(GPUS / 3 / 2)
    few = entitlement({"vision": 1.0, "text": 2.0, "speech": 100.0})
    assert few == pytest.approx(
        {"vision": 1.0, "sound": 0.0, "text": 2.0, "speech": GPUS - 3.0}
    )
