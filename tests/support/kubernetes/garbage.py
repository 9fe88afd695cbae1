"""The garbage collector, the TTL controller, and the end of namespaces."""

import time

from tests.support.kubernetes.controller import Controller
from tests.support.kubernetes.deletion import (
    FOREGROUND,
    ORPHAN,
    OWNED,
    delete,
    dependents,
)
from tests.support.kubernetes.kinds import BY_KIND, KINDS
from tests.support.kubernetes.objects import Object, deleting, holds, name, uid
from tests.support.kubernetes.options import Options
from tests.support.kubernetes.store import Store


class Garbage(Controller):
    """Deletes what nobody owns any more, and carries out the policies of deletions."""

    def __init__(self, store: Store, options: Options) -> None:
        super().__init__(store)
        self._options = options
        self._finished: dict[str, float] = {}
        self._ownerless_since: dict[str, float] = {}

    def reconcile(self) -> float | None:
        wakes: list[float] = []
        for plural in OWNED:
            for obj in self.store.all(plural):
                finalizers = obj["metadata"].get("finalizers") or ()
                if deleting(obj) and ORPHAN in finalizers:
                    self._orphan(plural, obj)
                elif deleting(obj) and FOREGROUND in finalizers:
                    self._foreground(plural, obj)
                elif self._ownerless(obj):
                    now = time.monotonic()
                    since = self._ownerless_since.setdefault(uid(obj), now)
                    left = since + self._options.garbage_s - now
                    if left <= 0:
                        delete(self.store, plural, obj)
                    else:
                        wakes.append(left)
        for space in self.store.all("namespaces"):
            if deleting(space):
                self._empty(space)
        expiry = self._expire()
        wakes += [] if expiry is None else [expiry]
        return min(wakes) if wakes else None

    def _ownerless(self, obj: Object) -> bool:
        """Whether it had owners and none of them is left."""
        references: list[Object] = obj["metadata"].get("ownerReferences") or []
        if not references or deleting(obj):
            return False
        for reference in references:
            kind = BY_KIND.get(reference["kind"])
            space = obj["metadata"]["namespace"] if kind and kind.namespaced else ""
            found = (
                self.store.find(kind.plural, space, reference["name"]) if kind else obj
            )
            if found is not None and (kind is None or uid(found) == reference["uid"]):
                return False
        return True

    def _orphan(self, plural: str, obj: Object) -> None:
        for kind, child in dependents(self.store, obj):
            with self.store.edit(kind, child) as draft:
                kept = [
                    ref
                    for ref in draft["metadata"]["ownerReferences"]
                    if ref["uid"] != uid(obj)
                ]
                draft["metadata"].pop("ownerReferences")
                if kept:
                    draft["metadata"]["ownerReferences"] = kept
        self._release(plural, obj, ORPHAN)

    def _foreground(self, plural: str, obj: Object) -> None:
        children = dependents(self.store, obj)
        for kind, child in children:
            if not deleting(child):
                delete(
                    self.store,
                    kind,
                    child,
                    "Foreground" if kind == "jobs" else "Background",
                )
        if not children:
            self._release(plural, obj, FOREGROUND)

    def _release(self, plural: str, obj: Object, finalizer: str) -> None:
        with self.store.edit(plural, obj) as draft:
            draft["metadata"]["finalizers"] = [
                each for each in draft["metadata"]["finalizers"] if each != finalizer
            ]

    def _empty(self, space: Object) -> None:
        held = [
            (plural, obj)
            for plural, kind in KINDS.items()
            if kind.namespaced
            for obj in self.store.all(plural, name(space))
        ]
        for plural, obj in held:
            if not deleting(obj):
                delete(self.store, plural, obj)
        if not held:
            self._release("namespaces", space, "kubernetes")

    def _expire(self) -> float | None:
        """`ttlSecondsAfterFinished`."""
        wakes: list[float] = []
        now = time.monotonic()
        for job in self.store.all("jobs"):
            limit = job["spec"].get("ttlSecondsAfterFinished")
            if (
                limit is None
                or deleting(job)
                or not (holds(job, "Complete") or holds(job, "Failed"))
            ):
                continue
            left = self._finished.setdefault(uid(job), now) + limit - now
            if left <= 0:
                delete(self.store, "jobs", job, "Foreground")
            else:
                wakes.append(left)
        return min(wakes) if wakes else None
