"""From a cluster's nodes to offers."""

from decimal import Decimal

import pytest

from gpuyard.providers.kubernetes.config import KubernetesConfig
from gpuyard.providers.kubernetes.supply import quantity, supplies

PRODUCT = "nvidia.com/gpu.product"
REGION = "topology.kubernetes.io/region"
A100 = "nvidia-a100-sxm4-40gb-p4"
INSTANCE = "node.kubernetes.io/instance-type"


def node(name: str, gpus: int | None = 0, ready: str = "True", **labels: str) -> dict:
    amounts = {"cpu": "7910m", "memory": "31Gi"} | (
        {} if gpus is None else {"nvidia.com/gpu": str(gpus)}
    )
    return {
        "metadata": {
            "name": name,
            "labels": {key.replace("__", "/"): value for key, value in labels.items()},
        },
        "status": {
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": ready, "reason": "KubeletDown"}],
        },
    }


def offers(*nodes: dict, **settings: object) -> dict:
    config = KubernetesConfig.read({"home": "/", **settings})
    return {one.offer.id: one for one in supplies(nodes, config, "kubernetes")}


def labelled(name: str, gpus: int | None, region: str = "eu") -> dict:
    made = node(name, gpus)
    made["metadata"]["labels"] = {
        PRODUCT: "NVIDIA-A100-SXM4-40GB",
        INSTANCE: "p4",
        REGION: region,
    }
    return made


def test_a_node_whose_device_plugin_starts_anew_hides_nobodys_gpus():
    (only,) = offers(labelled("a", 8), labelled("b", 0), labelled("c", None)).values()
    assert (only.offer.gpus, only.offer.nodes) == (8, 3)


def test_without_any_labels_gpu_nodes_are_told_from_others():
    found = offers(node("plain"), node("fast", 4))
    assert {key: one.offer.gpus for key, one in found.items()} == {
        "kubernetes/cpu": 0,
        "kubernetes/gpu": 4,
    }


def test_what_only_differs_by_its_region_is_two_offers():
    found = offers(labelled("a", 8, "eu"), labelled("b", 8, "us"))
    assert set(found) == {
        "kubernetes/nvidia-a100-sxm4-40gb-p4-eu",
        "kubernetes/nvidia-a100-sxm4-40gb-p4-us",
    }
    assert [one.selector[REGION] for one in found.values()] == ["eu", "us"]


def test_a_node_that_says_nothing_is_no_crash():
    (only,) = offers({"metadata": {"name": "x"}}).values()
    assert "no node that is ready" in only.offer.problem
    assert only.offer.part(0, 1.0) == 1.0


def test_a_cluster_with_prices_says_of_what_has_none_that_it_is_not_known():
    priced, unpriced = offers(
        labelled("a", 8), node("plain"), prices={"p4": Decimal(30)}
    ).values()
    assert {priced.offer.price_per_hour, unpriced.offer.price_per_hour} == {
        Decimal(30),
        None,
    }
    assert priced.offer.billed
    assert unpriced.offer.billed
    assert not next(iter(offers(node("plain")).values())).offer.billed


def tainted(made: dict, key: str = "nvidia.com/gpu") -> dict:
    made["spec"] = {"taints": [{"key": key, "effect": "NoSchedule"}]}
    return made


def test_tainted_nodes_with_gpus_are_for_jobs_with_gpus():
    found = offers(tainted(labelled("a", 8)), node("plain"))
    kept, free = (found[f"kubernetes/{name}"] for name in (A100, "cpu"))
    assert (kept.offer.for_gpu_jobs, free.offer.for_gpu_jobs) == (True, False)
    assert [one.key for one in kept.tolerations] == ["nvidia.com/gpu"]
    assert not free.tolerations


def test_a_kind_of_node_of_which_one_is_not_tainted_is_for_all_jobs():
    (only,) = offers(tainted(labelled("a", 8)), labelled("b", 8)).values()
    assert (only.offer.for_gpu_jobs, only.tolerations) == (False, ())


def test_a_job_tolerates_the_taint_of_its_cpu_nodes_and_no_other():
    taints = [{"key": "nvidia.com/gpu"}, {"key": "team"}]
    (only,) = offers(tainted(node("a"), "team"), tolerations=taints).values()
    assert not only.offer.for_gpu_jobs
    assert [one.key for one in only.tolerations] == ["team"]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("500m", 0.5),
        ("16Gi", 16 * 2**30),
        ("1e3", 1000),
        ("2k", 2000),
        ("", 0),
        (None, 0),
        ("a lot", 0),
        (4, 4),
    ],
)
def test_quantities(text, number):
    assert quantity(text) == number
