"""Attempts that were sent to this node before a place was free (prefetched).

Each takes the place of an attempt that ends, and the agent does not ask the server
first. A prefetched attempt holds no resources until it starts, and it is kept in memory
only. If the link breaks or the agent is killed, the server sends these attempts again.
The server can also withdraw one, to start it elsewhere.
"""

from msgspec.structs import replace

from gpuyard.domain import wire


class PrefetchQueue:
    """Prefetched attempts in the order they came, by the key of equal needs."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[str, wire.StartAttempt]] = {}
        self._withdrawn: set[str] = set()

    def withdraw(self, attempt_id: str) -> bool:
        """Withdraw an attempt for the server; False when it does not wait here.

        A StartAttempt of it that arrives later was sent before the withdrawal, and
        `refuses` says so until the server has settled the attempt.
        """
        waited = self.drop(attempt_id)
        if waited:
            self._withdrawn.add(attempt_id)
        return waited

    def refuses(self, attempt_id: str) -> bool:
        """True when the attempt was withdrawn."""
        return attempt_id in self._withdrawn

    def forget(self, attempt_id: str) -> None:
        """Forget a withdrawal: the server has settled the attempt."""
        self._withdrawn.discard(attempt_id)

    def add(self, start: wire.StartAttempt) -> None:
        """Keep an attempt until a place of its key is free."""
        self._waiting.setdefault(start.prefetch_group, {})[start.attempt_id] = start

    def drop(self, attempt_id: str) -> bool:
        """Remove an attempt; False when it does not wait here."""
        return any(waiting.pop(attempt_id, None) for waiting in self._waiting.values())

    def __contains__(self, attempt_id: str) -> bool:
        return any(attempt_id in waiting for waiting in self._waiting.values())

    def clear(self) -> None:
        """Remove all attempts."""
        self._waiting.clear()

    def pop_next(self, ended: wire.StartAttempt) -> wire.StartAttempt | None:
        """Remove the first attempt for the place of one that ended, and return it.

        It gets the GPUs of the ended attempt, and starts now.
        """
        waiting = self._waiting.get(ended.prefetch_group)
        if not waiting:
            return None
        first = waiting.pop(next(iter(waiting)))
        return replace(first, gpu_uuids=ended.gpu_uuids, prefetched=False)
