import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.domain.shape import Placement, Shape
from gpuyard.domain.states import JobState
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.parties import ProjectShare, ShareRules
from gpuyard.scheduler.usage import Usage

HALF_LIFE = 1000.0
START = 1_800_000_000.0
ANA = ("", "ana")


def job(number: int = 1, project: str | None = None) -> LiveJob:
    shape = Shape(gpus=1, cpus=1.0).interned()
    made = LiveJob(f"job_{number}", JobState.QUEUED, shape, 3, START)
    made.owner = "ana"
    made.project = project
    return made


def usage(**projects: ProjectShare) -> Usage:
    return Usage(ShareRules(HALF_LIFE, projects), by_share=True)


def ran(kept: Usage, number: int, began: float, seconds: float) -> None:
    kept.hold(f"a{number}", job(number), [Placement("elsewhere")], {})
    kept.begin(f"a{number}", began)
    kept.end(f"a{number}", seconds)


@given(
    runs=st.lists(
        st.tuples(st.floats(0.0, 2e5), st.floats(1.0, 5000.0)), min_size=1, max_size=6
    ),
    after_s=st.floats(0.0, 3000.0),
)
def test_use_is_what_each_second_counts_after_its_decay(runs, after_s):
    """Also over two hundred half-lives, in which the inflation begins anew."""
    kept = usage()
    now = max(began + seconds for began, seconds in runs) + after_s
    by_the_second = 0.0
    for number, (began, seconds) in enumerate(sorted(runs)):
        kept.hold(f"a{number}", job(number), [Placement("n", ("GPU",), 1.0)], {})
        kept.begin(f"a{number}", START + began)
        # What runs counts before its end as well as after.
        if number % 2:
            kept.end(f"a{number}", seconds)
        else:
            seconds = now - began
        for step in range(200):
            at = began + seconds * (step + 0.5) / 200
            by_the_second += seconds / 200 * 2 ** ((at - now) / HALF_LIFE)
    found, _ = kept.gpu_seconds(ANA, START + now)
    assert found == pytest.approx(by_the_second, rel=0.05, abs=1.0)


def test_what_is_told_twice_counts_once():
    kept = usage()
    for _ in range(2):
        ran(kept, 1, START, 100.0)
        kept.end("a1", 100.0)
        kept.begin("a1", START)
    assert kept.gpu_seconds(ANA, START + 100.0)[0] == pytest.approx(200.0, rel=0.1)
    assert kept.gpus_of_user("ana") == 0


def test_the_past_outlives_a_view_and_its_running_jobs_do_not_count_twice():
    before = usage(vision=ProjectShare())
    before.hold("a1", job(1, "vision"), [Placement("n", ("GPU",), 1.0)], {})
    before.begin("a1", START)
    before.end("a1", 100.0)
    before.hold("a2", job(2, "vision"), [Placement("n", ("GPU",), 1.0)], {})
    before.begin("a2", START)
    after = usage(vision=ProjectShare())
    after.take_past(before)
    after.hold("a2", job(2, "vision"), [Placement("n", ("GPU",), 1.0)], {})
    after.begin("a2", START)
    now = START + 100.0
    for line in (ANA, ("vision", "ana")):
        assert after.gpu_seconds(line, now) == pytest.approx(
            before.gpu_seconds(line, now)
        )


def test_invented_projects_leave_nothing_behind():
    kept = usage()
    for number in range(1000):
        kept.party(f"invented-{number}", "ana")
        ran(kept, number, START, 1.0)
    assert not kept._projects
    assert kept.party("invented-1", "ana") == kept.party("invented-2", "ana")


def test_a_clock_that_is_set_back_breaks_nothing():
    kept = usage()
    ran(kept, 1, START, 100.0)
    kept.hold("a2", job(2), [Placement("n", ("GPU",), 1.0)], {})
    kept.begin("a2", START + 200.0)
    for now in (START - 1e9, START + 1e9, START):
        used, _ = kept.gpu_seconds(ANA, now)
        assert 0.0 <= used < float("inf")
