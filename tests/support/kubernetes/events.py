"""Events: what the components say about objects."""

from tests.support.kubernetes.kinds import BY_KIND
from tests.support.kubernetes.objects import Object, name, namespace, suffix
from tests.support.kubernetes.store import Store


class Recorder:
    """Writes events of one component; what is said again is counted.

    `new`: in the form of events.k8s.io, which has no `lastTimestamp`.
    """

    def __init__(
        self, store: Store, component: str, host: str = "", *, new: bool = False
    ) -> None:
        self._new = new
        self._store = store
        self._source = {"component": component, **({"host": host} if host else {})}
        self._said: dict[tuple[str, ...], Object] = {}

    def normal(
        self, obj: Object, reason: str, message: str, container: str = ""
    ) -> None:
        self._record("Normal", obj, reason, message, container)

    def warning(
        self, obj: Object, reason: str, message: str, container: str = ""
    ) -> None:
        self._record("Warning", obj, reason, message, container)

    def _record(
        self, kind: str, obj: Object, reason: str, message: str, container: str
    ) -> None:
        space = namespace(obj) or "default"
        involved = _reference(obj, container)
        stamp = self._store.clock.stamp()
        key = (involved["uid"], kind, reason, message)
        known = self._said.get(key)
        if known and self._store.current("events", known):
            with self._store.edit("events", known) as draft:
                self._count(draft, stamp)
            return
        self._said[key] = self._store.create(
            "events",
            {
                "metadata": {"name": f"{name(obj)}.{suffix(16)}", "namespace": space},
                "involvedObject": involved,
                "reason": reason,
                "message": message,
                "type": kind,
                **self._times(stamp),
                "reportingComponent": self._source["component"],
                "reportingInstance": self._source.get("host", ""),
            },
        )

    def _times(self, stamp: str) -> Object:
        if self._new:
            return {
                "source": {},
                "firstTimestamp": None,
                "lastTimestamp": None,
                "eventTime": self._store.clock.micro(),
            }
        return {
            "source": self._source,
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
            "eventTime": None,
        }

    def _count(self, draft: Object, stamp: str) -> None:
        if self._new:
            seen = draft.get("series", {"count": 1})["count"]
            now = self._store.clock.micro()
            draft["series"] = {"count": seen + 1, "lastObservedTime": now}
        else:
            draft |= {"count": draft["count"] + 1, "lastTimestamp": stamp}


def _reference(obj: Object, container: str) -> Object:
    kind = BY_KIND[obj["kind"]]
    space = {"namespace": namespace(obj)} if namespace(obj) else {}
    where = {"fieldPath": f"spec.containers{{{container}}}"} if container else {}
    return {
        "kind": obj["kind"],
        **space,
        "name": name(obj),
        "uid": obj["metadata"]["uid"],
        "apiVersion": kind.api_version,
        "resourceVersion": obj["metadata"]["resourceVersion"],
        **where,
    }
