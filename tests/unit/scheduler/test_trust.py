"""Places that are not trusted: what gets nothing new, for how long, what is said of it,
and what a score weighs.
"""

import pytest

from gpuyard.domain.events import Change, Table
from gpuyard.domain.offers import Offer, Strategy
from gpuyard.domain.shape import Placement, Shape
from gpuyard.domain.trust import UNVERIFIED
from gpuyard.scheduler.actions import Start, Withdraw
from gpuyard.scheduler.decide import decide
from gpuyard.scheduler.estimate import estimate
from gpuyard.scheduler.external_queues import ExternalQueue
from gpuyard.scheduler.optimiser import Need
from gpuyard.scheduler.prefetch import plan_prefetches
from gpuyard.scheduler.refusal import impossible
from gpuyard.scheduler.trust import PlaceTrust, TrustTable
from tests.unit.scheduler.test_prefetch import LOCAL, attempt, instance
from tests.unit.scheduler.world import A100_80GB, World

FIRST = "GPU-box-0"
SECOND = "GPU-box-1"
UNTIL = 2000.0
SAID = "quarantined until 1970-01-01 00:33:20 UTC: wrong answers"


@pytest.fixture
def world() -> World:
    """A node of two GPUs, at the time 1000."""
    world = World()
    world.node("box", gpus=2)
    return world


def gpus_of(started) -> list[str]:
    return [
        uuid
        for places in started.values()
        for place in places
        for uuid in place.gpu_uuids
    ]


def test_a_gpu_in_quarantine_gets_nothing_new_and_the_other_does(world):
    world.trust(f"gpu:{FIRST}", UNTIL)
    jobs = [world.submit(gpus=1) for _ in range(2)]
    started = world.decide()
    assert (list(started), gpus_of(started)) == (jobs[:1], [SECOND])
    world.end(jobs[0])
    assert gpus_of(world.decide()) == [SECOND]


def test_what_runs_there_runs_on(world):
    job = world.submit(gpus=2)
    world.decide()
    world.trust("node:box", UNTIL)
    assert world.decide() == {}
    assert world.running() == [job]
    world.end(job)
    assert world.view.nodes["box"].free.devices == world.view.nodes["box"].whole.devices


@pytest.mark.parametrize("place", [f"gpu:{FIRST}", "node:box", "local"])
def test_a_job_that_allows_it_goes_there(world, place):
    world.trust(place, UNTIL)
    world.trust(f"gpu:{SECOND}", UNTIL)
    others = world.submit(gpus=1)
    mine = world.submit(gpus=1, quarantined=True)
    started = world.decide()
    assert list(started) == [mine]
    assert world.why(others).constraint == "quarantined"


@pytest.mark.parametrize("place", ["node:box", "local"])
def test_a_node_or_a_provider_in_quarantine_takes_no_job_at_all(world, place):
    world.node("other", gpus=1, provider="elsewhere")
    world.trust(place, UNTIL)
    jobs = [world.submit(gpus=1), world.submit()]
    assert {places[0].node_id for places in world.decide().values()} == {"other"}
    assert len(world.running()) == len(jobs)


def test_containers_heed_the_provider_that_runs_them(world):
    world.view.add_external_queues({}, {"local": "docker"})
    world.trust("docker", UNTIL)
    boxed = world.submit(image=True)
    plain = world.submit()
    assert list(world.decide()) == [plain]
    assert SAID in str(world.why(boxed).candidates[0].reasons)


def test_the_scheduler_looks_again_when_the_time_has_passed(world):
    world.trust("node:box", UNTIL)
    world.trust("gpu:GPU-none", UNTIL + 500)
    job = world.submit(gpus=1)
    assert world.wake_at() == UNTIL
    world.now = UNTIL - 1
    assert world.decide() == {}
    world.now = UNTIL
    assert list(world.decide()) == [job]
    assert world.wake_at() == UNTIL + 500
    world.now = UNTIL + 500
    assert world.wake_at() is None


