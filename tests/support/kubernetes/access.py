"""Who may do what: bearer tokens and their rules."""

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.support.kubernetes.errors import ApiError, unauthorized
from tests.support.kubernetes.objects import Object

ALL = ("*",)


@dataclass(frozen=True, slots=True)
class Rule:
    """As in a Role; `namespaces` and `names` empty: all of them."""

    groups: tuple[str, ...] = ALL
    resources: tuple[str, ...] = ALL
    verbs: tuple[str, ...] = ALL
    namespaces: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    def allows(self, ask: "Ask") -> bool:
        return (
            _has(self.verbs, ask.verb)
            and _has(self.groups, ask.group)
            and (_has(self.resources, ask.resource) or self._subresource(ask.resource))
            and (not self.namespaces or ask.namespace in self.namespaces)
            and (not self.names or ask.name in self.names)
        )

    def _subresource(self, resource: str) -> bool:
        _, slash, last = resource.partition("/")
        return bool(slash) and f"*/{last}" in self.resources


def _has(allowed: Iterable[str], value: str) -> bool:
    return "*" in allowed or value in allowed


@dataclass(frozen=True, slots=True)
class Ask:
    """One thing somebody wants to do.

    `resource` names the subresource too: `pods/log`.
    """

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""

    def refused(self, user: str) -> ApiError:
        plural, _, _ = self.resource.partition("/")
        qualified = f"{plural}.{self.group}" if self.group else plural
        named = f'{qualified} "{self.name}"' if self.name else qualified
        where = (
            f'in the namespace "{self.namespace}"'
            if self.namespace
            else "at the cluster scope"
        )
        group = {"group": self.group} if self.group else {}
        name = {"name": self.name} if self.name else {}
        why = (
            f'User "{user}" cannot {self.verb} resource "{self.resource}" in API group'
            f' "{self.group}" {where}'
        )
        return ApiError(
            403,
            "Forbidden",
            f"{named} is forbidden: {why}",
            {**name, **group, "kind": plural},
        )


@dataclass
class _Holder:
    user: str
    rules: tuple[Rule, ...]
    expired: bool = False


@dataclass
class Access:
    """All tokens of the cluster. `refused`: how many requests had none that is good."""

    refused: int = 0
    _holders: dict[str, _Holder] = field(default_factory=dict[str, _Holder])

    def issue(self, user: str, rules: Iterable[Rule]) -> str:
        """A new token."""
        token = secrets.token_urlsafe(24)
        self._holders[token] = _Holder(user, tuple(rules))
        return token

    def expire(self, token: str) -> None:
        self._holders[token].expired = True

    def user(self, header: str | None) -> str:
        """The token that an Authorization header carries; 401."""
        word, _, token = (header or "").partition(" ")
        holder = self._holders.get(token.strip())
        if word.lower() != "bearer" or holder is None or holder.expired:
            self.refused += 1
            raise unauthorized()
        return token.strip()

    def allows(self, token: str, ask: Ask) -> bool:
        return any(rule.allows(ask) for rule in self._holders[token].rules)

    def check(self, token: str, ask: Ask) -> None:
        """403 for what no rule allows."""
        if not self.allows(token, ask):
            raise ask.refused(self._holders[token].user)


def rules_of(manifest: Path | str | Mapping[str, Any], namespace: str) -> list[Rule]:
    """The rules of the Roles and ClusterRoles in a manifest.

    Where it has bindings, only what they bind, and where.
    """
    if isinstance(manifest, Mapping):
        documents: list[Object] = [dict(manifest)]
    else:
        documents = [
            each for each in yaml.safe_load_all(Path(manifest).read_text()) if each
        ]
    roles = {
        (each["kind"], each["metadata"]["name"]): each
        for each in documents
        if each["kind"].endswith("Role")
    }
    bindings = [each for each in documents if each["kind"].endswith("RoleBinding")]
    bound = [
        (roles[(each["roleRef"]["kind"], each["roleRef"]["name"])], each)
        for each in bindings
        if (each["roleRef"]["kind"], each["roleRef"]["name"]) in roles
    ]
    pairs = bound if bindings else [(role, role) for role in roles.values()]
    return [
        rule
        for role, place in pairs
        for rule in _rules(role, _spaces(place, namespace))
    ]


def _spaces(place: Object, namespace: str) -> tuple[str, ...]:
    if place["kind"].startswith("Cluster"):
        return ()
    return (place["metadata"].get("namespace") or namespace,)


def _rules(role: Object, namespaces: tuple[str, ...]) -> list[Rule]:
    return [
        Rule(
            tuple(each.get("apiGroups") or ("",)),
            tuple(each["resources"]),
            tuple(each["verbs"]),
            namespaces,
            tuple(each.get("resourceNames") or ()),
        )
        for each in role.get("rules") or ()
        if each.get("resources")
    ]
