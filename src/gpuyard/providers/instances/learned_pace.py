"""How fast to ask a cloud that refuses calls which come too fast.

No cloud says how many calls it takes, and others use the same account. So the pace is
learned: when the cloud refuses a call, it is at its limit, and what it has accepted in
the last seconds is that limit.
"""

from collections import deque

_WINDOW_S = 2.0
_SHORTEST_WINDOW_S = 0.25
_SLOWEST = 0.5  # calls per second
# Below what the cloud has accepted, so that it recovers.
_BELOW = 0.95
# And what at least is kept of the pace before.
_KEPT = 0.85
# The first refusal says little about the limit, so the pace doubles each second. Later
# ones say where it is: the pace grows slowly, and faster when none comes for a while.
_FIRST_GROWTH = 2.0  # per second
_SLOW_GROWTH_S = 4.0
_SLOW_GROWTH = 1.03  # per second
_FAST_GROWTH = 1.25  # per second
# A pace that has grown for so long limits nothing.
_FORGOTTEN_S = 60.0


class LearnedPace:
    """The pace of one kind of call. All times are in seconds of one monotonic clock.

    Until the first refusal, calls need not wait.
    """

    def __init__(self) -> None:
        self._accepted: deque[float] = deque()
        self._began_at: float | None = None
        self._refused_at: float | None = None
        self._is_known = False
        self._limit = 0.0
        self._next_at = 0.0

    def wait_s(self, now: float) -> float:
        """How long the next call has to wait; ask again after that."""
        return max(0.0, self._next_at - now)

    def sent(self, now: float) -> None:
        """A call is being sent."""
        if self._began_at is None:
            self._began_at = now
        rate = self.rate(now)
        self._next_at = now + 1 / rate if rate else now

    def rate(self, now: float) -> float | None:
        """Calls per second; None without a limit."""
        if self._refused_at is None:
            return None
        calm_s = max(0.0, now - self._refused_at)
        if calm_s > _FORGOTTEN_S:
            return None
        if not self._is_known:
            return self._limit * _FIRST_GROWTH**calm_s
        slow_s = min(calm_s, _SLOW_GROWTH_S)
        return self._limit * _SLOW_GROWTH**slow_s * _FAST_GROWTH ** (calm_s - slow_s)

    def accepted(self, now: float) -> None:
        """The cloud has accepted a call."""
        self._accepted.append(now)
        self._forget_old(now)

    def refused(self, now: float, sent_at: float) -> None:
        """The cloud has refused a call, because calls come too fast."""
        self._forget_old(now)
        if self._refused_at is not None:
            if sent_at <= self._refused_at:
                return  # sent before the pace was set
            self._is_known = True
        measured = len(self._accepted) / self._window_s(now)
        kept = _KEPT * (self.rate(now) or 0.0)
        self._limit = max(_SLOWEST, _BELOW * measured, kept)
        self._refused_at = now
        self._next_at = now + 1 / self._limit

    def _window_s(self, now: float) -> float:
        began = now if self._began_at is None else self._began_at
        return min(_WINDOW_S, max(_SHORTEST_WINDOW_S, now - began))

    def _forget_old(self, now: float) -> None:
        while self._accepted and self._accepted[0] <= now - _WINDOW_S:
            self._accepted.popleft()
