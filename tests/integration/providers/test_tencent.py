"""The provider `tencent` on a fake of Tencent's API in front of a fake cluster."""

import asyncio
import json
import os
import stat
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from kubernetes_asyncio import config as kube_config

from gpuyard.domain.errors import (
    InsufficientResourcesError,
    InvalidInputError,
    ProviderError,
)
from gpuyard.domain.gpus import GPUClass
from gpuyard.domain.jobconfig import GpuSpec
from gpuyard.domain.offers import Offer
from gpuyard.providers import registry, tencent
from gpuyard.providers.conformance import Subject
from gpuyard.providers.conformance.subject import Case
from gpuyard.providers.tencent import TencentCloudAdapter
from gpuyard.providers.tencent.provider import TencentProvider
from tests.support.conformance import only
from tests.support.kubernetes import Cluster, Node
from tests.support.kubernetes.access import Rule
from tests.support.tke import POOL, Tke
from tests.support.tls import tls_door

IMAGE = "python:3.11-slim"
NODES = [
    Node(
        "gpu-1",
        gpus=2,
        cpus=16,
        memory_gb=64,
        labels={POOL: "np-busy"},
        instance_type="GN7.10XLARGE160",
    ),
    Node(
        "gpu-2",
        gpus=2,
        cpus=16,
        memory_gb=64,
        labels={POOL: "np-busy"},
        instance_type="GN7.10XLARGE160",
    ),
    Node("cpu-1", cpus=64, memory_gb=256, instance_type="S5.16XLARGE256"),
]
Do = Callable[[TencentProvider], Awaitable[Any]]


def without_feature_discovery(node: dict[str, Any]) -> None:
    """TKE's nodes carry no labels of NVIDIA's unless somebody installs what makes
    them.
    """
    labels = node["metadata"]["labels"]
    for name in [name for name in labels if name.startswith("nvidia.com/")]:
        del labels[name]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(NODES) as cluster:
        for node in NODES:
            cluster.edit("nodes", node.name, without_feature_discovery, "")
        yield cluster


@pytest.fixture
def tke(cluster: Cluster) -> Iterator[Tke]:
    with Tke(cluster) as tke:
        yield tke


def do(tke: Tke, home: Path, work: Do, **settings: Any) -> Any:
    """Do something with a provider that is closed afterwards."""

    async def run() -> Any:
        provider = TencentProvider(tke.settings(home, **settings))
        try:
            return await work(provider)
        finally:
            await provider.close()

    return asyncio.run(run())


def offers(tke: Tke, home: Path, **settings: Any) -> dict[str, Offer]:
    return {
        offer.id: offer for offer in do(tke, home, TencentProvider.offers, **settings)
    }


def trouble(tke: Tke, home: Path, **settings: Any) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        do(tke, home, TencentProvider.offers, **settings)
    assert caught.value.provider == "tencent"
    assert tke.secret_key not in str(caught.value)
    return caught.value


# Jobs run as in the provider `kubernetes`; the connection, the GPUs and the prices are
# Tencent's.
_OWN_WAY = {
    "available_gpus",
    "cancel_while_running",
    "command_beside",
    "completes",
    "cost",
    "follow",
    "health",
    "lost_reply",
    "no_gpu_unless_asked",
    "same_attempt_once",
    "stdin",
    "terminal_beside",
    "too_much",
    "unknown_id",
}


@pytest.mark.parametrize("case", only(_OWN_WAY), ids=str)
def test_conformance(case: Case, tke: Tke, tmp_path: Path) -> None:
    tke.add_native_pool("busy", "GN7.10XLARGE160", most=4)

    @asynccontextmanager
    async def subject() -> AsyncIterator[Subject]:
        provider = TencentProvider(
            tke.settings(
                tmp_path, prices={"GN7.10XLARGE160": 3600, "S5.16XLARGE256": 3600}
            )
        )
        yield Subject(provider, image=IMAGE, pause_s=0.05)
        await provider.close()

    case.run(subject)