def test_a_clock_that_was_set_back_quarantines_again(world):
    world.trust("node:box", UNTIL)
    world.now = UNTIL
    world.decide()
    world.now = UNTIL - 10
    job = world.submit()
    assert world.decide() == {}
    assert world.why(job).constraint == "quarantined"


def test_what_is_forgotten_is_trusted_again(world):
    world.trust("node:box", UNTIL)
    job = world.submit(gpus=1)
    assert world.decide() == {}
    world.forget("node:box")
    assert list(world.decide()) == [job]


def test_a_gpu_that_comes_back_is_still_in_quarantine(world):
    world.trust(f"gpu:{FIRST}", UNTIL)
    world.trust(f"gpu:{SECOND}", UNTIL)
    world.decide()
    world.set_gpu(FIRST, node_id=None)
    world.set_gpu(FIRST, node_id="box")
    world.gpu("box", 2)
    jobs = [world.submit(gpus=1) for _ in range(2)]
    started = world.decide()
    assert (list(started), gpus_of(started)) == (jobs[:1], ["GPU-box-2"])


def test_why_names_the_quarantine_and_what_would_help(world):
    world.trust(f"gpu:{FIRST}", UNTIL)
    world.trust(f"gpu:{SECOND}", UNTIL)
    job = world.submit(gpus=1)
    world.decide()
    answer = world.why(job)
    assert answer.constraint == "quarantined"
    assert f"GPU 0 is {SAID}; GPU 1 is {SAID}" in answer.summary
    assert SAID in str(answer.candidates[0].reasons)
    assert answer.candidates[0].would_fit_empty
    assert not answer.candidates[0].fits_now
    assert f"gpuyard trust forget gpu:{FIRST}" in answer.would_help[0]
    assert any("allowed.quarantined" in text for text in answer.would_help)
    assert impossible(world.view, world.view.jobs[job].shape) is None, (
        "it may run when the time has passed"
    )


@pytest.mark.parametrize(
    ("place", "cure"), [("node:box", "node:box"), ("local", "local")]
)
def test_why_names_a_node_or_a_provider_in_quarantine(world, place, cure):
    world.trust(place, UNTIL)
    job = world.submit()
    world.decide()
    answer = world.why(job)
    assert f"box is {SAID}" in answer.summary
    assert f"gpuyard trust forget {cure}" in answer.would_help[0]


def test_a_job_in_use_of_the_rest_is_told_of_the_quarantine_too(world):
    world.trust(f"gpu:{FIRST}", UNTIL)
    world.submit(gpus=1)
    waiting = world.submit(gpus=1)
    world.decide()
    answer = world.why(waiting)
    assert answer.constraint == "capacity"
    assert any(f"trust forget gpu:{FIRST}" in text for text in answer.would_help)


def test_nobody_is_preempted_for_a_place_in_quarantine(world):
    world.node("large", gpus=1, card=A100_80GB)
    running = world.submit(gpus=1, gpu_memory_gb=80.0)
    world.set_job(running, preemptible=True)
    world.decide()
    world.trust("node:large", UNTIL)
    world.submit(priority=5, gpus=1, gpu_memory_gb=80.0)
    assert world.decide() == {}


def test_room_that_was_made_is_given_up_when_it_comes_into_quarantine(world):
    victim = world.submit(gpus=2)
    world.set_job(victim, preemptible=True)
    world.decide()
    urgent = world.submit(priority=5, gpus=1)
    decide(world.view, world.now, world.policy)
    (place,) = world.view.promises[urgent].placements
    world.trust(f"gpu:{place.gpu_uuids[0]}", UNTIL)
    world.end(victim)
    (start,) = decide(world.view, world.now, world.policy).actions
    assert isinstance(start, Start)
    assert start.placements[0].gpu_uuids == tuple(
        {FIRST, SECOND} - set(place.gpu_uuids)
    )


