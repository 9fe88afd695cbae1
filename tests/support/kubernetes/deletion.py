"""Deleting: graceful for pods, with or without what an object owns, held up by
finalizers.
"""

from tests.support.kubernetes.clock import seconds
from tests.support.kubernetes.objects import Object, clone, deleting, ended, uid
from tests.support.kubernetes.store import Store

OWNED = ("pods", "jobs", "secrets", "configmaps", "services", "persistentvolumeclaims")
FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"
_FINALIZERS = {"Foreground": FOREGROUND, "Orphan": ORPHAN}


def delete(
    store: Store,
    plural: str,
    obj: Object,
    policy: str = "Background",
    grace_s: int | None = None,
) -> Object:
    """Begin to delete it.

    Returns it as it is then, or as it was last when it is gone.
    """
    current = store.current(plural, obj)
    if current is None:
        return obj
    draft = clone(current)
    meta = draft["metadata"]
    if policy in _FINALIZERS and _FINALIZERS[policy] not in meta.get("finalizers", ()):
        meta.setdefault("finalizers", []).append(_FINALIZERS[policy])
    grace = _grace(current, grace_s) if plural == "pods" else None
    if plural == "namespaces" and not deleting(current):
        meta.setdefault("finalizers", []).append("kubernetes")
        draft["status"] = {"phase": "Terminating"}
    if grace is not None and deleting(current):
        grace = min(grace, meta.get("deletionGracePeriodSeconds") or 0)
    if deleting(current) and grace is not None:
        shorten(store, meta, grace)
    if not deleting(current):
        meta["deletionTimestamp"] = store.clock.stamp(store.clock.now() + (grace or 0))
    if grace is not None:
        meta["deletionGracePeriodSeconds"] = grace
    elif not deleting(current):
        meta["deletionGracePeriodSeconds"] = 0
    return store.update(plural, draft)


def shorten(store: Store, meta: Object, grace_s: int) -> None:
    """What is deleted already gets less grace: counted from the first deletion."""
    saved_s = (meta.get("deletionGracePeriodSeconds") or 0) - grace_s
    leaves_at = seconds(meta["deletionTimestamp"]) - saved_s
    meta["deletionTimestamp"] = store.clock.stamp(leaves_at)


def _grace(pod: Object, wanted: int | None) -> int:
    """What runs nowhere, or no more, goes at once."""
    if ended(pod) or not pod["spec"].get("nodeName"):
        return 0
    return (
        pod["spec"].get("terminationGracePeriodSeconds", 30)
        if wanted is None
        else max(0, wanted)
    )


def dependents(store: Store, obj: Object) -> list[tuple[str, Object]]:
    """What names it as an owner: the plural of its kind, and it."""
    return [
        (plural, each)
        for plural in OWNED
        for each in store.all(plural)
        if any(
            ref["uid"] == uid(obj)
            for ref in each["metadata"].get("ownerReferences") or ()
        )
    ]
