"""Who is sent to an external queue, how many, and what is said of those who are not."""

from dataclasses import replace
from decimal import Decimal

import pytest

from gpuyard.domain.events import Change, EventKind, Table
from gpuyard.domain.offers import Offer
from gpuyard.domain.shape import Placement, Shape
from gpuyard.scheduler.actions import Start, Withdraw
from gpuyard.scheduler.decide import decide, undo
from gpuyard.scheduler.estimate import estimate
from gpuyard.scheduler.external_queues import (
    ExternalQueue,
    ExternalQueueTable,
    unmet_needs,
)
from gpuyard.scheduler.history import History
from gpuyard.scheduler.policy import Policy, QueueOrder
from gpuyard.scheduler.refusal import impossible
from tests.unit.scheduler.world import World

A100 = Offer("slurm/gpu/a100", "slurm", "a100", 4, cpus=64, memory_gb=512, nodes=2)


@pytest.fixture
def world() -> World:
    world = World()
    world.node("here", cpus=8, gpus=1)
    world.view.add_external_queues(
        {"slurm": ExternalQueue("slurm", max_pending=2, offers={A100.id: A100})}
    )
    return world


def offers(started) -> list[str]:
    return [places[0].offer or places[0].node_id for places in started.values()]


def test_whoever_finds_room_here_stays_and_the_next_is_sent(world):
    for _ in range(2):
        world.submit(gpus=1)
    assert offers(world.decide()) == ["here", "slurm/gpu/a100"]


def test_so_many_of_a_shape_wait_there_and_no_more(world):
    jobs = [world.submit(gpus=2) for _ in range(5)]
    assert list(world.decide(run=False)) == jobs[:2]
    assert world.decide(run=False) == {}
    assert list(world.decide(run=False)) == []
    world.run(jobs[0])
    assert list(world.decide(run=False)) == [jobs[2]], (
        "one runs now, so that another may wait"
    )
    other = world.submit(gpus=4)
    assert list(world.decide(run=False)) == [other], "each shape has its own count"
    world.end(jobs[1], state="cancelled")
    assert list(world.decide(run=False)) == [jobs[3]]


def test_who_is_held_back_here_is_behind_those_that_wait_there(world):
    first, second, last = (world.submit(gpus=2) for _ in range(3))
    world.decide(run=False)
    answer = world.why(last)
    assert (answer.constraint, answer.behind) == ("engine", (first, second))
    world.view.external_queues.by_name["slurm"].problem = "does not answer: timeout"
    assert world.why(last).behind == (), "nor would it be sent without them"


def test_what_is_only_decided_counts_as_waiting(world):
    for _ in range(3):
        world.submit(gpus=2)
    assert len(decide(world.view, world.now, world.policy).actions) == 2
    assert decide(world.view, world.now, world.policy).actions == ()


def test_an_urgent_job_is_sent_first(world):
    low = [world.submit(gpus=2, priority=1) for _ in range(2)]
    high = [world.submit(gpus=2, priority=5) for _ in range(2)]
    assert set(world.decide(run=False)) == set(high)
    assert low[0] in world.view.queue


def test_an_offer_that_had_nothing_is_asked_again_when_its_time_has_come(world):
    job = world.submit(gpus=2)
    world.view.external_queues.retry_at[A100.id] = world.now + 60
    assert world.wake_at() == world.now + 60
    assert "had nothing left" in world.why(job).summary
    world.now += 60
    assert world.decide(run=False).keys() == {job}


def test_why_an_offer_had_nothing_is_in_the_words_of_its_queue(world):
    job = world.submit(gpus=2)
    world.view.external_queues.note_no_capacity(A100.id, world.now, "exceeded quota")
    assert "had nothing left (exceeded quota); it is asked" in world.why(job).summary


def test_why_names_a_queue_that_never_told_what_it_has(world):
    queue = ExternalQueue("cluster", problem="cannot be used: may not list nodes")
    world.view.add_external_queues({"cluster": queue})
    job = world.submit(gpus=8)
    expected = "No node online can hold it, and cluster cannot be used: may not list"
    assert expected in world.why(job).summary


