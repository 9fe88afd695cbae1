"""Nodes: what they have, whether they answer, and what becomes of pods on those that do
not.
"""

import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.support.kubernetes.controller import Controller
from tests.support.kubernetes.deletion import delete
from tests.support.kubernetes.events import Recorder
from tests.support.kubernetes.objects import (
    Object,
    condition,
    deleting,
    ended,
    holds,
    name,
    set_condition,
    uid,
)
from tests.support.kubernetes.options import Options
from tests.support.kubernetes.store import Store

GPU = "nvidia.com/gpu"
UNREACHABLE = "node.kubernetes.io/unreachable"
_CORDONED = "node.kubernetes.io/unschedulable"
_COMPUTE = {
    "H200": (9, 0),
    "H100": (9, 0),
    "L40": (8, 9),
    "L4": (8, 9),
    "A100": (8, 0),
    "A10": (8, 6),
    "T4": (7, 5),
    "V100": (7, 0),
    "B200": (10, 0),
}


@dataclass(frozen=True)
class Node:
    """A machine. `taints` are of the form `key=value:Effect`."""

    name: str
    gpus: int = 0
    gpu_product: str = "NVIDIA-A100-SXM4-40GB"
    gpu_memory_mib: int = 40960
    cpus: float = 16
    memory_gb: float = 64
    pods: int = 110
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    taints: tuple[str, ...] = ()
    region: str = "region-1"
    zone: str = "region-1a"
    instance_type: str = "test.large"

    @property
    def uuids(self) -> tuple[str, ...]:
        """Its GPUs, the same in each run."""
        return tuple(
            f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{self.name}/{each}')}"
            for each in range(self.gpus)
        )

    @property
    def all_labels(self) -> dict[str, str]:
        """What the kubelet, the cloud and NVIDIA's feature discovery say of it, and its
        own.
        """
        found = {
            "kubernetes.io/hostname": self.name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
            "topology.kubernetes.io/region": self.region,
            "topology.kubernetes.io/zone": self.zone,
            "node.kubernetes.io/instance-type": self.instance_type,
        }
        if self.gpus:
            found |= {
                "nvidia.com/gpu.present": "true",
                "nvidia.com/gpu.product": self.gpu_product,
                "nvidia.com/gpu.memory": str(self.gpu_memory_mib),
                "nvidia.com/gpu.count": str(self.gpus),
                "nvidia.com/mig.capable": "false",
            }
            compute = next(
                (each for key, each in _COMPUTE.items() if key in self.gpu_product),
                (8, 0),
            )
            found |= {
                f"{GPU}.compute.{key}": str(each)
                for key, each in zip(("major", "minor"), compute, strict=True)
            }
        return {**found, **self.labels}

    def object(self, number: int, stamp: str, version: str) -> Object:
        """What the API shows of it."""
        amounts = {
            "cpu": (
                f"{round(self.cpus * 1000)}m" if self.cpus % 1 else str(int(self.cpus))
            ),
            "memory": f"{round(self.memory_gb * 1024)}Mi",
            "pods": str(self.pods),
            "ephemeral-storage": "100Gi",
            **({GPU: str(self.gpus)} if self.gpus else {}),
        }
        obj: Object = {
            "metadata": {
                "name": self.name,
                "labels": self.all_labels,
                "annotations": {},
            },
            "spec": {
                "providerID": f"fake:///{self.zone}/{self.name}",
                **_taints(self.taints),
            },
            "status": {
                "capacity": amounts,
                "allocatable": dict(amounts),
                "conditions": [],
                "addresses": [
                    {"type": "InternalIP", "address": f"10.0.0.{number + 1}"},
                    {"type": "Hostname", "address": self.name},
                ],
                "nodeInfo": {
                    "kubeletVersion": f"v{version}.0",
                    "architecture": "amd64",
                    "operatingSystem": "linux",
                    "containerRuntimeVersion": "containerd://1.7.20",
                    "osImage": "Debian GNU/Linux 12",
                    "kernelVersion": "6.1.0",
                    "machineID": "",
                    "systemUUID": "",
                    "bootID": "",
                    "kubeProxyVersion": f"v{version}.0",
                },
            },
        }
        for kind, reason in (
            ("MemoryPressure", "KubeletHasSufficientMemory"),
            ("DiskPressure", "KubeletHasNoDisk"),
        ):
            set_condition(obj, kind, "False", stamp, reason=reason)
        _ready(obj, stamp)
        return obj


