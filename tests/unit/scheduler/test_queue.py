import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.domain.shape import Shape
from gpuyard.domain.states import JobState
from gpuyard.scheduler.heaps import IdHeap, LazyHeap
from gpuyard.scheduler.jobs import LiveJob
from gpuyard.scheduler.learning import ENOUGH, Learning
from gpuyard.scheduler.policy import Policy
from gpuyard.scheduler.queue import AT_ONCE, Queue, bucket_of
from gpuyard.scheduler.ranking import Ranking

ONE = Shape(gpus=1).interned()
TWO = Shape(gpus=2).interned()
NEVER = math.inf


def ranking(ageing_s: float = NEVER) -> Ranking:
    return Ranking(Policy(ageing_s=ageing_s), Learning())


def effective(item: LiveJob, now: float, ageing_s: float) -> int:
    return ranking(ageing_s).effective_priority(item, now)


def job(
    number: int, priority: int = 3, shape: Shape = ONE, created_at: float = 0.0
) -> LiveJob:
    return LiveJob(f"job_{number:03d}", JobState.QUEUED, shape, priority, created_at)


def filled(*jobs: LiveJob) -> Queue:
    queue = Queue()
    for item in jobs:
        queue.add(item)
    return queue


def drained(queue: Queue, now: float = 0.0, ageing_s: float = NEVER) -> list[str]:
    """The order in which everything would start if all fitted."""
    order = []
    for head in queue.heads(ranking(ageing_s), now):
        order.append(head.id)
        queue.remove(head.id)
    return order


def test_prompts_are_counted_by_their_model():
    prompt = job(1, shape=Shape.of_prompt("a"))
    queue = filled(prompt, prompt, job(2, shape=Shape.of_prompt("b")), job(3))
    assert queue.prompts == {"a": 1, "b": 1}
    queue.remove(prompt.id)
    queue.remove(prompt.id)
    assert queue.prompts["a"] == 0


def test_more_urgent_first_then_submission_order():
    queue = filled(
        job(1, 1), job(2, 5), job(3, 3), job(4, 5, TWO), job(5, 3, TWO), job(6, 5)
    )
    assert drained(queue) == [
        "job_002",
        "job_004",
        "job_006",
        "job_003",
        "job_005",
        "job_001",
    ]


def test_a_head_left_standing_ends_its_bucket():
    queue = filled(job(1), job(2), job(3, shape=TWO), job(4, 5))
    assert [head.id for head in queue.heads(ranking(), 0.0)] == [
        "job_004",
        "job_001",
        "job_003",
    ]
    assert len(queue) == 4


def test_a_requeued_job_keeps_its_place():
    queue = filled(job(1), job(2), job(3))
    queue.remove("job_001")
    queue.remove("job_002")
    queue.add(job(2))
    queue.add(job(1))
    assert drained(queue) == ["job_001", "job_002", "job_003"]


def test_removing_twice_or_what_is_not_there_is_harmless():
    queue = filled(job(1), job(2))
    queue.remove("job_001")
    queue.remove("job_001")
    queue.remove("job_999")
    assert len(queue) == 1
    assert "job_001" not in queue
    assert "job_002" in queue
    assert drained(queue) == ["job_002"]
    assert not queue._buckets, "an empty bucket must not be looked at for ever"


def test_ageing_lifts_the_old_above_the_urgent_newcomer():
    old = job(1, priority=1, created_at=0)
    fresh = job(2, priority=5, created_at=395)
    queue = filled(old, fresh)
    assert next(queue.heads(ranking(100), 399)) is fresh
    # Both at 5 now, and the older is first.
    assert next(queue.heads(ranking(100), 400)) is old
    assert ranking(100).of(old, 500) == (-6, 0.0, old.id)


def test_ageing_stops_one_above_the_most_urgent():
    assert effective(job(1, 1, created_at=0), 10_000, 100) == 6
    assert effective(job(1, 5, created_at=0), 10_000, 100) == 6
    assert ranking(100).next_ageing(job(1, 5, created_at=0), 100) is None


def test_a_clock_that_stepped_back_makes_nobody_younger_than_new():
    assert effective(job(1, 3, created_at=500), 0, 100) == 3


@given(st.floats(0, 2e9), st.floats(1e-3, 1e7), st.integers(1, 5), st.integers(0, 5))
def test_the_named_crossing_is_one(created_at, ageing_s, priority, steps):
    """At the time `next_ageing` names the priority has risen, or a caller that wakes
    then would wake for ever.
    """
    waiting = job(1, priority, created_at=created_at)
    now = created_at + steps * ageing_s
    crossing = ranking(ageing_s).next_ageing(waiting, now)
    if crossing is not None and crossing > now:
        assert ranking(ageing_s).of(waiting, crossing) < ranking(ageing_s).of(
            waiting, now
        )


