"""A wall clock that somebody sets."""

import time

import pytest

from gpuyard.config.clock_jumps import ClockJumps

_YEAR_S = 365 * 86400.0


def test_a_jump_is_told_once_and_so_is_the_way_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real_time = time.time
    clock = ClockJumps()
    assert not clock.jumped()
    monkeypatch.setattr(time, "time", lambda: real_time() + _YEAR_S)
    assert clock.jumped()
    assert not clock.jumped()
    monkeypatch.undo()
    assert clock.jumped()
    monkeypatch.setattr(time, "time", lambda: real_time() + 60)
    assert not clock.jumped(), "a minute is nothing"
