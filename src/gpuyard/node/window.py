"""The claim window: attempts sent ahead, each to take the place of one that ends, without asking the server first.

An entry holds nothing of the node until its turn comes; it is in memory alone. The server sends anew what a broken link
or a killed agent lost, and takes back what it would rather start elsewhere.
"""

from msgspec.structs import replace

from gpuyard.domain import wire


class Window:
    """Starts that wait, in the order they came, by the key that equal needs share."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[str, wire.Start]] = {}
        self._taken_back: set[str] = set()

    def take_back(self, attempt_id: str) -> bool:
        """Take an attempt out for good, because its server wants it elsewhere; False when it does not wait here.

        Until the server has settled that, a Start of the same attempt is one it sent before.
        """
        waited = self.drop(attempt_id)
        if waited:
            self._taken_back.add(attempt_id)
        return waited

    def refuses(self, attempt_id: str) -> bool:
        """Was it taken back?"""
        return attempt_id in self._taken_back

    def forget(self, attempt_id: str) -> None:
        """The server has settled it: no Start of it will come any more."""
        self._taken_back.discard(attempt_id)

    def add(self, start: wire.Start) -> None:
        """Let an attempt wait for a place of its key."""
        self._waiting.setdefault(start.window, {})[start.attempt_id] = start

    def drop(self, attempt_id: str) -> bool:
        """Take an attempt out; False when it does not wait here."""
        return any(waiting.pop(attempt_id, None) for waiting in self._waiting.values())

    def __contains__(self, attempt_id: str) -> bool:
        return any(attempt_id in waiting for waiting in self._waiting.values())

    def clear(self) -> None:
        """Let nobody wait any more."""
        self._waiting.clear()

    def successor(self, ended: wire.Start) -> wire.Start | None:
        """The first in line for the place of an attempt that is over, as the Start that it now is."""
        waiting = self._waiting.get(ended.window)
        if not waiting:
            return None
        first = waiting.pop(next(iter(waiting)))
        return replace(first, gpu_uuids=ended.gpu_uuids, ahead=False)
