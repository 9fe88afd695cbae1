"""What a request asks for, read from its path."""

from dataclasses import dataclass

from tests.support.kubernetes import errors
from tests.support.kubernetes.access import Ask
from tests.support.kubernetes.kinds import KINDS, Kind

_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}


@dataclass(frozen=True, slots=True)
class Target:
    """A collection, an object or a subresource.

    `plural` is of a kind in the store, or of a review.
    """

    group: str
    plural: str
    namespace: str = ""
    name: str = ""
    sub: str = ""

    @property
    def kind(self) -> Kind:
        """404 for what the server does not have."""
        kind = KINDS.get(self.plural)
        if (
            kind is None
            or kind.group != self.group
            or (self.namespace and not kind.namespaced)
        ):
            raise errors.no_such_path()
        return kind

    @property
    def space(self) -> str | None:
        """Where to look; None: in all namespaces."""
        return self.namespace or ("" if not self.kind.namespaced else None)

    def verb(self, method: str, watch: bool) -> str:
        if method in ("GET", "HEAD"):
            return "get" if self.name else "watch" if watch else "list"
        if method == "DELETE":
            return "delete" if self.name else "deletecollection"
        return _VERBS.get(method, method.lower())

    def ask(self, method: str, watch: bool) -> Ask:
        resource = f"{self.plural}/{self.sub}" if self.sub else self.plural
        space = self.namespace or (self.name if self.plural == "namespaces" else "")
        return Ask(self.verb(method, watch), self.group, resource, space, self.name)


def target_of(path: str) -> Target | None:
    """Of `/api/v1/…` and `/apis/GROUP/VERSION/…`; None for other paths."""
    parts = [part for part in path.split("/") if part]
    if parts[:2] == ["api", "v1"]:
        group = ""
        rest = parts[2:]
    elif parts[:1] == ["apis"] and len(parts) > 3:
        group = parts[1]
        rest = parts[3:]
    else:
        return None
    namespace = ""
    if (
        len(rest) > 2
        and rest[0] == "namespaces"
        and rest[2] not in ("status", "finalize")
    ):
        namespace = rest[1]
        rest = rest[2:]
    if not 1 <= len(rest) <= 3:
        return None
    plural, name, sub = (*rest, "", "")[:3]
    return Target(group, plural, namespace, name, sub)