def test_it_has_the_name_of_s2_and_an_entry_point(tke: Tke, tmp_path: Path) -> None:
    assert TencentCloudAdapter is TencentProvider
    assert TencentCloudAdapter.PROVIDER_NAME == "tencent"
    with pytest.raises(AttributeError, match="AzureAdapter"):
        _ = tencent.AzureAdapter  # pyright: ignore[reportAttributeAccessIssue]
    assert isinstance(registry.load("tencent", tke.settings(tmp_path)), TencentProvider)


def test_four_keys_are_enough_and_a_job_runs_in_the_cluster(
    tke: Tke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUYARD_HOME", str(tmp_path))
    keys = ("secret_id", "secret_key", "region", "cluster_id", "endpoint", "namespace")
    config = {
        key: value for key, value in tke.settings(tmp_path).items() if key in keys
    }

    async def run() -> None:
        provider = TencentCloudAdapter(config)
        instance = Subject(
            provider,
            image=IMAGE,
            pause_s=0.05,
            gpu_spec=GpuSpec(gpu_type="T4", gpu_count=1),
        )
        try:
            assert await instance.succeed(instance.job("print('on TKE')")) == "on TKE\n"
        finally:
            await provider.close()

    asyncio.run(run())


# --- offers ---


def test_a_pool_without_nodes_is_offered_with_what_its_machines_have(
    tke: Tke, tmp_path: Path
) -> None:
    tke.add_native_pool(
        "t4", "GN7.2XLARGE32", most=5, Labels=[{"Name": "team", "Value": "vision"}]
    )
    tke.add_regular_pool("v100", "GN10Xp.5XLARGE80", most=2, spot=True)
    tke.add_regular_pool("a100", "GT4.41XLARGE948", most=1)
    found = offers(tke, tmp_path)
    t4, v100, a100 = (found[f"tencent/np-{name}"] for name in ("t4", "v100", "a100"))
    assert [next(iter(one.classes)) for one in (t4, v100, a100)] == [
        GPUClass.T4,
        GPUClass.V100_32GB,
        GPUClass.A100_40GB,
    ]
    assert [(one.gpus, one.gpu_gb, one.nodes) for one in (t4, v100, a100)] == [
        (1, 16, 5),
        (2, 32, 2),
        (8, 40, 1),
    ]
    assert (t4.spot, v100.spot) == (False, True)
    assert {one.region for one in found.values()} == {"ap-guangzhou"}
    assert {one.currency for one in found.values()} == {"CNY"}
    assert 7 < t4.cpus < 8, "a node keeps something for itself"
    assert 26 < t4.memory_gb < 32


def test_a_pool_with_nodes_is_one_offer_under_the_same_id(
    tke: Tke, tmp_path: Path
) -> None:
    tke.add_native_pool("busy", "GN7.10XLARGE160", most=7)
    found = offers(tke, tmp_path)
    assert sorted(found) == ["tencent/cpu-s5.16xlarge256", "tencent/np-busy"]
    busy = found["tencent/np-busy"]
    assert (busy.nodes, busy.gpus, busy.cpus, busy.memory_gb) == (
        7,
        2,
        16,
        64,
    ), "as its nodes are, up to its maximum"
    assert (busy.gpu, busy.gpu_gb) == ("T4", 16), "though no label says so"


def test_nodes_of_no_pool_are_offered_by_their_type(tke: Tke, tmp_path: Path) -> None:
    found = offers(tke, tmp_path)
    assert sorted(found) == [
        "tencent/cpu-s5.16xlarge256",
        "tencent/gpu-gn7.10xlarge160",
    ]
    assert found["tencent/gpu-gn7.10xlarge160"].classes == {GPUClass.T4}


def test_what_cannot_come_is_not_offered(tke: Tke, tmp_path: Path) -> None:
    tke.add_native_pool("fixed", "GN7.2XLARGE32", most=5, scales=False)
    tke.add_regular_pool("disabled", "GN7.2XLARGE32", most=5, scales=False)
    tke.add_native_pool("none", "GN7.2XLARGE32", most=0)
    tke.add_native_pool("leaving", "GN7.2XLARGE32", most=5, LifeState="deleting")
    tke.add_native_pool("closed", "GN7.2XLARGE32", most=5, Unschedulable=True)
    tke.add_native_pool("unknown", "XX9.LARGE1", most=5)
    tke.add_native_pool("share", "GN7.2XLARGE40", most=5)  # half a T4
    tke.add_native_pool(
        "tainted",
        "GN7.2XLARGE32",
        most=5,
        Taints=[{"Key": "only", "Value": "others", "Effect": "NoSchedule"}],
    )
    tke.sell("GN7.2XLARGE40", 4.0, gpus=0.5)
    assert not any(name.startswith("tencent/np-") for name in offers(tke, tmp_path))


def test_a_taint_that_jobs_tolerate_is_no_obstacle(tke: Tke, tmp_path: Path) -> None:
    tke.add_native_pool(
        "gpus",
        "GN7.2XLARGE32",
        most=5,
        Taints=[{"Key": "nvidia.com/gpu", "Value": "yes", "Effect": "NoSchedule"}],
    )
    assert "tencent/np-gpus" in offers(tke, tmp_path)


def test_a_type_that_is_not_in_the_catalogue_is_known_from_the_market(
    tke: Tke, tmp_path: Path
) -> None:
    tke.add_native_pool("new", "XGN99.2XLARGE32", most=2)
    tke.sell("XGN99.2XLARGE32", 30.0, gpus=2, cpus=40, memory_gb=200)
    new = offers(tke, tmp_path)["tencent/np-new"]
    assert (new.gpus, new.cpus, new.price_per_hour) == (2, 38, Decimal("30.0"))
    assert new.classes == frozenset(), "nobody says what they are"


def test_prices_are_tencents_of_the_day_and_ones_own_come_before(
    tke: Tke, tmp_path: Path
) -> None:
    tke.add_native_pool("t4", "GN7.2XLARGE32", most=5)
    tke.add_regular_pool("spot", "GN7.2XLARGE32", most=5, spot=True)
    tke.sell("GN7.2XLARGE32", 9.5)
    tke.sell("GN7.2XLARGE32", 7.68, zone="ap-guangzhou-7")
    tke.sell("GN7.2XLARGE32", 5.0, zone="ap-guangzhou-3", left=False)
    tke.sell("GN7.2XLARGE32", 1.54, spot=True)
    found = offers(tke, tmp_path)
    assert found["tencent/np-t4"].price_per_hour == Decimal("7.68"), (
        "the cheapest zone that has one"
    )
    assert found["tencent/np-t4"].price_source.startswith("Tencent's price of 20")
    assert found["tencent/np-spot"].price_per_hour == Decimal("1.54")
    found = offers(tke, tmp_path, prices={"GN7.2XLARGE32": "6.5"})
    assert found["tencent/np-t4"].price_per_hour == Decimal("6.5")
    assert found["tencent/np-t4"].price_source == "providers.tencent.prices"


def test_without_a_price_there_is_none(tke: Tke, tmp_path: Path) -> None:
    tke.add_native_pool("t4", "GN7.2XLARGE32", most=5)
    assert offers(tke, tmp_path)["tencent/np-t4"].price_per_hour is None


def test_what_is_sold_out_says_so_unless_it_has_nodes(tke: Tke, tmp_path: Path) -> None:
    tke.add_native_pool("t4", "GN7.2XLARGE32", most=5)
    tke.add_native_pool("busy", "GN7.10XLARGE160", most=5)
    tke.sell("GN7.2XLARGE32", 9.5, left=False)
    tke.sell("GN7.10XLARGE160", 19.0, left=False)
    found = offers(tke, tmp_path)
    assert "GN7.2XLARGE32 is sold out in ap-guangzhou" in found["tencent/np-t4"].problem
    assert found["tencent/np-busy"].problem == ""


def test_a_pool_whose_nodes_are_not_ready_makes_others(
    cluster: Cluster, tke: Tke, tmp_path: Path
) -> None:
    labels = {POOL: "np-lost"}
    cluster.add_node(
        Node(
            "lost-1",
            gpus=1,
            cpus=8,
            memory_gb=32,
            labels=labels,
            instance_type="GN7.2XLARGE32",
        )
    )
    cluster.lose_node("lost-1")
    try:
        tke.add_native_pool("lost", "GN7.2XLARGE32", most=3)
        assert offers(tke, tmp_path)["tencent/np-lost"].problem == ""
        tke.pools[0]["Native"]["EnableAutoscaling"] = False
        assert (
            "no node that is ready" in offers(tke, tmp_path)["tencent/np-lost"].problem
        )
    finally:
        cluster.remove_node("lost-1")


def test_all_pools_are_read_page_by_page(tke: Tke, tmp_path: Path) -> None:
    for number in range(230):
        tke.add_regular_pool(f"p{number}", "GN7.2XLARGE32", most=1)
    found = offers(tke, tmp_path)
    assert sum(name.startswith("tencent/np-") for name in found) == 230


def test_a_job_for_a_pool_is_bound_to_it(
    cluster: Cluster, tke: Tke, tmp_path: Path
) -> None:
    tke.add_native_pool("empty", "GN7.2XLARGE32", most=5)

    async def work(provider: TencentProvider) -> Any:
        instance = Subject(provider, image=IMAGE, gpu_spec=GpuSpec(gpu_count=1))
        name = await provider.submit_job(
            instance.job("pass", options={"offer": "tencent/np-empty"})
        )
        result = await provider.get_job_status(name)
        job = cluster.get("jobs", name)
        await provider.cancel_job(name)
        return job, result

    job, result = do(tke, tmp_path, work)
    assert job["spec"]["template"]["spec"]["nodeSelector"] == {POOL: "np-empty"}
    assert result.status == "pending"


def test_gpus_are_listed_in_s2s_form(tke: Tke, tmp_path: Path) -> None:
    for name, kind in (
        ("t4", "GN7.2XLARGE32"),
        ("v100", "GN10X.2XLARGE40"),
        ("a100", "GT4.4XLARGE96"),
    ):
        tke.add_native_pool(name, kind, most=1)
    listed = do(tke, tmp_path, TencentProvider.list_available_gpus)
    assert [(one.gpu_type, one.gpu_count, one.memory_gb) for one in listed[:3]] == [
        ("T4", 1, 16),
        ("V100", 1, 32),
        ("A100", 1, 40),
    ]


def test_the_market_is_asked_now_and_then_only(tke: Tke, tmp_path: Path) -> None:
    tke.add_native_pool("t4", "GN7.2XLARGE32", most=5)

    async def work(provider: TencentProvider) -> None:
        for _ in range(3):
            await provider.offers()

    do(tke, tmp_path, work)
    actions = [action for action, _ in tke.calls]
    assert actions.count("DescribeNodePools") == 3
    assert actions.count("DescribeZoneInstanceConfigInfos") == 1
    assert actions.count("DescribeClusterKubeconfig") == 1


# --- while Tencent does not answer ---


def test_while_tencent_does_not_say_its_pools_the_last_ones_stand(
    tke: Tke, tmp_path: Path
) -> None:
    tke.add_native_pool("t4", "GN7.2XLARGE32", most=5)

    async def work(provider: TencentProvider) -> Any:
        before = await provider.offers()
        tke.refuse("InternalError", "busy")
        after = await provider.offers()
        health = await provider.health_check()
        tke.lift()
        await provider.offers()
        return before, after, health, await provider.health_check()

    before, after, health, healed = do(tke, tmp_path, work)
    assert before == after
    assert health["status"] == "degraded"
    assert "InternalError" in health["message"]
    assert healed["status"] == "healthy"


def test_a_tencent_that_hangs_holds_nobody_up(
    tke: Tke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TencentProvider, "patience_s", 0.2)
    tke.add_native_pool("t4", "GN7.2XLARGE32", most=5)
    tke.fault("hang", "DescribeNodePools")

    async def work(provider: TencentProvider) -> Any:
        first = [offer.id for offer in await provider.offers()]
        while not provider._survey.pools:
            await provider.offers()
        return first, [offer.id for offer in await provider.offers()]

    first, later = do(tke, tmp_path, work, timeout_s=1.0)
    assert "tencent/np-t4" not in first
    assert "tencent/cpu-s5.16xlarge256" in first
    assert "tencent/np-t4" in later


@pytest.mark.parametrize(
    "action",
    [
        "DescribeNodePools",
        "DescribeLaunchConfigurations",
        "DescribeZoneInstanceConfigInfos",
    ],
)
def test_what_the_account_may_not_ask_is_told_and_the_rest_goes_on(
    action: str, tke: Tke, tmp_path: Path
) -> None:
    tke.add_regular_pool("t4", "GN7.2XLARGE32", most=5)
    tke.forbidden.add(action)

    async def work(provider: TencentProvider) -> Any:
        return await provider.offers(), await provider.health_check()

    found, health = do(tke, tmp_path, work)
    assert "tencent/cpu-s5.16xlarge256" in [offer.id for offer in found]
    assert health["status"] == "degraded"
    assert f"CAM policy has to allow {action}" in health["message"]


def test_answers_of_another_content_type_are_read_too(tke: Tke, tmp_path: Path) -> None:
    tke.content_type = "application/json; charset=utf-8"
    assert offers(tke, tmp_path)
    tke.refuse("RequestLimitExceeded")
    assert trouble(tke, tmp_path).error_code == "THROTTLED"


# --- errors ---


@pytest.mark.parametrize(
    ("code", "ours", "word"),
    [
        ("AuthFailure.SecretIdNotFound", "NOT_CONNECTED", "TENCENTCLOUD_SECRET_ID"),
        ("AuthFailure.SignatureFailure", "NOT_CONNECTED", "TENCENTCLOUD_SECRET_KEY"),
        ("AuthFailure.SignatureExpire", "NOT_CONNECTED", "clock"),
        (
            "AuthFailure.UnauthorizedOperation",
            "NOT_CONNECTED",
            "CAM policy has to allow DescribeClusterKubeconfig",
        ),
        ("UnauthorizedOperation.CamNoAuth", "NOT_CONNECTED", "CAM policy"),
        ("RequestLimitExceeded", "THROTTLED", "RequestLimitExceeded"),
        ("RequestLimitExceeded.UinLimitExceeded", "THROTTLED", "RequestLimitExceeded"),
        (
            "ResourceNotFound.ClusterNotFound",
            "NOT_CONNECTED",
            "providers.tencent.cluster_id (cls-65r1c5nu)",
        ),
        ("InternalError.Db", "NOT_CONNECTED", "InternalError.Db"),
        ("InvalidParameter", "REFUSED", "InvalidParameter"),
    ],
)
def test_tencents_errors_say_what_to_do(
    code: str, ours: str, word: str, tke: Tke, tmp_path: Path
) -> None:
    tke.refuse(code, "a message")
    error = trouble(tke, tmp_path)
    assert error.error_code == ours
    assert word in str(error)
    assert "a message" in str(error)
    assert "eac6b301" in str(error), "Tencent's people ask for the request's id"


@pytest.mark.parametrize(
    "code",
    ["ResourceInsufficient.SpecifiedInstanceType", "ResourcesSoldOut", "LimitExceeded"],
)
def test_a_lack_is_told_as_one(code: str, tke: Tke, tmp_path: Path) -> None:
    tke.refuse(code, "none left")
    assert isinstance(trouble(tke, tmp_path), InsufficientResourcesError)


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("hang", "TIMEOUT"),
        ("drip", "TIMEOUT"),
        ("stall", "TIMEOUT"),
        ("cut", "NOT_CONNECTED"),
        ("half", "NOT_CONNECTED"),
        (500, "NOT_CONNECTED"),
        (502, "NOT_CONNECTED"),
        (200, "NOT_CONNECTED"),
    ],
)
def test_what_happens_to_servers_is_told_apart(
    what: Any, code: str, tke: Tke, tmp_path: Path
) -> None:
    tke.fault(what, times=None)
    timeout_s = 0.4 if code == "TIMEOUT" else 30
    error = trouble(tke, tmp_path, timeout_s=timeout_s)
    assert error.error_code == code
    assert "html" not in str(error)


