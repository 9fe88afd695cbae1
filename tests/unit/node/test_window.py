"""The claim window of a node: first come first, by key, and nothing twice."""

from gpuyard.domain import wire
from gpuyard.node.window import Window


def start(attempt_id: str, window: str = "a", gpus: tuple[str, ...] = ()) -> wire.Start:
    return wire.Start(attempt_id, 1, 1, f"job_{attempt_id}", ["true"], {}, gpu_uuids=list(gpus), window=window,
                      ahead=not gpus)  # fmt: skip


def test_the_first_of_the_key_takes_the_place_with_its_gpus():
    window = Window()
    for attempt_id, key in (("1", "a"), ("2", "b"), ("3", "a")):
        window.add(start(attempt_id, key))
    heir = window.successor(start("0", "a", ("GPU-7",)))
    assert heir and (heir.attempt_id, heir.gpu_uuids, heir.ahead) == ("1", ["GPU-7"], False)
    assert ["1" in window, "2" in window, "3" in window] == [False, True, True]
    assert window.successor(start("0", "c")) is None


def test_one_that_is_dropped_or_sent_twice_does_not_come_up_again():
    window = Window()
    for attempt_id in ("1", "2", "1"):
        window.add(start(attempt_id))
    assert window.drop("2")
    assert not window.drop("2")
    first = window.successor(start("0"))
    assert first and first.attempt_id == "1"
    assert window.successor(start("0")) is None


def test_what_was_taken_back_is_refused_until_it_is_settled():
    window = Window()
    window.add(start("1"))
    assert window.take_back("1")
    assert not window.take_back("2"), "what never waited here may still be on its way"
    assert window.refuses("1")
    assert not window.refuses("2")
    window.clear()
    assert window.refuses("1"), "a new link does not make it wanted again"
    window.forget("1")
    assert not window.refuses("1")
