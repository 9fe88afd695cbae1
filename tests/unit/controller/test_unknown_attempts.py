"""An attempt is lost when its queue has not known it for long, while it answered."""

from gpuyard.controller.unknown_attempts import LOST_AFTER_S, UnknownAttempts


class Clock:
    at = 0.0

    def __call__(self) -> float:
        return self.at


def test_only_a_queue_that_answers_loses_attempts() -> None:
    clock = Clock()
    unknown = UnknownAttempts(clock)
    assert not unknown.is_lost("one")
    clock.at += LOST_AFTER_S - 1
    assert not unknown.is_lost("one")
    # It was away for long, and does not know the attempt when it is back.
    unknown.queue_is_away(["one"])
    clock.at += 10 * LOST_AFTER_S
    assert not unknown.is_lost("one")
    clock.at += LOST_AFTER_S - 1
    assert not unknown.is_lost("one")
    clock.at += 1
    assert unknown.is_lost("one")


def test_an_attempt_that_is_known_again_is_not_lost() -> None:
    clock = Clock()
    unknown = UnknownAttempts(clock)
    unknown.is_lost("one")
    unknown.known("one")
    clock.at += LOST_AFTER_S
    assert not unknown.is_lost("one")