# --- jobs sent ahead ---


def test_nothing_is_sent_ahead_to_a_node_in_quarantine():
    world = instance(seconds=0.02)
    world.trust("node:node_a", UNTIL)
    jobs = [world.submit() for _ in range(3)]
    decide(world.view, world.now, world.policy)
    assert list(plan_prefetches(world.view, world.now, world.policy, LOCAL)) == []
    world.forget("node:node_a")
    decide(world.view, world.now, world.policy)
    assert (
        next(plan_prefetches(world.view, world.now, world.policy, LOCAL))[0].id
        == jobs[0]
    )


def test_nothing_is_sent_ahead_to_where_a_gpu_in_quarantine_may_be_the_next_to_be_free():
    world = World()
    world.node("node_a", gpus=2)
    for n in range(2):
        job = world.submit(gpus=1)
        share = attempt(job, cpus=1.0, gpu_uuids=(f"GPU-node_a-{n}",))
        world.record(
            Change(Table.ATTEMPTS, f"a_{job}", share),
            Change(Table.JOBS, job, {"state": "running"}),
        )
    for _ in range(3):
        world.view.prefetch_sites.note_duration(Shape(gpus=1), 0.02)
    ahead = world.submit(gpus=1)
    decide(world.view, world.now, world.policy)
    assert (
        next(plan_prefetches(world.view, world.now, world.policy, LOCAL))[0].id == ahead
    )
    world.trust("gpu:GPU-node_a-1", UNTIL)
    decide(world.view, world.now, world.policy)
    assert list(plan_prefetches(world.view, world.now, world.policy, LOCAL)) == []


# --- offers ---

GOOD = Offer("slurm/good", "slurm", "a100", 1, cpus=64, memory_gb=512, nodes=2)
BAD = Offer("slurm/bad", "slurm", "a100", 1, cpus=64, memory_gb=512, nodes=2)


@pytest.fixture
def cluster() -> World:
    """Nothing here, and two offers at Slurm of which `bad` comes first by its name."""
    world = World()
    world.view.add_external_queues(
        {
            "slurm": ExternalQueue(
                "slurm", offers={offer.id: offer for offer in (GOOD, BAD)}
            )
        }
    )
    return world


def test_an_offer_in_quarantine_is_sent_nothing(cluster):
    cluster.trust("slurm/bad", UNTIL)
    cluster.submit(gpus=1)
    assert [places[0].offer for places in cluster.decide(run=False).values()] == [
        "slurm/good"
    ]
    cluster.submit(gpus=1, quarantined=True)
    assert [places[0].offer for places in cluster.decide(run=False).values()] == [
        "slurm/bad"
    ]
    assert (
        cluster.view.external_queues.obstacle(BAD, Shape(), cluster.now) == f"is {SAID}"
    )


def test_a_provider_in_quarantine_is_sent_nothing_until_the_time_has_passed(cluster):
    cluster.trust("slurm", UNTIL)
    cluster.trust("slurm/good", score=1.0)
    job = cluster.submit(gpus=1)
    assert cluster.wake_at() == UNTIL
    answer = cluster.why(job)
    assert (answer.constraint, f"slurm/good is {SAID}" in answer.summary) == (
        "engine",
        True,
    )
    told = estimate(
        cluster.view, cluster.view.jobs[job], cluster.now, cluster.policy, 0.0
    )
    assert {place.reasons for place in told.places} == {(f"is {SAID}",)}
    cluster.now = UNTIL
    assert list(cluster.decide(run=False)) == [job]


