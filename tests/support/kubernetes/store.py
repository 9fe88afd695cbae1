"""The memory of the cluster: objects, resource versions, and a window of the history
for watches.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from tests.support.kubernetes import errors
from tests.support.kubernetes.clock import Clock, seconds
from tests.support.kubernetes.kinds import KINDS
from tests.support.kubernetes.objects import (
    Object,
    clone,
    name,
    namespace,
    new_uid,
    suffix,
    uid,
)


@dataclass(frozen=True, slots=True)
class Change:
    """ADDED, MODIFIED or DELETED; `old` is what it was before."""

    kind: str
    plural: str
    obj: Object
    old: Object | None
    version: int


class Store:
    """Used on the cluster's event loop only.

    What it returns belongs to it: change a copy, or use `edit`.
    """

    def __init__(self, clock: Clock, window: int) -> None:
        self.clock = clock
        self.version = 1000
        self.forgotten = 1000
        self._window = window
        self._objects: dict[str, dict[tuple[str, str], Object]] = {
            plural: {} for plural in KINDS
        }
        self._history: deque[Change] = deque()
        self._listeners: set[asyncio.Queue[Change | None]] = set()
        self._pulse = asyncio.Event()

    def find(self, plural: str, space: str, called: str) -> Object | None:
        """The object, or None."""
        return self._objects[plural].get((space, called))

    def get(self, plural: str, space: str, called: str) -> Object:
        """The object; 404."""
        found = self.find(plural, space, called)
        if found is None:
            raise errors.not_found(KINDS[plural], called)
        return found

    def current(self, plural: str, obj: Object) -> Object | None:
        """What became of this very object."""
        found = self.find(plural, namespace(obj), name(obj))
        return found if found is not None and uid(found) == uid(obj) else None

    def all(self, plural: str, space: str | None = None) -> list[Object]:
        """All of a kind, by namespace and name."""
        objects = self._objects[plural]
        return [
            objects[key] for key in sorted(objects) if space is None or key[0] == space
        ]

    def by_age(self, plural: str) -> list[Object]:
        """All of a kind, oldest first."""
        return [*self._objects[plural].values()]

    def create(self, plural: str, obj: Object) -> Object:
        """Put a new one in, which belongs to the store from now on; 409."""
        kind = KINDS[plural]
        meta = obj["metadata"]
        if not meta.get("name"):
            meta["name"] = meta["generateName"] + suffix()
        key = (meta.get("namespace", ""), meta["name"])
        if key in self._objects[plural]:
            raise errors.already_exists(kind, meta["name"])
        obj |= {"apiVersion": kind.api_version, "kind": kind.kind}
        meta.setdefault("uid", new_uid())
        meta["creationTimestamp"] = self.clock.stamp()
        self._write("ADDED", plural, obj, None)
        return obj

    def update(self, plural: str, draft: Object) -> Object:
        """Put a changed copy in.

        One that says the same changes nothing; 404, and 409 for a version of the past.
        """
        old = self.get(plural, namespace(draft), name(draft))
        if draft["metadata"].get("resourceVersion") not in (
            None,
            "",
            old["metadata"]["resourceVersion"],
        ):
            raise errors.conflict(KINDS[plural], name(draft))
        draft["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
        if draft == old:
            return old
        meta = draft["metadata"]
        if (
            meta.get("deletionTimestamp")
            and not meta.get("finalizers")
            and not meta.get("deletionGracePeriodSeconds")
        ):
            return self._remove(plural, draft, old)
        self._write("MODIFIED", plural, draft, old)
        return draft

    @contextmanager
    def edit(self, plural: str, obj: Object) -> Iterator[Object]:
        """A copy of what `obj` is now, put in at the end; when it is gone, what is
        written is lost.
        """
        found = self.current(plural, obj)
        draft: Object = clone(found or obj)
        yield draft
        if found is not None:
            self.update(plural, draft)

    def finish(self, plural: str, obj: Object) -> None:
        """Let go of what waits to be deleted, now that nothing runs of it any more.

        Finalizers hold it still.
        """
        found = self.current(plural, obj)
        if found is None:
            return
        if not found["metadata"].get("finalizers"):
            self._remove(plural, clone(found), found)
            return
        with self.edit(plural, obj) as draft:
            meta = draft["metadata"]
            grace_s = meta.get("deletionGracePeriodSeconds") or 0
            stamp = meta.setdefault("deletionTimestamp", self.clock.stamp())
            meta["deletionTimestamp"] = self.clock.stamp(seconds(stamp) - grace_s)
            meta["deletionGracePeriodSeconds"] = 0

    def _remove(self, plural: str, draft: Object, old: Object) -> Object:
        del self._objects[plural][(namespace(old), name(old))]
        self._publish("DELETED", plural, draft, old)
        return draft

    def _write(self, kind: str, plural: str, obj: Object, old: Object | None) -> None:
        self._objects[plural][(namespace(obj), name(obj))] = obj
        self._publish(kind, plural, obj, old)

    def _publish(self, kind: str, plural: str, obj: Object, old: Object | None) -> None:
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        change = Change(kind, plural, obj, old, self.version)
        self._history.append(change)
        if len(self._history) > self._window:
            self.forgotten = self._history.popleft().version
        for queue in self._listeners:
            queue.put_nowait(change)
        self._pulse.set()
        self._pulse = asyncio.Event()

    def forget(self) -> None:
        """Compact: every version so far is too old to go on from."""
        self._history.clear()
        self.forgotten = self.version = self.version + 1

    async def changed(self, version: int, within_s: float | None = None) -> None:
        """Wait until there is a later version than this, or for so long."""
        if self.version == version:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._pulse.wait(), within_s)

    def listen(self, plural: str, since: int) -> asyncio.Queue[Change | None]:
        """All changes after a version, of every kind from now on; None: the server ends
        the watch. `stop_listening` ends it.
        """
        queue: asyncio.Queue[Change | None] = asyncio.Queue()
        for change in self._history:
            if change.version > since and change.plural == plural:
                queue.put_nowait(change)
        self._listeners.add(queue)
        return queue

    def stop_listening(self, queue: asyncio.Queue[Change | None]) -> None:
        """Put no more changes into a queue of `listen`."""
        self._listeners.discard(queue)

    def end_watches(self) -> None:
        for queue in self._listeners:
            queue.put_nowait(None)
