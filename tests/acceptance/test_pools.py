"""Pools on a real Slurm cluster, on a full fake of a Kubernetes cluster, and of
machines: nodes join, run jobs, models and scripts, break and go.
"""

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.acceptance.test_slurm import settings
from tests.support.fake_cloud import FakeCloud, fake_cloud_environment, note_python
from tests.support.instance import TestInstance, make_instance
from tests.support.joined import nodes
from tests.support.kubernetes import Cluster, Node
from tests.support.pool_work import ask, check_work, work_settings
from tests.support.pooled import CALLS, MOMENTS, STAGES, ClusterPool, pooled_instance
from tests.support.ports import free_port
from tests.support.slurm import SlurmCluster
from tests.support.wait import wait_until

# The nodes of the cluster are this machine, so their GPUs are simulated.
_GPUYARD = f"env GPUYARD_NODE__SIMULATE_GPUS=2x40 {shlex.quote(sys.executable)}"
_POOL = f"""
[pools.warm]
provider = "slurm"
type = "a100_40gb"
max = 2
idle = "3s"
command = {json.dumps(_GPUYARD + " -m gpuyard.cli.entry")}
[providers.slurm.gpus.a100]
memory_gb = 40
price_per_hour = 2
"""

_CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "shared"},
    "spec": {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "1Gi"}},
    },
}
_CLOUD_POOL = """
[pools.warm]
provider = "fakecloud"
type = "cpu.small"
min = 1
silence = "10s"
"""
_GPU_POOL = """
[pools.warm]
provider = "fakecloud"
type = "gpu.one"
max = 2
idle = "5s"
"""


@pytest.fixture
def instance(slurm: SlurmCluster) -> Iterator[TestInstance]:
    listen = f"127.0.0.1:{free_port(2)}"
    with make_instance(GPUYARD_SERVER__AGENTS_LISTEN=listen) as made:
        made.home.create()
        made.home.settings.write_text(settings(slurm) + _POOL)
        made.ok("up")
        yield made
        slurm.call("scancel", "--me", check=False)


def pool(instance: TestInstance) -> dict[str, Any]:
    return instance.json("pools", "show", "warm")


def told(instance: TestInstance, slurm: SlurmCluster) -> str:
    """What is known of the pool, for whoever reads a failure."""
    logs = (instance.home.root / "slurm" / "pools").glob("*.log")
    said = "\n".join(log.read_text(errors="replace") for log in logs)
    return f"{json.dumps(pool(instance), indent=1)}\n{said}\n{slurm.newest_log(20)}"


def until(
    instance: TestInstance, slurm: SlurmCluster, state: str, count: int
) -> list[dict[str, Any]]:
    """Wait until at least so many nodes of the pool are in this state; these."""

    def found() -> list[dict[str, Any]]:
        nodes = pool(instance)["newest_nodes"]
        return [node for node in nodes if node["state"] == state]

    try:
        wait_until(lambda: len(found()) >= count, what=f"{count} to be {state}")
    except AssertionError as error:
        raise AssertionError(f"{error}: {told(instance, slurm)}") from None
    return found()


def test_nodes_come_run_a_batch_of_scripts_are_replaced_and_go(
    instance: TestInstance, slurm: SlurmCluster
) -> None:
    (instance.work / "hello.py").write_text("import os\nprint('on', os.getcwd())\n")
    here = ("run", "--detach", "--provider", "local", "--gpus", "2")
    held = instance.ok(*here, "--retries", "1", "--", "sleep", "600").strip()
    first = until(instance, slurm, "joined", 1)[0]
    instance.wait(held, "running")
    assert instance.job(held).node == first["node_id"]
    # It is cut off: its job goes on elsewhere, and another one comes.
    slurm.call("scancel", "--signal=KILL", "--full", first["reference"])
    until(instance, slurm, "gone", 1)
    until(instance, slurm, "joined", 1)
    instance.wait(held, "running")
    instance.ok("cancel", held)
    # A batch of scripts runs on the node that is there, and then it goes.
    batch = instance.ok(*here, "--array", "1-6", "hello.py").strip()
    try:
        instance.ok("wait", batch)
    except AssertionError as error:
        raise AssertionError(f"{error}: {told(instance, slurm)}") from None
    wait_until(lambda: not any(pool(instance)["nodes"].values()), what="all to go")
    # What they have printed has come home, since the node is no more.
    assert instance.ok("logs", f"{batch}_1").startswith("on /")
    assert "nothing waits for it" in instance.ok("pools")
    assert "There is no pool 'cold'." in instance.run("pools", "show", "cold").stderr
    (one,) = instance.json("pools")["items"]
    assert float(one["cost"]["USD"]) > 0
    assert "nothing ran on it for 3s" in instance.ok("pools", "show", "warm")
    states = slurm.call("squeue", "-h", "-t", "all", "--me", "-o", "%T").split()
    assert set(states) <= {"CANCELLED", "COMPLETING", "FAILED", "COMPLETED"}, states