def test_offers_for_jobs_with_gpus_get_others_only_if_nothing_else_suits(world):
    kept = replace(A100, id="slurm/kept", for_gpu_jobs=True, price_per_hour=Decimal(1))
    free = Offer(
        "slurm/free", "slurm", cpus=32, memory_gb=64, price_per_hour=Decimal(9)
    )
    world.view.external_queues.by_name["slurm"].offers = {
        offer.id: offer for offer in (kept, free)
    }
    world.view.revision += 1
    jobs = [world.submit(cpus=cpus) for cpus in (16, 48)]
    gpu_job = world.submit(gpus=2)
    why_not = {row.name: row.reasons for row in world.why(jobs[0]).candidates}
    assert why_not["slurm/kept"] == ("is for jobs with GPUs, and others suit",)
    placed = world.decide(run=False)
    assert [placed[job][0].offer for job in (*jobs, gpu_job)] == [
        "slurm/free",
        "slurm/kept",
        "slurm/kept",
    ]


def test_nothing_is_sent_to_a_queue_in_trouble(world):
    job = world.submit(gpus=2)
    world.view.external_queues.by_name["slurm"].problem = "does not answer: timeout"
    world.view.revision += 1
    assert world.decide() == {}
    assert "slurm/gpu/a100 does not answer: timeout" in world.why(job).summary


def test_why_tells_what_the_queue_says(world):
    job = world.submit(gpus=2)
    world.decide(run=False)
    attempt = world.view.attempts[f"attempt_{job}"]
    attempt.provider = "slurm"
    attempt.provider_ref = "17"
    world.view.jobs[job].attempt_id = attempt.id
    world.view.external_queues.reasons[attempt.id] = "Priority: others come before it"
    answer = world.why(job)
    assert (
        answer.summary
        == "It waits in the queue of slurm (17): Priority: others come before it."
    )
    assert answer.constraint == "engine"


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (Shape(gpus=5), "has 4 GPUs a node, 5 needed"),
        (Shape(gpus=1, nodes=3), "has 2 nodes, 3 needed"),
        (Shape(gpus=1, gpu_class="h100"), "has a100, h100 needed"),
        (Shape(gpus=1, gpu_class="a100-80gb"), "has a100, a100-80gb needed"),
        (
            Shape(gpus=1, gpu_memory_gb=80),
            "has GPUs with 40 GB of memory, 80 GB needed",
        ),
        (Shape(gpus=1, gpu_capability="9.0"), "does not have compute capability 9.0"),
        (Shape(gpus=1, gpu_uuids=("GPU-1",)), "cannot be asked for certain GPUs"),
        (Shape(cpus=65), "has 64 cores a node, 65 needed"),
        (Shape(memory_gb=513), "has 512 GB of memory a node, 513 GB needed"),
        (Shape(image=True), "runs no containers"),
        (Shape(owned=True), "runs no jobs of this kind: they need an agent of gpuyard"),
        (Shape(provider="local"), "belongs to provider slurm; the job names local"),
        (
            Shape(providers=("kubernetes",)),
            "belongs to provider slurm, which the job does not allow",
        ),
        (Shape(workspace="default/corpus"), "has no place for workspaces"),
    ],
)
def test_what_an_offer_lacks(shape, said):
    assert unmet_needs(A100, shape) == [said]


@pytest.mark.parametrize(
    "shape",
    [
        Shape(),
        Shape(gpus=4, nodes=2),
        Shape(gpus=1, gpu_class="a100"),
        Shape(gpus=1, gpu_memory_gb=40),
        Shape(gpus=1, gpu_capability="8.0"),
        Shape(provider="slurm"),
        Shape(providers=("local", "slurm")),
    ],
)
def test_what_an_offer_has(shape):
    assert unmet_needs(A100, shape) == []