def test_nobody_at_the_address(tke: Tke, tmp_path: Path) -> None:
    error = trouble(tke, tmp_path, endpoint="http://127.0.0.1:9")
    assert error.error_code == "NOT_CONNECTED"


def test_throttled_and_then_well(tke: Tke, tmp_path: Path) -> None:
    tke.refuse("RequestLimitExceeded", times=2)

    async def work(provider: TencentProvider) -> list[str]:
        said: list[str] = []
        for _ in range(3):
            try:
                said.append(str(len(await provider.offers())))
            except ProviderError as error:
                said.append(error.error_code)
        return said

    assert do(tke, tmp_path, work) == ["THROTTLED", "THROTTLED", "2"]


def test_signatures_are_really_checked(tke: Tke, tmp_path: Path) -> None:
    assert "SignatureFailure" in str(trouble(tke, tmp_path, secret_key="x" * 32))
    assert "SecretIdNotFound" in str(trouble(tke, tmp_path, secret_id="AKIDother"))
    assert "providers.tencent.region (ap-chengdu)" in str(
        trouble(tke, tmp_path, region="ap-chengdu")
    )
    assert "cluster_id (cls-other)" in str(
        trouble(tke, tmp_path, cluster_id="cls-other")
    )
    tke.ahead_s = 400
    assert "five minutes" in str(trouble(tke, tmp_path))


