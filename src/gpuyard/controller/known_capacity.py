"""What a server that has just started has heard of: its first node, and the offers of
each external queue. Before that it cannot say what fits nowhere.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

# An agent needs a second or two to join, and more where the driver tells slowly of its
# GPUs. A listing may wait for that.
_LISTING_S = 20.0
# Submissions wait less: a provider may hang.
_SUBMISSION_S = 5.0


class KnownCapacity:
    """Waits end so many seconds after the start of the server, whatever is missing.

    `external_queues` names those that there are; it is asked when a node has joined.
    """

    def __init__(self, external_queues: Callable[[], Iterable[str]]) -> None:
        self._external_queues = external_queues
        self._heard = set[str]()
        self._started_at = time.monotonic()
        self._has_node = asyncio.Event()
        self._is_complete = asyncio.Event()

    def node_joined(self) -> None:
        """A node has connected."""
        self._has_node.set()
        self._check()

    def heard_from(self, name: str) -> None:
        """An external queue has named its offers, or does not answer."""
        self._heard.add(name)
        self._check()

    def _check(self) -> None:
        has_node = self._has_node.is_set()
        if has_node and self._heard.issuperset(self._external_queues()):
            self._is_complete.set()

    async def until_node(self) -> None:
        """Wait for the first node."""
        await self._wait(self._has_node, _LISTING_S)

    async def until_complete(self) -> None:
        """Wait for the first node and the external queues."""
        await self._wait(self._is_complete, _SUBMISSION_S)

    async def _wait(self, event: asyncio.Event, limit_s: float) -> None:
        left_s = self._started_at + limit_s - time.monotonic()
        if event.is_set() or left_s <= 0:
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), left_s)
