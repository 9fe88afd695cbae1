"""What gpuyard says of a cluster as it really is: rights, admission, events, and ends
that look like others.
"""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gpuyard import __version__
from gpuyard.domain.errors import ProviderError
from gpuyard.domain.jobconfig import GpuSpec, JobResult, JobStatus
from gpuyard.providers.conformance import Subject
from gpuyard.providers.conformance.subject import STAY
from tests.integration.providers.test_kubernetes import IMAGE
from tests.integration.providers.test_kubernetes_life import (
    as_user,
    left,
    pod_of,
    polled,
    role,
    run,
)
from tests.support.kubernetes import Cluster, Node
from tests.support.wait import wait_until

TAINT = "nvidia.com/gpu=present:NoSchedule"
FLAG = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "flag"},
    "spec": {"accessModes": ["ReadWriteMany"]},
}
SAVES_WHEN_ASKED = """
    import signal, sys, time
    def save(*_):
        print("saved", flush=True)
        sys.exit(0)
    signal.signal(signal.SIGTERM, save)
    print("ready", flush=True)
    while True:
        time.sleep(0.05)
    """


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster([Node("one", gpus=2, cpus=8), Node("two", gpus=2, cpus=8)]) as cluster:
        yield cluster


async def says(instance: Subject, job_id: str, words: str) -> JobResult:
    """Poll until the job, which waits, says so."""
    deadline = time.monotonic() + 60
    while True:
        result = await polled(instance, job_id, JobStatus.PENDING)
        if words in (result.error_message or ""):
            return result
        assert time.monotonic() < deadline, result
        await asyncio.sleep(0.05)


# --- rights and namespaces ---


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ("resources: [nodes]", "resources: [nodes/proxy]", "list nodes"),
        ("resources: [namespaces]", "resources: [namespaces/status]", "get namespaces"),
    ],
)
def test_rights_outside_the_role_are_named(cluster, tmp_path, before, after, named):
    token = role(cluster, tmp_path, **{before: after})

    async def work() -> dict[str, Any]:
        kubernetes = as_user(cluster, tmp_path, token)
        try:
            return await kubernetes.health_check()
        finally:
            await kubernetes.close()

    health = asyncio.run(work())
    assert (health["status"], named in health["message"]) == ("degraded", True), health


def test_a_namespace_that_does_not_exist_is_named(cluster, tmp_path):
    async def work(instance: Subject) -> dict[str, Any]:
        with pytest.raises(ProviderError, match='namespaces "absent" not found'):
            await instance.provider.offers()
        return await instance.provider.health_check()

    health = run(cluster, tmp_path, work, namespace="absent")
    assert health["status"] == "unhealthy"
    assert 'namespaces "absent" not found; create it' in health["message"]


def test_a_403_of_an_api_server_that_has_just_started_is_not_final(cluster, tmp_path):
    async def work(instance: Subject) -> JobResult:
        await instance.provider.offers()
        cluster.faults.answer(403, "POST", "/jobs$")
        config = instance.job("pass")
        with pytest.raises(ProviderError, match="cannot create resource") as raised:
            await instance.provider.submit_job(config)
        assert raised.value.error_code == "NOT_CONNECTED"
        return await polled(instance, await instance.provider.submit_job(config))

    assert run(cluster, tmp_path, work).status is JobStatus.COMPLETED


def test_it_tells_the_cluster_who_it_is(cluster, tmp_path):
    run(cluster, tmp_path, lambda instance: instance.provider.offers())
    assert cluster.faults.user_agents == {f"gpuyard/{__version__}"}


# --- admission of pods ---


def test_a_namespace_that_is_restricted_lets_jobs_in(cluster, tmp_path):
    cluster.enforce("restricted")
    code = "import os; open('out', 'w').close(); print(os.getuid(), os.environ['USER'])"

    async def work(instance: Subject) -> str:
        return await instance.succeed(
            instance.job(code, gpu_spec=GpuSpec(gpu_count=1), args_via_stdin=b"x")
        )

    assert run(cluster, tmp_path, work) == "1000 gpuyard\n"


