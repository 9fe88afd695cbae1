"""The scheduler: puts pods on nodes, in the order of their priority, and makes room for
the more important.
"""

from collections import Counter

from tests.support.kubernetes.controller import Controller
from tests.support.kubernetes.deletion import delete
from tests.support.kubernetes.demand import requests, total
from tests.support.kubernetes.events import Recorder
from tests.support.kubernetes.nodes import tolerates
from tests.support.kubernetes.objects import (
    Object,
    condition,
    deleting,
    ended,
    labels,
    name,
    namespace,
    set_condition,
    uid,
)
from tests.support.kubernetes.quantity import amounts
from tests.support.kubernetes.selectors import matches_expressions
from tests.support.kubernetes.store import Store

_AFFINITY = "node(s) didn't match Pod's node affinity/selector"
_HOPELESS = "Preemption is not helpful for scheduling"
_NO_VICTIMS = "No preemption victims found for incoming pod"
_PREEMPTING = "default-scheduler: preempting to accommodate a higher priority pod"


class Scheduler(Controller):
    """One pass looks at every pod that stands nowhere yet."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._recorder = Recorder(store, "default-scheduler", new=True)

    def reconcile(self) -> float | None:
        waiting = [pod for pod in self.store.by_age("pods") if _waits(pod)]
        if not waiting:
            return None
        room = _Room(self.store)
        for pod in sorted(waiting, key=lambda each: -_priority(each)):
            self._schedule(pod, room)
        return None

    def _schedule(self, pod: Object, room: "_Room") -> None:
        missing = self._missing_claim(pod)
        refusals = {
            name(node): [missing] if missing else room.refusals(pod, node)
            for node in room.nodes
        }
        fitting = [node for node in room.nodes if not refusals[name(node)]]
        if fitting:
            self._bind(pod, max(fitting, key=lambda node: room.score(pod, node)), room)
            return
        preempted = "" if missing else self._preempt(pod, room)
        self._refuse(
            pod,
            (
                _message(refusals, hopeless=missing)
                if room.nodes
                else "no nodes available to schedule pods"
            ),
            preempted,
        )

    def _missing_claim(self, pod: Object) -> str:
        for volume in pod["spec"].get("volumes") or ():
            claim = (volume.get("persistentVolumeClaim") or {}).get("claimName")
            if claim and not self.store.find(
                "persistentvolumeclaims", namespace(pod), claim
            ):
                return f'persistentvolumeclaim "{claim}" not found'
        return ""

    def _bind(self, pod: Object, node: Object, room: "_Room") -> None:
        with self.store.edit("pods", pod) as draft:
            draft["spec"]["nodeName"] = name(node)
            draft["status"].pop("nominatedNodeName", None)
            set_condition(draft, "PodScheduled", "True", self.clock.stamp())
        room.take(draft, name(node))
        where = f"{namespace(pod)}/{name(pod)}"
        self._recorder.normal(
            pod, "Scheduled", f"Successfully assigned {where} to {name(node)}"
        )

    def _refuse(self, pod: Object, message: str, nominated: str) -> None:
        known = condition(pod, "PodScheduled") or {}
        if (
            known.get("message") == message
            and pod["status"].get("nominatedNodeName", "") == nominated
        ):
            return
        with self.store.edit("pods", pod) as draft:
            set_condition(
                draft,
                "PodScheduled",
                "False",
                self.clock.stamp(),
                reason="Unschedulable",
                message=message,
            )
            if nominated:
                draft["status"]["nominatedNodeName"] = nominated
            else:
                draft["status"].pop("nominatedNodeName", None)
        if known.get("message") != message:
            self._recorder.warning(pod, "FailedScheduling", message)

    def _preempt(self, pod: Object, room: "_Room") -> str:
        """Delete who stands in the way on one node, and return its name; empty where
        that would not help.
        """
        if pod["spec"].get("preemptionPolicy") == "Never":
            return ""
        nominated = pod["status"].get("nominatedNodeName", "")
        if nominated and any(deleting(each) for each in room.on(nominated)):
            return nominated
        choices = [
            (victims, name(node))
            for node in room.nodes
            if (victims := room.victims(pod, node))
        ]
        if not choices:
            return ""
        victims, node = min(
            choices,
            key=lambda each: (max(map(_priority, each[0])), len(each[0]), each[1]),
        )
        for victim in victims:
            with self.store.edit("pods", victim) as draft:
                set_condition(
                    draft,
                    "DisruptionTarget",
                    "True",
                    self.clock.stamp(),
                    reason="PreemptionByScheduler",
                    message=_PREEMPTING,
                )
            self._recorder.normal(
                victim, "Preempted", f"Preempted by pod {uid(pod)} on node {node}"
            )
            delete(self.store, "pods", victim)
        return node


class _Room:
    """What is free on each node, as this pass fills it."""

    def __init__(self, store: Store) -> None:
        self.nodes = store.all("nodes")
        self._on: dict[str, list[Object]] = {name(node): [] for node in self.nodes}
        self._nominated: dict[str, list[Object]] = {
            name(node): [] for node in self.nodes
        }
        for pod in store.all("pods"):
            node = pod["spec"].get("nodeName", "")
            hoped = pod.get("status", {}).get("nominatedNodeName", "")
            if node in self._on and not ended(pod):
                self._on[node].append(pod)
            elif hoped in self._nominated and not ended(pod):
                self._nominated[hoped].append(pod)

    def on(self, node: str) -> list[Object]:
        return self._on.get(node, [])

    def take(self, pod: Object, node: str) -> None:
        self._on[node].append(pod)

    def score(self, pod: Object, node: Object) -> tuple[bool, int]:
        """The node that was promised first, then the emptiest."""
        return pod["status"].get("nominatedNodeName") == name(node), -len(
            self._on[name(node)]
        )

    def refusals(self, pod: Object, node: Object) -> list[str]:
        """Why the pod cannot stand there; empty: it can."""
        return _hopeless(pod, node) or self._short(pod, node, self._on[name(node)])

    def _short(self, pod: Object, node: Object, there: list[Object]) -> list[str]:
        promised = [
            each
            for each in self._nominated[name(node)]
            if uid(each) != uid(pod) and _priority(each) >= _priority(pod)
        ]
        used = total([*there, *promised])
        allocatable = amounts(node["status"]["allocatable"])
        found = ["Too many pods"] if used["pods"] + 1 > allocatable["pods"] else []
        for resource, value in sorted(requests(pod).items()):
            if value and used.get(resource, 0) + value > allocatable.get(resource, 0):
                found.append(f"Insufficient {resource}")
        return found

    def victims(self, pod: Object, node: Object) -> list[Object]:
        """The fewest and least important whose going makes room; empty where nobody's
        does.
        """
        if _hopeless(pod, node):
            return []
        there = self._on[name(node)]
        lower = sorted(
            (each for each in there if _priority(each) < _priority(pod)),
            key=_priority,
            reverse=True,
        )
        kept = [each for each in there if each not in lower]
        if not lower or self._short(pod, node, kept):
            return []
        victims: list[Object] = []
        for each in lower:
            if self._short(pod, node, [*kept, each]):
                victims.append(each)
            else:
                kept.append(each)
        return victims


def _waits(pod: Object) -> bool:
    return not pod["spec"].get("nodeName") and not deleting(pod) and not ended(pod)


def _priority(pod: Object) -> int:
    return pod["spec"].get("priority", 0)


def _hopeless(pod: Object, node: Object) -> list[str]:
    """What nobody's going would change."""
    if node["spec"].get("unschedulable"):
        return ["node(s) were unschedulable"]
    for taint in node["spec"].get("taints") or ():
        if taint["effect"] in ("NoSchedule", "NoExecute") and not tolerates(pod, taint):
            return [
                f"node(s) had untolerated taint {{{taint['key']}:"
                f" {taint.get('value', '')}}}"
            ]
    return [] if _wanted(pod, node) else [_AFFINITY]


