"""The fake cluster's nodes: where pods stand, and what becomes of them when a node is
full, short or dead.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kubernetes_asyncio import client

from tests.integration.support.conftest import (
    CPU,
    GPUS,
    Client,
    gone,
    in_phase,
    pods_of,
    said,
    with_condition,
)
from tests.support.kubernetes import Cluster, Node
from tests.support.kubernetes.manifests import job, pod
from tests.support.kubernetes.objects import Object, condition
from tests.support.wait import wait_until

Connect = Callable[..., Client]
BIG = Node(
    "gpu-2",
    gpus=4,
    gpu_product="NVIDIA-H100-80GB-HBM3",
    gpu_memory_mib=81559,
    cpus=16,
    memory_gb=64,
)


@pytest.fixture
def own() -> Iterator[Cluster]:
    """A cluster whose nodes a test may lose."""
    with Cluster([CPU, GPUS, BIG], toleration_s=1) as cluster:
        yield cluster


def _unschedulable(cluster: Cluster, name: str) -> str:
    def look() -> str:
        found = condition(cluster.get("pods", name) or {}, "PodScheduled") or {}
        return (
            found.get("message", "") if found.get("reason") == "Unschedulable" else ""
        )

    return wait_until(look, what=f"{name} to fit nowhere")


def test_nodes_say_what_they_have(own: Cluster, connect: Connect) -> None:
    kube = connect(own)
    node = kube.do(kube.core.read_node("gpu-2"))
    assert node.status.allocatable["nvidia.com/gpu"] == "4"
    assert node.metadata.labels["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3"
    assert node.metadata.labels["nvidia.com/gpu.compute.major"] == "9"
    (ready,) = [each for each in node.status.conditions if each.type == "Ready"]
    assert (ready.status, ready.reason) == ("True", "KubeletReady")
    own.add_node(Node("late", gpus=8))
    assert (
        len(
            kube.do(
                kube.core.list_node(label_selector="nvidia.com/gpu.present=true")
            ).items
        )
        == 3
    )


def test_why_a_pod_fits_nowhere(own: Cluster, connect: Connect) -> None:
    kube = connect(own)
    own.cordon("cpu-1")
    kube.create(pod("huge", gpus=5, tolerations=[]))
    assert (
        _unschedulable(own, "huge")
        == "0/3 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) had"
        " untolerated taint {nvidia.com/gpu: present}, 1 node(s) were unschedulable."
        " preemption: 0/3 nodes are available: 1 No preemption victims found for"
        " incoming pod, 2 Preemption is not helpful for scheduling."
    )
    assert said(own, "huge")["FailedScheduling"] == _unschedulable(own, "huge")
    kube.create(pod("elsewhere", nodeSelector={"kubernetes.io/hostname": "nowhere"}))
    assert "node(s) didn't match Pod's node affinity/selector" in _unschedulable(
        own, "elsewhere"
    )
    own.cordon("cpu-1", False)
    kube.create(
        pod(
            "lacking",
            volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "none"}}],
        )
    )
    assert 'persistentvolumeclaim "none" not found' in _unschedulable(own, "lacking")
    terms = [
        {
            "matchExpressions": [
                {"key": "nvidia.com/gpu.memory", "operator": "Gt", "values": ["50000"]}
            ]
        }
    ]
    required = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}
    }
    kube.create(pod("placed", affinity={"nodeAffinity": required}))
    assert in_phase(own, "placed", "Succeeded")["spec"]["nodeName"] == "gpu-2"


def test_gpus_are_given_out_once(own: Cluster, connect: Connect) -> None:
    kube = connect(own)
    kube.create(
        job(
            "gpus",
            "echo $NVIDIA_VISIBLE_DEVICES; sleep 0.3",
            gpus=1,
            completions=14,
            parallelism=14,
        )
    )
    with_condition(own, "gpus", "Complete")
    own.check_gpus()
    assert (own.most_gpus("gpu-1"), own.most_gpus("gpu-2")) == (2, 4)
    assert not own.gpus_held()
    logs = {kube.log(each["metadata"]["name"]).strip() for each in pods_of(own, "gpus")}
    assert logs == {*GPUS.uuids, *BIG.uuids}


def test_the_more_important_pod_gets_room(own: Cluster, connect: Connect) -> None:
    kube = connect(own)
    own.create({"kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000})
    rules = [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]
    kube.create(job("low", "exec sleep 60", gpus=4, podFailurePolicy={"rules": rules}))
    wait_until(lambda: pods_of(own, "low"))
    first = pods_of(own, "low")[0]["metadata"]["name"]
    in_phase(own, first, "Running")
    kube.create(pod("urgent", "sleep 0.2", gpus=4, priorityClassName="high"))
    in_phase(own, "urgent", "Running", "Succeeded")
    assert said(own, first)["Preempted"].startswith("Preempted by pod ")
    wait_until(
        lambda: any(
            each["metadata"]["name"] != first and each["status"]["phase"] == "Running"
            for each in pods_of(own, "low")
        )
    )
    assert not (own.get("jobs", "low") or {})["status"].get("failed")
    own.check_gpus()


def test_a_node_is_lost_and_comes_back(
    own: Cluster, connect: Connect, tmp_path: Path
) -> None:
    kube = connect(own)
    mark = {"volumes": [{"name": "h", "hostPath": {"path": str(tmp_path)}}]}
    container = {"volumeMounts": [{"name": "h", "mountPath": "/h"}]}
    kube.create(
        job(
            "bound",
            "while :; do date +%N > /h/beat; sleep 0.05; done",
            gpus=4,
            container=container,
            backoffLimit=3,
            pod_spec=mark,
        )
    )
    wait_until((tmp_path / "beat").exists)
    lost = pods_of(own, "bound")[0]["metadata"]["name"]
    in_phase(own, lost, "Running")
    own.lose_node("gpu-2")
    last = (tmp_path / "beat").read_bytes()
    node = own.get("nodes", "gpu-2", "") or {}
    assert (condition(node, "Ready") or {})["status"] == "Unknown"
    assert (
        kube.refused(kube.core.read_namespaced_pod_log(lost, "default")).status == 500
    )
    wait_until(
        lambda: (
            (condition(own.get("pods", lost) or {}, "DisruptionTarget") or {}).get(
                "reason"
            )
            == "DeletionByTaintManager"
        )
    )
    assert (own.get("pods", lost) or {})["metadata"]["deletionTimestamp"]
    assert (tmp_path / "beat").read_bytes() == last
    own.restore_node("gpu-2")
    gone(own, "pods", lost)
    wait_until(lambda: (own.get("jobs", "bound") or {})["status"].get("failed") == 1)
    wait_until(lambda: (tmp_path / "beat").read_bytes() != last)
    own.check_gpus()


def test_a_pod_of_a_lost_node_goes_only_by_force_and_without_its_job(
    own: Cluster, connect: Connect
) -> None:
    kube = connect(own)
    kube.create(job("stuck", "sleep 60", gpus=4, podReplacementPolicy="Failed"))
    wait_until(lambda: pods_of(own, "stuck"))
    lost = pods_of(own, "stuck")[0]["metadata"]["name"]
    in_phase(own, lost, "Running")
    own.lose_node("gpu-2")
    force = client.V1DeleteOptions(grace_period_seconds=0)
    kube.do(kube.core.delete_namespaced_pod(lost, "default", body=force))
    held = own.get("pods", lost) or {}
    assert held["metadata"]["finalizers"] == ["batch.kubernetes.io/job-tracking"]
    own.delete("jobs", "stuck")
    gone(own, "pods", lost)


def test_a_node_that_is_back_before_anybody_gave_up(
    own: Cluster, connect: Connect
) -> None:
    kube = connect(own)
    kube.create(pod("cut-off", "sleep 60", gpus=4))
    in_phase(own, "cut-off", "Running")
    own.lose_node("gpu-2")
    assert (own.get("pods", "cut-off") or {})["status"]["phase"] == "Running"
    own.restore_node("gpu-2")
    status = in_phase(own, "cut-off", "Failed")["status"]
    ended: Object = status["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (137, "ContainerStatusUnknown")


def test_a_node_is_taken_away(own: Cluster, connect: Connect) -> None:
    kube = connect(own)
    rules = [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]
    kube.create(job("spot", "sleep 60", gpus=4, podFailurePolicy={"rules": rules}))
    wait_until(lambda: pods_of(own, "spot"))
    first = pods_of(own, "spot")[0]["metadata"]["name"]
    in_phase(own, first, "Running")
    own.remove_node("gpu-2")
    gone(own, "pods", first)
    wait_until(lambda: len(pods_of(own, "spot")) == 1)
    assert _unschedulable(own, pods_of(own, "spot")[0]["metadata"]["name"]).startswith(
        "0/2 nodes are available"
    )
    assert not (own.get("jobs", "spot") or {})["status"].get("failed")


def test_evictions(own: Cluster, connect: Connect) -> None:
    kube = connect(own)
    kube.create(pod("fat", "sleep 60"))
    kube.create(pod("moved", "exec sleep 60"))
    in_phase(own, "fat", "Running")
    in_phase(own, "moved", "Running")
    own.evict("fat")
    status = in_phase(own, "fat", "Failed")["status"]
    assert (status["reason"], status["message"]) == (
        "Evicted",
        "The node was low on resource: memory. ",
    )
    body = client.V1Eviction(
        metadata=client.V1ObjectMeta(name="moved", namespace="default")
    )
    kube.do(kube.core.create_namespaced_pod_eviction("moved", "default", body))
    found = condition(own.get("pods", "moved") or {}, "DisruptionTarget") or {}
    assert found.get("reason") == "EvictionByEvictionAPI"
    gone(own, "pods", "moved")