# --- the kubeconfig ---


def test_a_token_that_has_expired_is_renewed_at_once(
    cluster: Cluster, tke: Tke, tmp_path: Path
) -> None:
    tke.token = first = cluster.token("100012345", [Rule()])

    async def work(provider: TencentProvider) -> int:
        await provider.offers()
        cluster.expire(first)
        tke.token = cluster.admin_token
        return len(await provider.offers())

    assert do(tke, tmp_path, work) == 2
    assert [action for action, _ in tke.calls].count("DescribeClusterKubeconfig") == 2


def test_an_account_that_the_cluster_refuses_is_told_so(
    cluster: Cluster, tke: Tke, tmp_path: Path
) -> None:
    tke.token = "never-issued"
    error = trouble(tke, tmp_path)
    assert error.error_code == "NOT_CONNECTED"
    assert "401" in str(error)
    assert [action for action, _ in tke.calls].count(
        "DescribeClusterKubeconfig"
    ) == 2, "asked anew once, not for ever"


def test_one_that_is_given_is_used_and_tencent_is_not_asked(
    tke: Tke, tmp_path: Path
) -> None:
    assert offers(tke, tmp_path, kubeconfig=tke.encoded_kubeconfig())
    assert "DescribeClusterKubeconfig" not in [action for action, _ in tke.calls]