def test_programs_run_as_whom_the_settings_say_and_may_write_to_their_claims(
    cluster, tmp_path
):
    cluster.create(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data"},
            "spec": {"accessModes": ["ReadWriteMany"]},
        }
    )
    code = "import os; open('/mine/out', 'w').close(); print(os.getuid())"

    async def work(instance: Subject) -> str:
        config = instance.job(code, volumes={"/mine": "pvc:data/me"})
        return await instance.succeed(config)

    settings = {"run_as_user": 4321, "fs_group": 77}
    assert run(cluster, tmp_path, work, **settings) == "4321\n"
    made = (cluster.claim("data") / "me" / "out").stat()
    assert (made.st_uid, made.st_gid) == (4321, 77)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("standard", 'violates PodSecurity "restricted:latest": runAsNonRoot != true'),
        (
            "webhook",
            'admission webhook "policy.test" denied the request: not like this',
        ),
    ],
)
def test_a_job_whose_pods_are_never_let_in_fails_with_the_words(
    cluster, tmp_path, kind, said
):
    if kind == "standard":
        cluster.enforce("restricted")
    else:
        cluster.refuse_pods("not like this")

    async def work(instance: Subject) -> JobResult:
        return await polled(instance, await instance.submit(instance.job("pass")))

    result = run(cluster, tmp_path, work, run_as_user=0)
    assert (result.status, result.reason) == (JobStatus.FAILED, "submit_failed")
    assert said in result.error_message
    assert wait_until(lambda: not left(cluster))


def test_a_job_whose_pods_exceed_a_quota_waits_with_the_words(cluster, tmp_path):
    cluster.create(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "few"},
            "spec": {"hard": {"pods": "0"}},
        }
    )

    async def work(instance: Subject) -> JobResult:
        job_id = await instance.submit(instance.job("pass"))
        await says(instance, job_id, "exceeded quota: few")
        await asyncio.to_thread(cluster.delete, "resourcequotas", "few")
        return await polled(instance, job_id)

    assert run(cluster, tmp_path, work).status is JobStatus.COMPLETED


def test_a_priority_class_that_is_missing_is_named(cluster, tmp_path):
    async def work(instance: Subject) -> None:
        config = instance.job("pass", options={"priority": 5})
        await says(
            instance,
            await instance.submit(config),
            "no PriorityClass with name urgent was found",
        )

    run(cluster, tmp_path, work, priority_classes={"5": "urgent"})


def test_a_queue_without_kueue_is_refused(cluster, tmp_path):
    async def work(instance: Subject) -> dict[str, Any]:
        with pytest.raises(ProviderError, match="the cluster has no Kueue"):
            await instance.provider.offers()
        return await instance.provider.health_check()

    health = run(cluster, tmp_path, work, queue="team")
    assert health["status"] == "unhealthy"
    assert "providers.kubernetes.queue is team" in health["message"]


# --- images ---


def test_only_words_about_the_image_make_a_missing_image(cluster, tmp_path):
    cluster.hide_registry(IMAGE)

    async def work(instance: Subject) -> JobResult:
        config = instance.job("pass", volumes={"/late": "pvc:late"})
        job_id = await instance.submit(config)
        await says(instance, job_id, 'persistentvolumeclaim "late" not found')
        claim = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "late"},
            "spec": {"accessModes": ["ReadWriteMany"]},
        }
        await asyncio.to_thread(cluster.create, claim)
        await says(instance, job_id, "PullBackOff")
        await asyncio.to_thread(cluster.add_image, IMAGE)
        return await polled(instance, job_id)

    assert run(cluster, tmp_path, work).status is JobStatus.COMPLETED


# --- ends that look like others ---


@pytest.mark.parametrize("how", ["drain", "delete"])
def test_one_that_is_asked_to_leave_and_leaves_with_0_has_not_completed(
    cluster, tmp_path, how
):
    async def work(instance: Subject) -> JobResult:
        job_id = await instance.submit(instance.job(SAVES_WHEN_ASKED))
        await polled(instance, job_id, JobStatus.RUNNING)
        await instance.says(job_id, "ready\n")
        pod = pod_of(cluster, job_id)["metadata"]["name"]
        if how == "drain":
            await asyncio.to_thread(cluster.drain, pod)
        else:
            await asyncio.to_thread(cluster.delete, "pods", pod)
        return await polled(instance, job_id)

    result = run(cluster, tmp_path, work)
    expected = {
        "drain": (JobStatus.FAILED, "preempted"),
        "delete": (JobStatus.CANCELLED, ""),
    }
    assert (result.status, result.reason) == expected[how], result
    assert result.exit_code == 0, "its last checkpoint is whole"


def test_what_a_node_refuses_goes_elsewhere_at_no_cost(cluster, tmp_path):
    cluster.lose_device_plugin("one")
    cluster.cordon("two")

    async def work(instance: Subject) -> tuple[JobResult, JobResult]:
        gpu = GpuSpec(gpu_count=1)
        refused = await polled(
            instance, await instance.submit(instance.job("pass", gpu_spec=gpu))
        )
        await asyncio.to_thread(cluster.cordon, "two", False)
        config = instance.job("pass", gpu_spec=gpu)
        return refused, await polled(instance, await instance.submit(config))

    refused, again = run(cluster, tmp_path, work)
    assert (refused.status, refused.reason) == (JobStatus.FAILED, "preempted")
    assert "one refused it (UnexpectedAdmissionError" in refused.error_message
    assert again.status is JobStatus.COMPLETED
    assert again.node == "two"