def _taints(texts: tuple[str, ...]) -> Object:
    taints: list[Object] = []
    for text in texts:
        pair, _, effect = text.partition(":")
        key, _, value = pair.partition("=")
        taints.append(
            {"key": key, **({"value": value} if value else {}), "effect": effect}
        )
    return {"taints": taints} if taints else {}


def _ready(obj: Object, stamp: str) -> None:
    message = "kubelet is posting ready status"
    set_condition(obj, "Ready", "True", stamp, reason="KubeletReady", message=message)


def _add_taint(draft: Object, key: str, effect: str, stamp: str | None = None) -> None:
    taints: list[Object] = draft["spec"].setdefault("taints", [])
    if not any((each["key"], each["effect"]) == (key, effect) for each in taints):
        taints.append(
            {"key": key, "effect": effect, **({"timeAdded": stamp} if stamp else {})}
        )


def _drop_taint(draft: Object, key: str) -> None:
    kept = [each for each in draft["spec"].get("taints", []) if each["key"] != key]
    draft["spec"].pop("taints", None)
    if kept:
        draft["spec"]["taints"] = kept


def tolerates(pod: Object, taint: Object) -> Object | None:
    """The first toleration of a pod that fits the taint."""
    for each in pod["spec"].get("tolerations") or ():
        if each.get("effect") and each["effect"] != taint["effect"]:
            continue
        if each.get("key") and each["key"] != taint["key"]:
            continue
        if each.get("operator", "Equal") == "Exists" or each.get(
            "value", ""
        ) == taint.get("value", ""):
            return each
    return None


