"""Resource quotas of namespaces."""

from decimal import Decimal

from tests.support.kubernetes import demand, errors, quantity
from tests.support.kubernetes.controller import Controller
from tests.support.kubernetes.kinds import KINDS
from tests.support.kubernetes.objects import Object, ended, name, namespace


class Quotas(Controller):
    """Refuses what exceeds a quota, and keeps the quotas' status."""

    def reconcile(self) -> float | None:
        for quota in self.store.all("resourcequotas"):
            used = self.used(namespace(quota))
            with self.store.edit("resourcequotas", quota) as draft:
                hard = draft["spec"].get("hard") or {}
                draft["status"] = {
                    "hard": dict(hard),
                    "used": {key: quantity.text(_get(used, key)) for key in hard},
                }
        return None

    def check(self, plural: str, obj: Object) -> None:
        """403 for what would be too much."""
        asked = self._asked(plural, obj)
        for quota in self.store.all("resourcequotas", namespace(obj)) if asked else ():
            hard = quantity.amounts(quota["spec"].get("hard"))
            used = self.used(namespace(obj))
            called = obj["metadata"].get("name") or obj["metadata"].get(
                "generateName", ""
            )
            missing = [
                key
                for key in hard
                if key.split(".")[-1] in ("cpu", "memory")
                and plural == "pods"
                and _plain(key) not in asked
                and key not in asked
            ]
            if missing:
                why = (
                    f"failed quota: {name(quota)}: must specify"
                    f" {','.join(sorted(missing))}"
                )
                raise errors.forbidden(KINDS[plural], called, why)
            over = sorted(
                key
                for key in hard
                if _get(asked, key) and _get(used, key) + _get(asked, key) > hard[key]
            )
            if over:
                raise errors.forbidden(
                    KINDS[plural],
                    called,
                    _exceeded(name(quota), over, asked, used, hard),
                )

    def _asked(self, plural: str, obj: Object) -> dict[str, Decimal]:
        kind = KINDS[plural]
        found = {f"count/{kind.qualified}": Decimal(1)} if kind.namespaced else {}
        if plural == "pods":
            found |= {"pods": Decimal(1), **_of_pod(obj)}
        elif plural in ("secrets", "configmaps", "persistentvolumeclaims"):
            found[plural] = Decimal(1)
        return found

    def used(self, space: str) -> dict[str, Decimal]:
        """What the objects of a namespace use of quotas."""
        total: dict[str, Decimal] = {}
        for plural, kind in KINDS.items():
            for obj in self.store.all(plural, space) if kind.namespaced else ():
                if plural != "pods" or not ended(obj):
                    for key, value in self._asked(plural, obj).items():
                        total[key] = total.get(key, Decimal(0)) + value
        return total


def _of_pod(pod: Object) -> dict[str, Decimal]:
    asked = demand.requests(pod)
    allowed = demand.limits(pod)
    found = {f"requests.{key}": value for key, value in asked.items()}
    return {
        **found,
        **{f"limits.{key}": value for key, value in allowed.items()},
        **{key: value for key, value in asked.items() if key in ("cpu", "memory")},
    }


def _plain(key: str) -> str:
    return (
        key
        if key.startswith("limits.")
        else f"requests.{key.removeprefix('requests.')}"
    )


def _get(values: dict[str, Decimal], key: str) -> Decimal:
    return values.get(key, Decimal(0))


def _exceeded(
    quota: str,
    over: list[str],
    asked: dict[str, Decimal],
    used: dict[str, Decimal],
    hard: dict[str, Decimal],
) -> str:
    def shown(values: dict[str, Decimal]) -> str:
        return ",".join(f"{key}={quantity.text(_get(values, key))}" for key in over)

    return (
        f"exceeded quota: {quota}, requested: {shown(asked)}, used: {shown(used)},"
        f" limited: {shown(hard)}"
    )