def test_a_program_that_is_not_there_is_no_exit_code_of_a_program(cluster, tmp_path):
    async def work(instance: Subject) -> JobResult:
        config = instance.job("").model_copy(update={"command": ("nosuch", "x")})
        return await polled(instance, await instance.submit(config))

    result = run(cluster, tmp_path, work)
    assert (result.exit_code, result.reason) == (None, "command_not_found")


@pytest.mark.parametrize("who", ["while it was watched", "while nobody watched"])
def test_one_whose_job_was_deleted_without_its_pods_runs_on_and_leaves_nothing(
    cluster, tmp_path, who
):
    code = "import os, time\nwhile not os.path.exists('/flag/go'): time.sleep(0.05)"
    cluster.create(FLAG)

    async def begin(instance: Subject) -> str:
        config = instance.job(
            code, environment={"A": "b"}, volumes={"/flag": "pvc:flag"}
        )
        job_id = await instance.submit(config)
        await polled(instance, job_id, JobStatus.RUNNING)
        return job_id

    def delete(job_id: str) -> None:
        cluster.delete("jobs", job_id, "default", policy="Orphan")
        wait_until(lambda: cluster.get("jobs", job_id) is None)

    async def follow(instance: Subject, job_id: str) -> JobResult:
        await polled(instance, job_id, JobStatus.RUNNING)
        (cluster.claim("flag") / "go").touch()
        result = await polled(instance, job_id)
        await instance.provider.forget_job(job_id)
        return result

    async def work(instance: Subject) -> JobResult:
        job_id = await begin(instance)
        await asyncio.to_thread(delete, job_id)
        return await follow(instance, job_id)

    if who == "while it was watched":
        result = run(cluster, tmp_path, work)
    else:
        job_id = run(cluster, tmp_path, begin)
        delete(job_id)
        result = run(cluster, tmp_path, lambda instance: follow(instance, job_id))
    assert (result.status, result.exit_code) == (JobStatus.COMPLETED, 0)
    assert wait_until(lambda: not left(cluster))


def test_one_whose_job_was_deleted_while_nobody_watched_runs_until_its_pod_has_left(
    cluster, tmp_path
):
    cluster.create(FLAG)
    code = """
        import os, signal, time
        signal.signal(signal.SIGTERM, lambda *_: None)
        print("ready", flush=True)
        while not os.path.exists("/flag/go"):
            time.sleep(0.05)
        """

    async def begin(instance: Subject) -> str:
        config = instance.job(code, volumes={"/flag": "pvc:flag"})
        job_id = await instance.submit(config)
        await instance.says(job_id, "ready\n")
        return job_id

    async def follow(instance: Subject, job_id: str) -> JobResult:
        await polled(instance, job_id, JobStatus.RUNNING)
        (cluster.claim("flag") / "go").touch()
        return await polled(instance, job_id)

    job_id = run(cluster, tmp_path, begin)
    cluster.delete("jobs", job_id)
    result = run(cluster, tmp_path, lambda instance: follow(instance, job_id))
    assert (result.status, result.reason) == (JobStatus.CANCELLED, "")
    assert result.error_message == "somebody deleted its Job"


# --- nodes that keep other jobs out ---


def test_a_job_without_gpus_stays_off_tainted_gpu_nodes_unless_nothing_else_suits(
    tmp_path,
):
    nodes = [
        Node("gpu", gpus=2, cpus=8, memory_gb=64, taints=(TAINT,)),
        Node("cpu", cpus=4, memory_gb=8),
    ]
    with Cluster(nodes) as cluster:

        async def work(instance: Subject) -> list[str]:
            needs = (
                GpuSpec(gpu_count=0),
                GpuSpec(gpu_count=1),
                GpuSpec(gpu_count=0, vcpus=6),
            )
            ran_on: list[str] = []
            for need in needs:
                config = instance.job("pass", gpu_spec=need)
                result = await polled(instance, await instance.submit(config))
                ran_on.append(result.node)
            cluster.cordon("cpu")
            waits = await instance.submit(instance.job(STAY))
            await says(instance, waits, "untolerated taint")
            await instance.clean_up()
            return ran_on

        assert run(cluster, tmp_path, work) == ["cpu", "gpu", "gpu"]