class NodeLifecycle(Controller):
    """Taints what does not answer or is cordoned, evicts by taints, and clears away
    pods of nodes that are no more.
    """

    def __init__(self, store: Store, options: Options) -> None:
        super().__init__(store)
        self._options = options
        self._recorder = Recorder(store, "node-controller")
        self._evictor = Recorder(store, "taint-eviction-controller")
        self._since: dict[tuple[str, str], float] = {}

    def lose(self, node: str) -> None:
        """The node stopped to answer."""
        obj = self.store.get("nodes", "", node)
        stamp = self.clock.stamp()
        with self.store.edit("nodes", obj) as draft:
            for kind in ("MemoryPressure", "DiskPressure", "Ready"):
                set_condition(
                    draft,
                    kind,
                    "Unknown",
                    stamp,
                    reason="NodeStatusUnknown",
                    message="Kubelet stopped posting node status.",
                )
            _add_taint(draft, UNREACHABLE, "NoSchedule", stamp)
            _add_taint(draft, UNREACHABLE, "NoExecute", stamp)
        self._recorder.normal(
            obj, "NodeNotReady", f"Node {node} status is now: NodeNotReady"
        )
        for pod in self._pods(node):
            if not ended(pod):
                with self.store.edit("pods", pod) as draft:
                    set_condition(draft, "Ready", "False", stamp)
                self._recorder.warning(pod, "NodeNotReady", "Node is not ready")

    def restore(self, node: str) -> None:
        """It answers again."""
        obj = self.store.get("nodes", "", node)
        stamp = self.clock.stamp()
        with self.store.edit("nodes", obj) as draft:
            for kind in ("MemoryPressure", "DiskPressure"):
                set_condition(draft, kind, "False", stamp)
            _ready(draft, stamp)
            _drop_taint(draft, UNREACHABLE)
        self._recorder.normal(obj, "NodeReady", f"Node {node} status is now: NodeReady")

    def cordon(self, node: str, cordoned: bool) -> None:
        with self.store.edit("nodes", self.store.get("nodes", "", node)) as draft:
            draft["spec"]["unschedulable"] = cordoned

    def reconcile(self) -> float | None:
        now = time.monotonic()
        wakes = list[float]()
        nodes = {name(node): node for node in self.store.all("nodes")}
        for node in nodes.values():
            with self.store.edit("nodes", node) as draft:
                cordoned = draft["spec"].get("unschedulable")
                (
                    _add_taint(draft, _CORDONED, "NoSchedule")
                    if cordoned
                    else _drop_taint(draft, _CORDONED)
                )
        for pod in self.store.all("pods"):
            where = pod["spec"].get("nodeName")
            if where in nodes and not ended(pod):
                wakes.extend(self._tend(pod, nodes[where], now))
            elif where and where not in nodes:
                wakes.extend(self._await_collection(pod, now))
        return min(wakes) if wakes else None

    def _tend(self, pod: Object, node: Object, now: float) -> list[float]:
        lost = (condition(node, "Ready") or {}).get("status") == "Unknown"
        if deleting(pod):
            # Only a kubelet can say that it has ended; nobody collects it while its
            # node is listed.
            return []
        wakes: list[float] = []
        for taint in node["spec"].get("taints") or ():
            if taint["effect"] == "NoExecute":
                left = self._patience(pod, taint, now)
                if left is not None and left <= 0:
                    self._evict(pod, lost)
                    return []
                wakes.extend([left] if left is not None else [])
        return wakes

    def _await_collection(self, pod: Object, now: float) -> list[float]:
        left = self._left((uid(pod), "gone"), self._options.pod_gc_s, now)
        if left <= 0:
            self._collect(pod)
        return [left] if left > 0 else []

    def _patience(self, pod: Object, taint: Object, now: float) -> float | None:
        """How long the pod may stay, in seconds; None: for ever."""
        toleration = tolerates(pod, taint)
        if toleration is None:
            return 0.0
        limit = toleration.get("tolerationSeconds")
        since = f"{taint['key']} {taint.get('timeAdded')}"
        return None if limit is None else self._left((uid(pod), since), limit, now)

    def _left(self, key: tuple[str, str], limit: float, now: float) -> float:
        return self._since.setdefault(key, now) + limit - now

    def _evict(self, pod: Object, lost: bool) -> None:
        with self.store.edit("pods", pod) as draft:
            set_condition(
                draft,
                "DisruptionTarget",
                "True",
                self.clock.stamp(),
                reason="DeletionByTaintManager",
                message="Taint manager: deleting due to NoExecute taint",
            )
            if lost:
                node = pod["spec"]["nodeName"]
                message = (
                    f"Node {node} which was running pod {name(pod)} is unresponsive"
                )
                draft["status"] |= {"reason": "NodeLost", "message": message}
        where = f"{pod['metadata']['namespace']}/{name(pod)}"
        self._evictor.normal(
            pod, "TaintManagerEviction", f"Marking for deletion Pod {where}"
        )
        delete(self.store, "pods", pod)

    def _collect(self, pod: Object) -> None:
        """What the pod garbage collector does."""
        with self.store.edit("pods", pod) as draft:
            if not ended(draft):
                draft["status"]["phase"] = "Failed"
            if not ended(pod) and not holds(draft, "DisruptionTarget"):
                set_condition(
                    draft,
                    "DisruptionTarget",
                    "True",
                    self.clock.stamp(),
                    reason="DeletionByPodGC",
                    message="PodGC: node no longer exists",
                )
        self.store.finish("pods", pod)

    def _pods(self, node: str) -> list[Object]:
        return [
            pod for pod in self.store.all("pods") if pod["spec"].get("nodeName") == node
        ]
