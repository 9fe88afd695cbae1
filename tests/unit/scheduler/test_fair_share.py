"""What people may rely on under the policy `fair`, in virtual time."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.domain.shape import Shape
from gpuyard.domain.states import JobState
from gpuyard.scheduler.estimate import estimate
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.parties import ProjectShare, Quota, Quotas, ShareRules
from gpuyard.scheduler.simulate import TraceJob, simulate
from tests.support.examples import examples
from tests.unit.scheduler.shared_lab import DAY, FAIR, HOUR, Lab

# A few jobs more or less, of some hundreds.
TOLERANCE = 0.1


def keep_busy(lab: Lab, users: dict[str, float], project=None, more: int = 4):
    """Each user always has some jobs that wait, each so many seconds long."""

    def submit_more() -> None:
        for user, seconds in users.items():
            while lab.waiting(user) < more:
                lab.submit(user, seconds, project)

    return submit_more


@settings(max_examples=examples(8), deadline=None)
@given(
    shares=st.lists(st.sampled_from([1.0, 2.0, 3.0, 5.0]), min_size=2, max_size=4),
    hours=st.lists(st.sampled_from([1.0, 2.0, 4.0]), min_size=4, max_size=4),
    in_project=st.booleans(),
)
def test_with_equal_demand_use_is_in_the_ratio_of_shares(shares, hours, in_project):
    """After a day in which the numbers settle, whatever the lengths of their jobs."""
    of_users = {f"user{number}": share for number, share in enumerate(shares)}
    rules = ShareRules(DAY, users=of_users, ahead_s=HOUR)
    if in_project:
        projects = {"vision": ProjectShare(1.0, of_users)}
        rules = ShareRules(DAY, projects, ahead_s=HOUR)
    lab = Lab(4, rules)
    lengths = dict(zip(of_users, (hour * HOUR for hour in hours), strict=False))
    busy = keep_busy(lab, lengths, "vision" if in_project else None)
    lab.run(DAY, busy)
    lab.used.clear()
    lab.run(5 * DAY, busy)
    for user, share in of_users.items():
        assert lab.part(user) == pytest.approx(share / sum(shares), abs=TOLERANCE / 2)


def test_projects_share_first_and_their_users_then():
    """Two thirds for vision, of which ana gets three quarters; the rest for text,
    however many people work there.
    """
    projects = {"vision": ProjectShare(2.0, {"ana": 3.0}), "text": ProjectShare(1.0)}
    lab = Lab(6, ShareRules(DAY, projects))
    vision = keep_busy(lab, {"ana": HOUR, "bob": HOUR}, "vision")
    text = keep_busy(lab, {"carl": HOUR, "dora": HOUR, "eve": HOUR}, "text")
    lab.run(4 * DAY, lambda: (vision(), text()))
    assert lab.part("ana") == pytest.approx(1 / 2, abs=TOLERANCE / 2)
    assert lab.part("bob") == pytest.approx(1 / 6, abs=TOLERANCE / 2)
    for user in ("carl", "dora", "eve"):
        assert lab.part(user) == pytest.approx(1 / 9, abs=TOLERANCE / 2)


def test_organisations_share_first_and_their_projects_then():
    """Two thirds for physics, of which vision gets three quarters, and a third for
    text, which is in no organisation.
    """
    projects = {
        "vision": ProjectShare(3.0, organisation="physics"),
        "sound": ProjectShare(1.0, organisation="physics"),
        "text": ProjectShare(1.0),
    }
    rules = ShareRules(DAY, projects, organisations={"physics": 2.0})
    lab = Lab(6, rules)
    busy = [
        keep_busy(lab, {"ana": HOUR}, "vision", more=8),
        keep_busy(lab, {"bob": HOUR}, "sound", more=8),
        keep_busy(lab, {"carl": HOUR, "dora": HOUR}, "text", more=8),
    ]
    lab.run(4 * DAY, lambda: [more() for more in busy])
    assert lab.part("ana") == pytest.approx(1 / 2, abs=TOLERANCE / 2)
    assert lab.part("bob") == pytest.approx(1 / 6, abs=TOLERANCE / 2)
    for user in ("carl", "dora"):
        assert lab.part(user) == pytest.approx(1 / 6, abs=TOLERANCE / 2)


def test_an_organisation_does_not_get_ahead_by_more_projects():
    names = [f"part-{number}" for number in range(5)]
    projects = {name: ProjectShare(organisation="physics") for name in names}
    projects["text"] = ProjectShare(organisation="letters")
    lab = Lab(4, ShareRules(DAY, projects))
    busy = [keep_busy(lab, {f"of {name}": HOUR}, name) for name in projects]
    lab.run(4 * DAY, lambda: [more() for more in busy])
    assert lab.part("of text") == pytest.approx(1 / 2, abs=TOLERANCE / 2)


@pytest.mark.parametrize("idle", ["sound", "text"])
def test_what_a_project_does_not_use_goes_first_to_its_organisation(idle):
    projects = {
        "vision": ProjectShare(organisation="physics"),
        "sound": ProjectShare(organisation="physics"),
        "text": ProjectShare(),
    }
    lab = Lab(4, ShareRules(DAY, projects))
    busy = [
        keep_busy(lab, {f"of {name}": HOUR}, name) for name in projects if name != idle
    ]
    lab.run(4 * DAY, lambda: [more() for more in busy])
    assert lab.part("of vision") == pytest.approx(1 / 2, abs=TOLERANCE / 2)


@settings(max_examples=examples(8), deadline=None)
@given(alone_days=st.sampled_from([0.5, 1.0, 3.0]), hours=st.sampled_from([0.5, 2.0]))
def test_who_had_nothing_catches_up(alone_days, hours):
    """It gets every place until its decayed use is that of the other."""
    lab = Lab(4, ShareRules(DAY))
    first = keep_busy(lab, {"ana": HOUR})
    lab.run(alone_days * DAY, first)
    both = keep_busy(lab, {"ana": HOUR, "bob": hours * HOUR})
    lab.run(2 * HOUR, both)
    assert len(lab.running("bob")) == 4
    lab.run(2 * DAY, both)
    usage = lab.world.view.usage
    _, of_ana = usage.gpu_seconds(("", "ana"), lab.now)
    _, of_bob = usage.gpu_seconds(("", "bob"), lab.now)
    assert of_bob == pytest.approx(of_ana, rel=TOLERANCE)


def test_nobody_gets_ahead_by_inventing_projects():
    lab = Lab(4, ShareRules(DAY))
    number = 0

    def split() -> None:
        nonlocal number
        while lab.waiting("mallory") < 20:
            number += 1
            lab.submit("mallory", HOUR, f"invented-{number}")

    honest = keep_busy(lab, {"ana": HOUR, "bob": HOUR})
    lab.run(4 * DAY, lambda: (split(), honest()))
    assert lab.part("mallory") == pytest.approx(1 / 3, abs=0.01)


def test_who_works_in_a_project_gets_no_second_share_outside_of_it():
    """Her work outside is charged for what she uses in the project, too: mallory has a
    third by the project, and others outside have as much.
    """
    lab = Lab(6, ShareRules(DAY, {"vision": ProjectShare()}))
    inside = keep_busy(lab, {"mallory": HOUR}, "vision", more=8)

    def outside() -> None:
        mine = [job for job in lab.world.view.queue if job.owner == "mallory"]
        for _ in range(8 - sum(job.project is None for job in mine)):
            lab.submit("mallory", HOUR)

    others = keep_busy(lab, {"ana": HOUR, "bob": HOUR})
    lab.run(4 * DAY, lambda: (inside(), outside(), others()))
    assert lab.part("mallory") == pytest.approx(1 / 3, abs=TOLERANCE / 2)


def test_nobody_gets_ahead_by_thousands_of_jobs():
    lab = Lab(4, ShareRules(DAY))
    for _ in range(2000):
        lab.submit("mallory", HOUR, priority=5)
    honest = keep_busy(lab, {"ana": HOUR}, more=2)
    lab.run(4 * DAY, honest)
    assert lab.part("ana") == pytest.approx(1 / 2, abs=0.02)
    assert max(lab.waited[job] for job in lab.waited if job != "job_00001") > DAY
    anas_waits = [
        lab.waited[job] for job in sorted(lab.waited)[-50:] if int(job[4:]) > 2000
    ]
    assert max(anas_waits) <= 2 * HOUR


@settings(max_examples=examples(10), deadline=None)
@given(
    after_s=st.sampled_from([60.0, 600.0, 1800.0, 3500.0]),
    one_in=st.integers(1, 3),
)
def test_nobody_gets_ahead_by_cancelling_and_resubmitting(after_s, one_in):
    """What runs is charged all the time, so a new job begins where the old one was."""
    lab = Lab(4, ShareRules(DAY))
    busy = keep_busy(lab, {"mallory": HOUR, "ana": HOUR})
    for step in range(int(4 * DAY / after_s) if after_s > 60 else 600):
        lab.run(after_s, busy)
        if step % one_in == 0:
            for job_id in lab.running("mallory"):
                rest_s = lab.end(job_id, "cancelled")
                lab.submit("mallory", max(rest_s, 60.0))
    assert lab.part("mallory") <= 1 / 2 + TOLERANCE / 2


jobs = st.tuples(
    st.sampled_from(["ana", "bob", "carl"]),
    st.sampled_from([None, "vision", "other"]),
    st.floats(0.0, 20 * HOUR),
    st.floats(60.0, 5 * HOUR),
    st.sampled_from([1, 1, 1, 2, 4]),
    st.integers(1, 5),
)


@settings(max_examples=examples(150), deadline=None)
@given(arrivals=st.lists(jobs, min_size=1, max_size=40))
def test_nobody_starves_and_no_gpu_idles_while_a_job_fits(arrivals):
    """The first job in turn that waits does not fit; with jobs of one GPU, none does.
    Every job runs in the end.
    """
    lab = Lab(4, ShareRules(DAY, {"vision": ProjectShare(2.0)}))
    is_narrow = all(gpus == 1 for *_, gpus, _ in arrivals)

    def check() -> None:
        lab.decide()
        queued = list(lab.world.view.queue)
        if queued and is_narrow:
            assert lab.idle_gpus() == 0
        if queued:
            assert lab.idle_gpus() < max(job.width for job in queued)

    for user, project, at, seconds, gpus, priority in sorted(
        arrivals, key=lambda arrival: arrival[2]
    ):
        lab.run(max(0.0, 1000.0 + at - lab.now), check)
        lab.submit(user, seconds, project, gpus=gpus, priority=priority)
        check()
    lab.run(len(arrivals) * 6 * HOUR, check)
    assert len(lab.waited) == len(arrivals)


def test_priority_and_arrival_count_only_among_ones_own():
    lab = Lab(1)
    lab.submit("ana", HOUR)
    lab.decide()
    low = lab.submit("bob", HOUR, priority=1)
    middle = lab.submit("bob", HOUR, priority=2)
    urgent = lab.submit("ana", HOUR, priority=5)
    lab.run(4 * HOUR)
    assert sorted(lab.waited, key=lambda job: lab.waited[job])[1:] == [
        middle,
        urgent,
        low,
    ]


def test_an_urgent_job_displaces_only_jobs_of_its_own_user():
    lab = Lab(1)
    running = lab.submit("ana", HOUR)
    lab.world.set_job(running, preemptible=True)
    lab.decide()
    lab.submit("bob", HOUR, priority=5)
    assert not lab.decide()


def test_what_becomes_free_at_once_is_shared():
    """Use alone would give all eight places to the one who has used a moment less."""
    lab = Lab(8)
    for user in ("ana", "bob"):
        for _ in range(8):
            lab.submit(user, HOUR)
    lab.decide()
    assert len(lab.running("ana")) == len(lab.running("bob")) == 4


def test_a_quota_holds_back_its_user_and_nobody_else():
    lab = Lab(4, quotas=Quotas({"ana": Quota(running_gpus=1)}))
    for _ in range(3):
        lab.submit("ana", HOUR)
    lab.submit("bob", HOUR)
    lab.run(HOUR / 2)
    assert (len(lab.running("ana")), len(lab.running("bob"))) == (1, 1)
    assert lab.idle_gpus() == 2
    lab.run(3 * HOUR)
    assert lab.used["ana"] == 3 * HOUR, "one after the other"


def test_model_servers_take_nothing_of_a_quota():
    lab = Lab(3, quotas=Quotas({"default": Quota(running_gpus=1)}))
    for kind in ("model", "model", "command"):
        lab.submit("ana", HOUR, kind=kind)
    lab.run(HOUR / 2)
    assert len(lab.running("ana")) == 3


def test_a_worker_waits_for_no_quota_and_counts_for_its_owner():
    lab = Lab(3, quotas=Quotas({"ana": Quota(running_gpus=1)}))
    workers = [lab.submit("ana", HOUR, kind="worker") for _ in range(2)]
    lab.decide()
    lab.submit("ana", HOUR)
    lab.run(HOUR / 2)
    assert lab.running("ana") == workers


def test_why_says_whose_share_and_how_many_come_before():
    rules = ShareRules(DAY, {"vision": ProjectShare()})
    lab = Lab(2, rules)
    for _ in range(48):
        lab.submit("ana", HOUR, "vision")
    lab.run(DAY - 1.0)
    lab.submit("ana", HOUR, "vision")
    for _ in range(3):
        lab.submit("bob", HOUR)
    mine = lab.submit("ana", HOUR, "vision")
    answer = lab.world.why(mine)
    assert answer.constraint == "share"
    assert "Ana in project vision has used 2.0 times the share due" in answer.summary
    assert "(what was used counts half after 1d0h)" in answer.summary
    assert answer.ahead == 4
    assert "before it come 4 jobs: 3 of bob, 1 of ana in project vision" in (
        answer.summary
    )


def test_why_says_how_the_organisation_stands():
    """Physics has used all, and two thirds were due to it."""
    projects = {"vision": ProjectShare(organisation="physics")}
    rules = ShareRules(DAY, projects, organisations={"physics": 2.0})
    lab = Lab(1, rules)
    for _ in range(24):
        lab.submit("ana", HOUR, "vision")
    lab.run(DAY - 1.0)
    lab.submit("bob", HOUR)
    mine = lab.submit("ana", HOUR, "vision")
    summary = lab.world.why(mine).summary
    assert "Ana in project vision has used 1.5 times the share due" in summary
    assert ", and the organisation physics 1.5 times its own; before it" in summary


def test_why_says_which_quota():
    quotas = Quotas(projects={"default": Quota(running_gpus=1)})
    lab = Lab(2, quotas=quotas)
    lab.submit("ana", HOUR, "vision")
    second = lab.submit("bob", HOUR, "vision")
    lab.decide()
    answer = lab.world.why(second)
    assert answer.constraint == "quota"
    assert answer.summary == (
        "Project vision may use 1 GPU at once (the quota running_gpus), and 1 is in use."
    )


def test_a_job_that_holds_most_of_the_cores_counts_as_most_of_the_gpus():
    """By its dominant resource: one core in four is worth one GPU in four."""
    lab = Lab(4)
    lab.world.set_node("box", "online")
    lab.submit("ana", HOUR, gpus=1, cpus=300.0)
    lab.run(HOUR)
    _, used = lab.world.view.usage.gpu_seconds(("", "ana"), lab.now)
    assert used == pytest.approx(3 * HOUR, rel=0.01)
    assert not math.isnan(used)


def test_an_estimate_stands_in_the_line_of_its_project():
    lab = Lab(2, ShareRules(DAY, {"vision": ProjectShare()}))
    for _ in range(50):
        lab.submit("ana", HOUR, "vision")
    lab.run(DAY - 1.0)
    lab.submit("bob", HOUR)
    view = lab.world.view
    shape = Shape(gpus=1, cpus=0.0).interned()
    job = LiveJob("job_99999", JobState.QUEUED, shape, 3, lab.now, project="vision")
    job.owner = "ana"
    job.party = view.usage.party("vision", "ana")
    found = estimate(view, job, lab.now, FAIR, 1.0)
    assert found.ahead == len(view.queue)
    assert "1 of bob" in found.in_the_way
    job.party = view.usage.party(None, "eve")
    job.owner = "eve"
    assert estimate(view, job, lab.now, FAIR, 1.0).ahead <= 1


def test_a_trace_is_played_by_shares():
    """Bob comes second and waits for one of ana's jobs, not for all."""
    of_ana = [TraceJob(f"a{n}", n / 10, 1, 100.0, "t", "", "ana") for n in range(9)]
    of_bob = TraceJob("b", 5.0, 1, 1.0, "t", "", "bob")
    times = simulate([*of_ana, of_bob], 1, FAIR).times
    assert times[1] == pytest.approx(96.0, abs=0.01)


def test_what_becomes_free_one_by_one_is_shared_before_anything_was_used():
    lab = Lab(1)
    # Jobs of several shapes, so that no line is empty between two starts.
    for user in ("ana", "bob"):
        for number in range(4):
            lab.submit(user, HOUR, cpus=float(number))
    lab.decide()
    for index in range(1, 4):
        lab.world.gpu("box", index)
        lab.decide()
    assert len(lab.running("ana")) == len(lab.running("bob")) == 2
