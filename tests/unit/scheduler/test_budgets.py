"""Budgets in the view: who may start, and who waits."""

from hypothesis import given
from hypothesis import strategies as st

from gpuyard.domain.shape import Shape
from gpuyard.domain.states import JobState
from gpuyard.scheduler.budgets import BudgetTable, EndedCost, LiveBudget
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.policy import Policy
from gpuyard.scheduler.view import View
from gpuyard.scheduler.why import why

ALL = ("vision", "language", None)


def view_with(*budgets: LiveBudget) -> View:
    """What a job may cost is its time limit."""
    table = BudgetTable(
        {each.name: each for each in budgets},
        reserve_of=lambda job, _: int(job.timeout_s or 0),
        worth=lambda _, paid: int(float(paid.cost)),
    )
    return View(budgets=table)


def submit(
    view: View,
    number: int,
    cost: float,
    project: str | None = "vision",
    priority: int = 3,
    owner: str | None = None,
) -> LiveJob:
    job = LiveJob(
        f"job_{number:03}",
        JobState.QUEUED,
        Shape().interned(),
        priority,
        0.0,
        timeout_s=cost,
        project=project,
        owner=owner,
    )
    view.jobs[job.id] = job
    view.enqueue(job)
    return job


def end(view: View, job: LiveJob, cost: float = 0.0) -> None:
    paid = EndedCost(f"att_{job.id}", str(cost), "USD", 0.0, 1.0)
    view.budgets.note_cost(job, paid)
    del view.jobs[job.id]
    view.remove_job(job)
    view.leave_array(job)


def queued(view: View) -> list[str]:
    return sorted(job.id for job in view.queue)


def test_jobs_enter_the_queue_while_there_is_room_for_what_they_may_cost():
    view = view_with(LiveBudget("b", 100, "USD", project="vision"))
    first = submit(view, 1, 60)
    submit(view, 2, 60)
    submit(view, 3, 60, project="language")
    urgent = submit(view, 4, 60, priority=5)
    assert queued(view) == ["job_001", "job_003"]
    answer = why(view, urgent.id, 0.0, Policy())
    assert answer is not None
    assert answer.constraint == "budget"
    end(view, first, cost=30)
    # The most urgent comes first.
    assert queued(view) == ["job_003", "job_004"]
    end(view, urgent, cost=70)
    assert view.budgets.by_name["b"].left == 0
    assert queued(view) == ["job_003"]


def test_two_budgets_that_overlap_both_hold():
    day = LiveBudget("day", 50, "USD", project="vision")
    month = LiveBudget("month", 80, "USD", project="vision")
    view = view_with(month, day)
    first = submit(view, 1, 40)
    submit(view, 2, 40)
    assert queued(view) == ["job_001"]
    end(view, first, cost=40)
    # The month has room for it, and the day has not.
    assert (month.left, day.left) == (40, 10)
    assert queued(view) == []
    day.spent = 0
    view.admit_to_budgets()
    assert queued(view) == ["job_002"]
    assert (month.left, day.left) == (0, 10)


def test_the_budget_of_a_user_is_of_nobody_else():
    view = view_with(
        LiveBudget("ana's", 100, "USD", user="ana"),
        LiveBudget("own", 100, "USD", user="owner"),
    )
    submit(view, 1, 100, owner="ana")
    submit(view, 2, 100, owner="ana")
    submit(view, 3, 100)
    submit(view, 4, 100)
    submit(view, 5, 500, owner="ben")
    assert queued(view) == ["job_001", "job_003", "job_005"]


def test_a_budget_of_all_is_everybodys_and_holds_beside_others():
    all_jobs = LiveBudget("all", 100, "USD")
    anas = LiveBudget("ana's", 90, "USD", user="ana")
    view = view_with(all_jobs, anas)
    submit(view, 1, 60, owner="ana")
    submit(view, 2, 60, owner="ben", project=None)
    submit(view, 3, 40, owner="ben")
    submit(view, 4, 30, owner="ana")
    assert queued(view) == ["job_001", "job_003"]
    assert (all_jobs.left, anas.left) == (0, 30)


def test_nothing_more_starts_until_it_is_known_what_is_spent():
    view = view_with(LiveBudget("b", 100, "USD", is_known=False))
    submit(view, 1, 10)
    assert queued(view) == []
    view.budgets.by_name["b"].is_known = True
    view.admit_to_budgets()
    assert queued(view) == ["job_001"]


def test_what_has_no_rate_waits_and_says_so():
    view = view_with(LiveBudget("b", 100, "EUR", project="vision"))
    view.budgets.reserve_of = lambda _, __: None
    job = submit(view, 1, 1)
    assert queued(view) == []
    answer = why(view, job.id, 0.0, Policy())
    assert answer is not None
    assert "no rate" in answer.summary


@given(
    st.lists(
        st.tuples(st.integers(0, 60), st.sampled_from(ALL), st.booleans()), max_size=40
    )
)
def test_what_is_spent_and_reserved_never_exceeds_a_budget(steps):
    """Whatever is submitted and ends, if no job costs more than it may."""
    budgets = [
        LiveBudget("one", 100, "USD", project="vision"),
        LiveBudget("two", 150, "USD", project="vision"),
        LiveBudget("own", 200, "USD", user="owner"),
    ]
    view = view_with(*budgets)
    for number, (cost, project, ends) in enumerate(steps):
        submit(view, number, cost, project)
        first = next(iter(view.queue), None)
        if ends and first:
            end(view, first, cost=first.timeout_s or 0)
        assert all(budget.left >= 0 for budget in budgets)
        waiting = view.budgets.waiting_jobs()
        assert len(view.queue) + len(waiting) == len(view.jobs)
        assert all(view.budgets.lacking(job) for job in waiting)