@pytest.mark.skipif(
    "GPUYARD_EVERY_CASE" not in os.environ,
    reason="`make soak` runs it: each node takes many seconds",
)
def test_a_model_and_scripts_bring_nodes_of_slurm(slurm: SlurmCluster) -> None:
    listen = f"127.0.0.1:{free_port(2)}"
    with make_instance(GPUYARD_SERVER__AGENTS_LISTEN=listen) as instance:
        instance.home.create()
        work = work_settings(instance.work)
        instance.home.settings.write_text(settings(slurm) + _POOL + work)
        instance.ok("up")
        try:
            model = check_work(instance, instance.work)
            _check_all_go(instance, model)
        except AssertionError as error:
            raise AssertionError(f"{error}: {told(instance, slurm)}") from None
        finally:
            slurm.call("scancel", "--me", check=False)


@pytest.mark.skipif(
    "GPUYARD_EVERY_CASE" not in os.environ,
    reason="`make soak` runs it: each machine takes many seconds",
)
@pytest.mark.timeout(1800)
def test_a_model_and_scripts_bring_rented_machines(tmp_path: Path) -> None:
    cloud = FakeCloud(tmp_path)
    environment = fake_cloud_environment(tmp_path, free_port(2))
    with make_instance(**environment) as instance:
        try:
            instance.home.create()
            instance.home.settings.write_text(_GPU_POOL + work_settings(instance.work))
            instance.ok("up")
            model = check_work(instance, instance.work)
            _check_all_go(instance, model)
            assert not cloud.live()
        finally:
            cloud.close_all()


@pytest.mark.skipif(
    "GPUYARD_EVERY_CASE" not in os.environ,
    reason="`make soak` runs it: each node takes many seconds",
)
@pytest.mark.timeout(1800)
def test_a_pool_on_kubernetes_outlives_its_server_and_a_lost_node(
    tmp_path: Path,
) -> None:
    with Cluster([Node("one", gpus=2), Node("two", gpus=2)]) as cluster:
        cluster.create(_CLAIM)
        with _in_front_of(cluster, tmp_path) as instance:
            _check_on_kubernetes(cluster, instance)


@pytest.mark.skipif(
    "GPUYARD_EVERY_CASE" not in os.environ,
    reason="`make soak` runs it: its machines need the real interpreter",
)
@pytest.mark.timeout(1800)
def test_a_rented_machine_that_is_cut_off_is_replaced(tmp_path: Path) -> None:
    cloud = FakeCloud(tmp_path)
    environment = fake_cloud_environment(tmp_path, free_port(2))
    note_python(tmp_path, sys.executable)
    with make_instance(**environment) as instance:
        try:
            instance.home.create()
            instance.home.settings.write_text(_CLOUD_POOL)
            instance.ok("up")
            _check_replaced(instance, cloud)
        finally:
            cloud.close_all()


@pytest.mark.skipif(
    "GPUYARD_EVERY_CASE" not in os.environ,
    reason="`make soak` runs it: each death takes many seconds",
)
@pytest.mark.timeout(1800)
def test_the_server_dies_at_each_step_of_a_nodes_life(tmp_path: Path) -> None:
    with pooled_instance(tmp_path) as pooled:
        for moment in MOMENTS:
            pooled.survive(moment)


@pytest.mark.skipif(
    "GPUYARD_EVERY_CASE" not in os.environ,
    reason="`make soak` runs it: each death takes many seconds",
)
@pytest.mark.timeout(1800)
def test_the_server_dies_at_each_step_of_a_pods_life(tmp_path: Path) -> None:
    with Cluster([Node("one", gpus=2)]) as cluster:
        cluster.create(_CLAIM)
        with _in_front_of(cluster, tmp_path) as instance:
            (own,) = nodes(instance)
            instance.ok("nodes", "cordon", own)
            pooled = ClusterPool(instance, cluster, cluster.claim("shared"))
            for moment in (*CALLS, *STAGES):
                pooled.survive(moment)


