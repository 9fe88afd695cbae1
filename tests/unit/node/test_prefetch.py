"""The prefetched attempts of a node: first come first, by key, and nothing twice."""

from gpuyard.domain import wire
from gpuyard.node.prefetch import PrefetchQueue


def start(
    attempt_id: str, key: str = "a", gpus: tuple[str, ...] = ()
) -> wire.StartAttempt:
    return wire.StartAttempt(
        attempt_id,
        1,
        1,
        f"job_{attempt_id}",
        ["true"],
        {},
        gpu_uuids=list(gpus),
        prefetch_group=key,
        prefetched=not gpus,
    )


def test_the_first_of_the_key_takes_the_place_with_its_gpus():
    queue = PrefetchQueue()
    for attempt_id, key in (("1", "a"), ("2", "b"), ("3", "a")):
        queue.add(start(attempt_id, key))
    following = queue.pop_next(start("0", "a", ("GPU-7",)))
    assert following and (
        following.attempt_id,
        following.gpu_uuids,
        following.prefetched,
    ) == (
        "1",
        ["GPU-7"],
        False,
    )
    assert ["1" in queue, "2" in queue, "3" in queue] == [False, True, True]
    assert queue.pop_next(start("0", "c")) is None


def test_one_that_is_dropped_or_sent_twice_does_not_come_up_again():
    queue = PrefetchQueue()
    for attempt_id in ("1", "2", "1"):
        queue.add(start(attempt_id))
    assert queue.drop("2")
    assert not queue.drop("2")
    first = queue.pop_next(start("0"))
    assert first and first.attempt_id == "1"
    assert queue.pop_next(start("0")) is None


def test_what_was_taken_back_is_refused_until_it_is_settled():
    queue = PrefetchQueue()
    queue.add(start("1"))
    assert queue.withdraw("1")
    assert not queue.withdraw("2"), "what never waited here may still be on its way"
    assert queue.refuses("1")
    assert not queue.refuses("2")
    queue.clear()
    assert queue.refuses("1"), "a new link does not make it wanted again"
    queue.forget("1")
    assert not queue.refuses("1")