def test_who_waits_at_an_offer_that_comes_into_quarantine_is_taken_back(cluster):
    job = cluster.submit(gpus=1)
    cluster.decide(run=False)
    cluster.record(
        Change(
            Table.ATTEMPTS, f"attempt_{job}", {"state": "pending", "provider": "slurm"}
        )
    )
    cluster.trust("slurm/bad", UNTIL)
    assert decide(cluster.view, cluster.now, cluster.policy).actions == (
        Withdraw(job, f"attempt_{job}", ()),
    )
    assert decide(cluster.view, cluster.now, cluster.policy).actions == ()
    cluster.record(
        Change(
            Table.ATTEMPTS, f"attempt_{job}", {"state": "ending", "reason": "revoked"}
        )
    )
    cluster.record(
        Change(
            Table.ATTEMPTS, f"attempt_{job}", {"state": "ended", "reason": "revoked"}
        ),
        Change(Table.JOBS, job, {"state": "queued", "attempt_id": None}),
    )
    place = Placement("", (), 1.0, offer="slurm/good")
    assert decide(cluster.view, cluster.now, cluster.policy).actions == (
        Start(job, (place,)),
    )


def test_who_runs_there_or_allows_it_is_left_alone(cluster):
    running = cluster.submit(gpus=1)
    allows = cluster.submit(gpus=1, quarantined=True)
    cluster.decide(run=False)
    cluster.run(running)
    cluster.record(
        Change(
            Table.ATTEMPTS,
            f"attempt_{allows}",
            {"state": "pending", "provider": "slurm"},
        )
    )
    cluster.trust("slurm", UNTIL)
    assert decide(cluster.view, cluster.now, cluster.policy).actions == ()


@pytest.mark.parametrize("strategy", list(Strategy))
def test_the_offer_that_is_trusted_less_comes_last(cluster, strategy):

    def order():
        ranked = cluster.view.external_queues.ranked_offers(
            Shape(gpus=1), Need(), strategy
        )
        return [forecast.offer.id for forecast in ranked]

    assert order() == ["slurm/bad", "slurm/good"]
    cluster.trust("slurm/good", score=1.0)
    assert order() == ["slurm/good", "slurm/bad"], "the other was never verified"
    cluster.trust("slurm/bad", score=0.9)
    cluster.trust("slurm/good", score=0.95)
    assert order() == ["slurm/good", "slurm/bad"]
    cluster.trust("slurm/good", score=0.5)
    assert order() == ["slurm/bad", "slurm/good"]


def test_what_a_score_weighs(cluster):
    """Of the attempts that do not fail anyway only its part goes well; full trust
    changes nothing, and where others have a score, having none does.
    """

    def runs():
        need = Need(3600.0)
        ranked = cluster.view.external_queues.ranked_offers(
            Shape(gpus=1), need, Strategy.COST
        )
        return {forecast.offer.id: forecast.run_s for forecast in ranked}

    fresh = runs()
    assert fresh["slurm/good"] == pytest.approx(3600 * (1 + 0.5 * 0.02 / 0.98))
    cluster.trust("slurm/good", score=1.0)
    assert runs()["slurm/good"] == pytest.approx(fresh["slurm/good"])
    unverified = 1 - 0.98 * UNVERIFIED
    assert runs()["slurm/bad"] == pytest.approx(
        3600 * (1 + 0.5 * unverified / (1 - unverified))
    )
    cluster.trust("slurm/good", score=0.5)
    failed = 1 - 0.98 * 0.5
    assert runs()["slurm/good"] == pytest.approx(
        3600 * (1 + 0.5 * failed / (1 - failed))
    )
    cluster.trust("slurm/good", score=0.0)
    assert runs()["slurm/good"] == pytest.approx(3600 * (1 + 0.5 * 0.9 / 0.1)), (
        "no worse than nine of ten lost"
    )


def test_the_offers_own_score_comes_before_its_providers():
    trust = TrustTable(
        {
            "slurm": PlaceTrust(0.2),
            "slurm/good": PlaceTrust(0.9),
            "slurm/bad": PlaceTrust(None, UNTIL),
        }
    )
    assert (trust.score(GOOD), trust.score(BAD)) == (0.9, 0.2)
    assert TrustTable().score(GOOD) is None
