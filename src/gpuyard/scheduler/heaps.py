"""Heaps from which things can be removed that are not the least."""

import heapq
from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item", str, tuple[float, str])


class LazyHeap(Generic[Item]):
    """A set that knows its least item.

    A removed item stays in the heap until it is the least; then it is dropped.
    """

    __slots__ = ("_heap", "_items")

    def __init__(self) -> None:
        self._heap: list[Item] = []
        self._items: set[Item] = set()

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)

    def __contains__(self, item: Item) -> bool:
        return item in self._items

    def add(self, item: Item) -> None:
        """Add `item`; idempotent."""
        if item not in self._items:
            self._items.add(item)
            heapq.heappush(self._heap, item)

    def discard(self, item: Item) -> None:
        """Remove `item`; idempotent."""
        self._items.discard(item)
        # Free the memory after many removals, such as a mass cancel.
        if len(self._heap) > 2 * len(self._items) + 64:
            self._heap = list(self._items)
            heapq.heapify(self._heap)

    def first(self) -> Item | None:
        """The least item, or None."""
        while self._heap and self._heap[0] not in self._items:
            heapq.heappop(self._heap)
        return self._heap[0] if self._heap else None


class IdHeap:
    """Ids that are each added once, and the least of them. Unlike `LazyHeap`, it does
    not know what it has, because a queue may hold 100,000 jobs and knows them anyway.
    """

    __slots__ = ("_heap", "_removed")

    def __init__(self) -> None:
        self._heap: list[str] = []
        self._removed: set[str] | None = None

    def __len__(self) -> int:
        return len(self._heap) - len(self._removed or ())

    def __iter__(self) -> Iterator[str]:
        """All ids, in no order."""
        removed = self._removed or ()
        return (each for each in self._heap if each not in removed)

    def add(self, job_id: str) -> None:
        """Add an id that is not in it."""
        if self._removed and job_id in self._removed:
            self._removed.discard(job_id)  # and so it is still in the heap
            return
        heapq.heappush(self._heap, job_id)

    def remove(self, job_id: str) -> None:
        """Remove an id that is in it."""
        removed = self._removed
        if removed is None:
            removed = self._removed = set()
        removed.add(job_id)
        # Free the memory after many removals, such as a mass cancel.
        if 2 * len(removed) > len(self._heap) + 64:
            self._heap = [each for each in self._heap if each not in removed]
            heapq.heapify(self._heap)
            self._removed = None

    def first(self) -> str | None:
        """The least id, or None."""
        while self._removed and self._heap[0] in self._removed:
            self._removed.discard(heapq.heappop(self._heap))
        return self._heap[0] if self._heap else None