def test_position_counts_the_whole_order():
    queue = filled(job(1, 1), job(2, 5), job(3, 3), job(4, 3, TWO))
    assert [queue.position(f"job_00{n}", ranking(), 0.0) for n in (2, 3, 4, 1)] == [
        1,
        2,
        3,
        4,
    ]
    assert queue.position("job_999", ranking(), 0.0) is None


class Counting(Ranking):
    """Notes each job that is ranked."""

    def __init__(self) -> None:
        super().__init__(Policy(ageing_s=100.0), Learning())
        self.ranked: list[str] = []

    def of(self, job: LiveJob, now: float) -> tuple[int, float, str]:
        self.ranked.append(job.id)
        return super().of(job, now)


def test_only_buckets_that_changed_are_ranked_anew():
    counting = Counting()
    queue = filled(
        *(
            job(number, 1 + number % 5, ONE if number % 3 else TWO)
            for number in range(2000)
        )
    )
    queue.refresh(counting, 0.0)
    assert len(counting.ranked) == len(queue.ranked) == 10
    counting.ranked.clear()
    queue.refresh(counting, 1.0)
    queue.add(job(2000))
    queue.remove("job_003")
    assert not counting.ranked
    queue.refresh(counting, 2.0)
    assert counting.ranked == ["job_018"], "the one that is now first in its bucket"


def test_what_is_learned_of_all_jobs_ranks_them_anew_a_few_at_a_time():
    queue = Queue()
    learning = Learning()
    for number in range(1000):
        queue.add(job(number, shape=Shape(cpus=1.0 + number)))
    queue.refresh(Ranking(Policy(), learning), 0.0)
    assert not queue.has_outdated
    for _ in range(ENOUGH):
        learning.add("", 1, 60.0)
    ranking = Ranking(Policy(), learning)
    refreshes = 0
    queue.refresh(ranking, 1.0)
    while queue.has_outdated:
        assert not queue.retry_all or not refreshes
        queue.mark_seen()
        queue.refresh(ranking, 1.0)
        refreshes += 1
    assert refreshes == 1000 // AT_ONCE - 1
    assert queue.ranked == sorted(
        (ranking.of(head, 1.0), bucket_of(head)) for head in queue
    )
    assert queue.retry_all, (
        "who was passed over before may have a chance in the new order"
    )


@given(
    st.lists(
        st.tuples(st.sampled_from(["add", "remove", "later"]), st.integers(0, 30)),
        max_size=60,
    )
)
def test_the_line_is_what_ranking_all_heads_gives(steps):
    queue = Queue()
    now = 0.0
    for what, number in steps:
        if what == "add" and f"job_{number:03d}" not in queue:
            queue.add(
                job(number, 1 + number % 5, ONE if number % 3 else TWO, created_at=now)
            )
        elif what == "remove":
            queue.remove(f"job_{number:03d}")
        else:
            now += number
        queue.refresh(ranking(50.0), now)
        assert [rank[-1] for rank, _ in queue.ranked] == [
            head.id for head in queue.heads(ranking(50.0), now)
        ]


@pytest.mark.parametrize("removed", [0, 500, 990])
def test_the_heap_gives_memory_back(removed):
    heap: LazyHeap[str] = LazyHeap()
    for number in range(1000):
        heap.add(f"{number:04d}")
    for number in range(1000 - removed, 1000):
        heap.discard(f"{number:04d}")
    assert len(heap) == 1000 - removed
    assert len(heap._heap) <= 2 * len(heap) + 64


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20)), max_size=300))
def test_the_heap_is_a_set_that_knows_its_least(steps):
    heap: LazyHeap[str] = LazyHeap()
    model = set()
    for put, number in steps:
        (heap.add if put else heap.discard)(f"{number:02d}")
        (model.add if put else model.discard)(f"{number:02d}")
        assert heap.first() == min(model, default=None)
        assert set(heap) == model


@given(st.lists(st.integers(0, 20), max_size=300))
def test_the_heap_of_ids_knows_its_least(steps):
    heap = IdHeap()
    model = set()
    for number in steps:
        job_id = f"{number:02d}"
        if job_id in model:
            heap.remove(job_id)
            model.discard(job_id)
        else:
            heap.add(job_id)
            model.add(job_id)
        assert heap.first() == min(model, default=None)
        assert len(heap) == len(model)


def test_the_heap_of_ids_gives_memory_back():
    heap = IdHeap()
    for number in range(1000):
        heap.add(f"{number:04d}")
    for number in range(10, 1000):
        heap.remove(f"{number:04d}")
    assert len(heap) == 10
    assert len(heap._heap) <= 2 * len(heap) + 64