def test_one_that_is_given_and_expired_is_not_tried_again(
    tke: Tke, tmp_path: Path
) -> None:
    tke.token = "never-issued"
    assert "renew them" in str(
        trouble(tke, tmp_path, kubeconfig=tke.encoded_kubeconfig())
    )


def test_the_public_address_is_asked_for_when_told_so(tke: Tke, tmp_path: Path) -> None:
    offers(tke, tmp_path, extranet=True)
    assert tke.calls[0] == (
        "DescribeClusterKubeconfig",
        {"ClusterId": "cls-65r1c5nu", "IsExtranet": True},
    )


@pytest.mark.parametrize("text", ["", "{", "just words", "clusters: []"])
def test_what_is_no_kubeconfig_is_told(text: str, tke: Tke, tmp_path: Path) -> None:
    tke.kubeconfig = lambda: text
    error = trouble(tke, tmp_path)
    assert error.error_code == "NOT_CONNECTED"
    assert "kubeconfig of cls-65r1c5nu" in str(error)


def test_a_certificate_that_is_none_is_told_and_not_shown(
    tke: Tke, tmp_path: Path
) -> None:
    for data in ("bm90IGEgY2VydGlmaWNhdGU=", "not base64!"):
        tke.kubeconfig = lambda data=data: tke.real_kubeconfig(
            server="https://127.0.0.1:9", **{"certificate-authority-data": data}
        )
        error = trouble(tke, tmp_path)
        assert error.error_code == "NOT_CONNECTED"
        assert "kubeconfig of cls-65r1c5nu" in str(error)
        assert data not in str(error)