def test_what_an_offer_says_of_its_gpus_counts_before_the_catalogue():
    offer = Offer("x/y", "x", "a100", 1, gpu_memory_gb=80, price_per_hour=Decimal(2))
    assert (
        unmet_needs(offer, Shape(gpus=1, gpu_class="a100-80gb", gpu_memory_gb=80)) == []
    )
    assert unmet_needs(
        Offer("x/z", "x", "gizmo", 1), Shape(gpus=1, gpu_memory_gb=1)
    ) == ["has GPUs with an unknown amount of memory, 1 GB needed"]


def test_what_fits_nowhere_is_impossible_and_says_what_there_is(world):
    assert impossible(world.view, Shape(gpus=4)) is None
    verdict = impossible(world.view, Shape(gpus=8))
    assert (
        "here has 1 GPU, 8 needed; nothing offered can hold it: slurm/gpu/a100 has 4"
        " GPUs a node" in verdict.reason
    )
    assert (
        "on offer are: slurm/gpu/a100: 2 nodes with 4 × a100, 64 cores, 512 GB"
        in verdict.largest
    )


def test_containers_run_where_something_runs_containers(world):
    boxed = world.submit(image=True)
    assert world.decide() == {}
    world.view.add_external_queues({}, {"local": "docker"})
    assert offers(world.decide()) == ["here"]
    assert boxed in world.view.jobs


# --- taken back for a place here ---


def waiting_there(world, job: str) -> str:
    """The external queue holds it; the attempt."""
    attempt = f"attempt_{job}"
    world.record(
        Change(
            Table.ATTEMPTS,
            attempt,
            {"state": "pending", "provider": "slurm", "provider_ref": "17"},
        )
    )
    return attempt


@pytest.fixture
def full(world) -> tuple[World, str, str]:
    """One job runs on the GPU here, the next waits at Slurm: the world, and both."""
    here = world.submit(gpus=1)
    there = world.submit(gpus=1)
    world.decide(run=False)
    world.run(here)
    waiting_there(world, there)
    return world, here, there


def test_who_waits_there_is_taken_back_when_there_is_room_here(full):
    world, here, there = full
    assert decide(world.view, world.now, world.policy).actions == ()
    world.end(here)
    place = Placement("here", ("GPU-here-0",), 1.0)
    assert decide(world.view, world.now, world.policy).actions == (
        Withdraw(there, f"attempt_{there}", (place,)),
    )
    late = world.submit(gpus=1)
    assert [
        action.placements[0].offer
        for action in decide(world.view, world.now, world.policy).actions
    ] == [A100.id], "what became free is kept until Slurm has let go of it"
    world.record(
        Change(
            Table.ATTEMPTS, f"attempt_{there}", {"state": "ending", "reason": "revoked"}
        )
    )
    assert decide(world.view, world.now, world.policy).actions == ()
    world.record(
        Change(
            Table.ATTEMPTS, f"attempt_{there}", {"state": "ended", "reason": "revoked"}
        ),
        Change(Table.JOBS, there, {"state": "queued", "attempt_id": None}),
    )
    assert decide(world.view, world.now, world.policy).actions == (
        Start(there, (place,)),
    )
    assert late in world.view.tentative


def test_one_that_begins_there_meanwhile_stays_and_the_place_here_is_free(full):
    world, here, there = full
    world.end(here)
    (withdrawal,) = decide(world.view, world.now, world.policy).actions
    undo(world.view, withdrawal)
    world.run(there)
    assert decide(world.view, world.now, world.policy).actions == ()
    other = world.submit(gpus=1)
    assert world.decide()[other][0].node_id == "here"


def test_nobody_is_taken_back_in_front_of_one_that_waits_for_more_here(world):
    first = world.submit(gpus=1)
    second = world.submit(gpus=1)
    world.gpu("here", 1)
    world.decide(run=False)
    world.run(first)
    world.run(second)
    there = world.submit(gpus=1)
    world.decide(run=False)
    waiting_there(world, there)
    wide = world.submit(gpus=2, provider="local")
    world.end(first)
    assert world.decide() == {}, "one GPU is kept for the one that needs both"
    world.end(second)
    assert world.decide().keys() == {wide}


