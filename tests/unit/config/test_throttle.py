"""Whoever comes too often waits for its turn, and nobody else does."""

from gpuyard.config.throttle import Throttle


def test_beyond_a_burst_each_waits_for_its_turn() -> None:
    now = 100.0
    throttle = Throttle(per_s=2.0, burst=3, clock=lambda: now)
    assert [throttle.wait_s("a") for _ in range(5)] == [0.0, 0.0, 0.0, 0.5, 1.0]
    assert throttle.wait_s("b") == 0.0
    now += 1.5
    assert throttle.wait_s("a") == 0.0
    now += 1e6
    waits = [throttle.wait_s("a") for _ in range(50)]
    assert waits[:4] == [0.0, 0.0, 0.0, 0.5]
    assert waits[-1] == 1.5, "it is never kept out for long"