def test_it_is_on_disk_only_while_it_is_read_and_nobody_else_may(
    cluster: Cluster, tke: Tke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    seen: dict[str, int] = {}
    load = kube_config.load_kube_config

    async def looking(path: str, *arguments: Any, **named: Any) -> Any:
        for place in (Path(path).parent, *Path(path).parent.iterdir()):
            seen[place.name] = stat.S_IMODE(place.stat().st_mode)
        return await load(path, *arguments, **named)

    monkeypatch.setattr(kube_config, "load_kube_config", looking)
    with tls_door(cluster.address, tmp_path) as door:
        tke.kubeconfig = lambda: tke.real_kubeconfig(door)
        assert offers(tke, tmp_path), (
            "it comes in with the certificate of the kubeconfig"
        )
    own = next(name for name in seen if name.startswith("gpuyard-"))
    files = (
        "kubeconfig",
        "certificate-authority-0",
        "client-certificate-0",
        "client-key-0",
    )
    assert seen == {own: 0o700, **dict.fromkeys(files, 0o600)}
    assert list(folder.iterdir()) == [], "nothing is left"


def test_a_door_of_another_authority_is_refused(
    cluster: Cluster, tke: Tke, tmp_path: Path
) -> None:
    with (
        tls_door(cluster.address, tmp_path) as door,
        tls_door(cluster.address, tmp_path) as other,
    ):
        tke.kubeconfig = lambda: tke.real_kubeconfig(
            replace(door, authority=other.authority)
        )
        error = trouble(tke, tmp_path)
    assert error.error_code == "NOT_CONNECTED"
    assert "certificate verify failed" in str(error)


# --- secrets, and what is loaded when ---


def test_secrets_are_in_nothing_that_is_shown(
    tke: Tke, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    kubeconfig = tke.encoded_kubeconfig()

    async def work(provider: TencentProvider) -> str:
        await provider.offers()
        tke.refuse("AuthFailure.SignatureFailure")
        await provider.offers()
        shown = (
            provider,
            provider.settings,
            provider.config,
            vars(provider),
            await provider.health_check(),
        )
        return " ".join(map(repr, shown))

    for settings in ({}, {"kubeconfig": kubeconfig}):
        tke.lift()
        shown = do(tke, tmp_path, work, **settings) + caplog.text
        for secret in (tke.secret_id, tke.secret_key, kubeconfig, tke.token):
            assert secret not in shown
    assert tke.secret_key not in json.dumps([dict(one) for one in tke.headers])


def test_missing_keys_are_one_error_that_names_them_and_the_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SECRET_ID", "SECRET_KEY", "REGION"):
        monkeypatch.delenv(f"TENCENTCLOUD_{name}", raising=False)
    with pytest.raises(InvalidInputError) as caught:
        registry.load("tencent", {"home": str(tmp_path)})
    assert [fault.field for fault in caught.value.faults] == [
        "secret_id",
        "secret_key",
        "region",
        "cluster_id",
    ]
    assert "TENCENTCLOUD_SECRET_ID" in str(caught.value)


def test_the_sdk_is_imported_with_the_first_question_only(
    tke: Tke, tmp_path: Path
) -> None:
    code = f"""
        import asyncio, sys
        from gpuyard.providers.tencent import TencentCloudAdapter
        assert not [name for name in sys.modules if name.startswith("tencentcloud")]
        provider = TencentCloudAdapter({tke.settings(tmp_path)!r})
        assert not [name for name in sys.modules if name.startswith("tencentcloud")]
        asyncio.run(provider.offers())
        assert "tencentcloud.tke.v20180525.tke_client" in sys.modules
        """
    environment = {
        key: value for key, value in os.environ.items() if "proxy" not in key.lower()
    }
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