def test_nothing_is_kept_for_one_whose_queue_does_not_answer(full):
    world, here, there = full
    world.end(here)
    assert len(decide(world.view, world.now, world.policy).actions) == 1
    world.record(
        Change(
            Table.ATTEMPTS, f"attempt_{there}", {"state": "ending", "reason": "revoked"}
        )
    )
    queue = world.view.external_queues.by_name["slurm"]
    queue.problem = "does not answer"
    world.view.revision += 1
    late = world.submit(gpus=1)
    assert world.decide()[late][0].node_id == "here"


def test_one_whose_queue_does_not_answer_is_not_asked_for(full):
    world, here, _ = full
    world.view.external_queues.by_name["slurm"].problem = "does not answer"
    world.end(here)
    assert decide(world.view, world.now, world.policy).actions == ()


def test_one_that_may_only_run_there_is_left_there(world):
    here = world.submit(gpus=1)
    there = world.submit(gpus=1, provider="slurm")
    world.decide(run=False)
    world.run(here)
    waiting_there(world, there)
    world.end(here)
    assert decide(world.view, world.now, world.policy).actions == ()


def test_one_on_its_way_is_taken_back_once_it_is_there(world):
    here = world.submit(gpus=1)
    there = world.submit(gpus=1)
    world.decide(run=False)
    world.run(here)
    world.end(here)
    assert decide(world.view, world.now, world.policy).actions == ()
    attempt = waiting_there(world, there)
    assert [
        action.attempt_id
        for action in decide(world.view, world.now, world.policy).actions
    ] == [attempt]


def test_the_place_is_its_own_until_it_has_begun_there_whoever_comes_meanwhile(full):
    world, here, there = full
    world.end(here)
    (withdrawal,) = decide(world.view, world.now, world.policy).actions
    world.record(
        Change(
            Table.ATTEMPTS,
            withdrawal.attempt_id,
            {"state": "ending", "reason": "revoked"},
        )
    )
    world.view.external_queues.by_name["slurm"].max_pending = 0
    urgent = world.submit(gpus=1, priority=5)
    back = {"state": "queued", "attempt_id": None, "not_before": world.now}
    over = Change(
        Table.ATTEMPTS, withdrawal.attempt_id, {"state": "ended", "reason": "revoked"}
    )
    world.record(over, Change(Table.JOBS, there, back))
    assert [
        action.job_id for action in decide(world.view, world.now, world.policy).actions
    ] == [there]
    assert urgent in world.view.queue


def test_one_that_failed_on_its_way_back_keeps_no_place(full):
    world, here, there = full
    world.end(here)
    (withdrawal,) = decide(world.view, world.now, world.policy).actions
    back = {"state": "queued", "attempt_id": None, "not_before": world.now + 60}
    over = Change(
        Table.ATTEMPTS, withdrawal.attempt_id, {"state": "ended", "reason": "exit_code"}
    )
    world.record(over, Change(Table.JOBS, there, back))
    other = world.submit(gpus=1)
    assert world.decide()[other][0].node_id == "here"


def test_a_job_goes_where_its_workspace_was_used_last(world):
    """Two places alike: the data decides, as soon as somebody has used it in one of
    them.
    """
    alike = {
        name: Offer(
            f"{name}/gpu", name, "a100", 4, cpus=64, memory_gb=512, workspaces=True
        )
        for name in ("east", "west")
    }
    world.view.add_external_queues(
        {
            name: ExternalQueue(name, offers={offer.id: offer})
            for name, offer in alike.items()
        }
    )
    first = world.submit(gpus=2, workspace="default/corpus", provider="west")
    world.decide()
    world.record(
        Change(
            Table.ATTEMPTS,
            f"attempt_{first}",
            {"state": "ended", "ended_at": world.now + 60},
        ),
        Change(Table.JOBS, first, {"state": "completed"}),
        kind=EventKind.JOB_COMPLETED,
    )
    world.view.external_queues.history = History()
    for name in ("corpus", "other"):
        world.submit(gpus=2, workspace=f"default/{name}")
    world.decide()
    found = {
        world.view.jobs[a.job_id].shape.workspace: a.offer
        for a in world.view.attempts.values()
    }
    assert found == {"default/corpus": "west/gpu", "default/other": "east/gpu"}