def _wanted(pod: Object, node: Object) -> bool:
    """Whether its node selector and its required affinity name the node."""
    found = labels(node)
    if any(
        found.get(key) != value
        for key, value in (pod["spec"].get("nodeSelector") or {}).items()
    ):
        return False
    affinity = (pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    fields = {"metadata.name": name(node)}
    return any(
        matches_expressions(found, term.get("matchExpressions") or [])
        and matches_expressions(fields, term.get("matchFields") or [])
        for term in required["nodeSelectorTerms"]
        if term.get("matchExpressions") or term.get("matchFields")
    )


def _message(refusals: dict[str, list[str]], hopeless: str) -> str:
    """What the scheduler says of a pod that fits nowhere."""
    count = len(refusals)
    if hopeless:
        return (
            f"0/{count} nodes are available: {hopeless}. preemption: 0/{count} nodes"
            f" are available: {count} {_HOPELESS}."
        )
    reasons = Counter(reason for each in refusals.values() for reason in each)
    helpless = sum(
        any(reason.startswith("node(s)") for reason in each)
        for each in refusals.values()
    )
    ends = [
        f"{number} {text}"
        for number, text in ((count - helpless, _NO_VICTIMS), (helpless, _HOPELESS))
        if number
    ]
    return (
        f"0/{count} nodes are available: {_counted(reasons)}. preemption:"
        f" 0/{count} nodes are available: {', '.join(sorted(ends))}."
    )


def _counted(reasons: Counter[str]) -> str:
    return ", ".join(sorted(f"{number} {reason}" for reason, number in reasons.items()))