@contextmanager
def _in_front_of(cluster: Cluster, folder: Path) -> Iterator[TestInstance]:
    """An instance with a pool on the cluster. Its nodes see the folder of a claim where
    this machine does; `/tmp` is their own.
    """
    shared = cluster.claim("shared")
    config = cluster.kubeconfig(folder / "kubeconfig", "")
    listen = f"127.0.0.1:{free_port(2)}"
    with make_instance(GPUYARD_SERVER__AGENTS_LISTEN=listen) as instance:
        instance.home.create()
        instance.home.settings.write_text(
            f"""
[providers.kubernetes]
kubeconfig = "{config}"
namespace = "default"
run_as_user = 0
force_after_s = 1
volumes = {{ "{shared}" = "pvc:shared" }}
[pools.warm]
provider = "kubernetes"
image = "python:3.11-slim"
max = 1
idle = "3s"
silence = "10s"
command = {json.dumps(_GPUYARD + " -m gpuyard.cli.entry")}
{work_settings(shared)}"""
        )
        instance.ok("up")
        yield instance


def _check_on_kubernetes(cluster: Cluster, instance: TestInstance) -> None:
    """Its server is killed while a node is on its way, and while it works; then the
    node is lost.
    """
    shared = cluster.claim("shared")
    with ThreadPoolExecutor() as threads:
        cluster.faults.cut_after("POST", "/secrets")
        asked = threads.submit(ask, instance)
        wait_until(lambda: cluster.objects("jobs"), what="a node")
        instance.kill("server")
        with suppress(httpx.HTTPError):
            asked.result()
    instance.ok("up")
    model = check_work(instance, shared)
    instance.kill("server")
    instance.ok("up")
    assert "hello" in ask(instance)
    _check_all_go(instance, model)
    # A node that is cut off is replaced.
    assert "hello" in ask(instance)
    (pod,) = cluster.objects("pods")
    cluster.lose_node(pod["spec"]["nodeName"])
    assert "hello" in ask(instance)
    rows = {row["id"]: row["state"] for row in pool(instance)["newest_nodes"]}
    assert rows[pod["metadata"]["labels"]["gpuyard.dev/pool-node"]] != "joined", rows
    _check_all_go(instance)
    wait_until(lambda: not cluster.objects("jobs"), what="all Jobs to go")
    cluster.check_gpus()


def _check_all_go(instance: TestInstance, model: str = "") -> None:
    """All nodes go, and their model was unloaded before."""
    wait_until(
        lambda: not any(pool(instance)["nodes"].values()),
        timeout=300,
        what="all to go",
    )
    if model:
        assert instance.job(model).reason == "evicted"


def _check_replaced(instance: TestInstance, cloud: FakeCloud) -> None:
    _wait(instance, cloud, lambda: _joined(instance) == 1, "it to join")
    (first,) = cloud.live()
    cloud.cut_off(first["id"])
    _wait(instance, cloud, lambda: first not in cloud.live(), "its machine to end")
    _wait(instance, cloud, lambda: _joined(instance) == 1, "another to join")
    (second,) = cloud.live()
    rows = {row["reference"]: row for row in pool(instance)["newest_nodes"]}
    assert rows[f"here-1/{first['id']}"]["why"] == "it was silent for 10s"
    newest = rows[f"here-1/{second['id']}"]
    assert newest["price_per_hour"] == "0.10"
    known = nodes(instance)
    assert known[newest["name"]]["pool"] == "warm"
    (own,) = known.keys() - {newest["name"]}
    instance.ok("nodes", "cordon", own)
    said = instance.ok("run", "--", "sh", "-c", "echo here")
    assert said == "here\n"


def _joined(instance: TestInstance) -> int:
    return int(pool(instance)["nodes"]["joined"])


def _wait(
    instance: TestInstance, cloud: FakeCloud, over: Callable[[], bool], what: str
) -> None:
    """Wait, and say what is known if it takes too long."""
    try:
        # Its machine runs in the real interpreter, which takes long to start.
        wait_until(over, what=what, timeout=300)
    except AssertionError as error:
        logs = [cloud.log(row["id"]) for row in cloud.rows()]
        known = (json.dumps(pool(instance), indent=1), *logs, instance.newest_logs())
        raise AssertionError("\n".join((str(error), *known))) from None