# --- prompts, whose queue is the request queue of a model ---

TOY = Offer("prompts/toy", "prompts", model="toy")


@pytest.fixture
def prompts(world) -> World:
    """As `world`, with the queue of a model in which two of a priority may stand."""
    queue = ExternalQueue("prompts", max_pending=2, offers={TOY.id: TOY})
    world.view.add_external_queues({"prompts": queue})
    return world


def test_a_prompt_goes_to_its_model_and_nothing_else_does(prompts):
    prompt = prompts.submit(cpus=0.0, model="toy")
    other = prompts.submit(cpus=0.0, model="big")
    jobs = [prompts.submit(cpus=8.0) for _ in range(2)]
    started = prompts.decide(run=False)
    assert started[prompt][0].offer == "prompts/toy"
    assert other not in started
    assert started[jobs[0]][0].node_id == "here"
    assert started[jobs[1]][0].offer != "prompts/toy"


def test_where_only_models_are_to_be_had_no_other_job_is_compared_with_them(
    world, monkeypatch
):
    """There may be thousands of buckets of jobs."""
    prompts_only = {
        "prompts": ExternalQueue("prompts", offers={TOY.id: TOY}),
        "slurm": ExternalQueue("slurm"),
    }
    world.view.add_external_queues(prompts_only)
    compared: list[Shape] = []
    monkeypatch.setattr(
        ExternalQueueTable,
        "kept_ranking",
        lambda _, shape, *more: compared.append(shape) or [],
    )
    for cores in (20.0, 30.0):
        world.submit(cpus=cores)
    world.submit(cpus=0.0, model="toy")
    world.decide()
    assert compared == [Shape(cpus=0.0, model="toy")]


def test_a_job_hears_nothing_of_models_and_a_prompt_nothing_of_nodes(prompts):
    big = Offer("prompts/big", "prompts", model="big")
    queue = prompts.view.external_queues.by_name["prompts"]
    queue.offers = {TOY.id: TOY, big.id: big}
    job = prompts.submit(gpus=9)
    named = [verdict.node for verdict in prompts.why(job).candidates]
    assert named == ["here", A100.id]
    prompt = prompts.submit(cpus=0.0, model="toy", priority=1)
    live = prompts.view.jobs[prompt]
    found = estimate(prompts.view, live, prompts.now, prompts.policy, 0.0)
    assert [place.name for place in found.places] == [TOY.id, big.id]


def test_an_urgent_prompt_does_not_wait_behind_those_that_stand_in_line(prompts):
    usual = [prompts.submit(cpus=0.0, model="toy") for _ in range(3)]
    assert list(prompts.decide(run=False)) == usual[:2]
    urgent = prompts.submit(cpus=0.0, model="toy", priority=5)
    assert list(prompts.decide(run=False)) == [urgent]


def test_prompts_that_wait_hold_up_no_job_in_strict_order(prompts):
    prompts.policy = Policy(order=QueueOrder.FCFS, end_margin_s=0.0)
    for _ in range(3):
        prompts.submit(cpus=0.0, model="toy")
    job = prompts.submit(gpus=1)
    assert prompts.decide(run=False)[job][0].node_id == "here"


def test_why_a_prompt_waits_names_its_model(prompts):
    prompts.view.external_queues.by_name["prompts"].offers = {
        TOY.id: replace(TOY, problem="toy cannot be loaded: it crashes")
    }
    prompt = prompts.submit(cpus=0.0, model="toy")
    assert prompts.decide(run=False) == {}
    answer = prompts.why(prompt)
    assert answer.constraint == "model"
    assert answer.summary == (
        "It waits for the model toy: toy cannot be loaded: it crashes."
    )
