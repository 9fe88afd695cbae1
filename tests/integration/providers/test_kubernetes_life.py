"""What becomes of jobs on Kubernetes when the cluster, the network or somebody else
gets in their way.
"""

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpuyard.domain.errors import (
    InsufficientResourcesError,
    JobNotFoundError,
    ProviderError,
)
from gpuyard.domain.jobconfig import GpuSpec, JobConfig, JobResult, JobStatus
from gpuyard.domain.jobspec import CheckpointSpec
from gpuyard.providers.conformance import Subject
from gpuyard.providers.conformance.subject import STAY
from gpuyard.providers.kubernetes.provider import KubernetesProvider
from tests.integration.providers.test_kubernetes import IMAGE, provider
from tests.support.kubernetes import Cluster, Node
from tests.support.kubernetes.objects import Object
from tests.support.wait import wait_until

ROLE = Path(__file__).parents[3] / "deploy" / "kubernetes" / "rbac.yaml"
OVER = (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED)
Work = Callable[[Subject], Awaitable[Any]]


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with Cluster([Node("one", gpus=2, cpus=8), Node("two", gpus=2, cpus=8)]) as cluster:
        yield cluster


def run(cluster: Cluster, home: Path, work: Work, **settings: Any) -> Any:
    """Do it with a provider of its own."""

    async def all_of_it() -> Any:
        kubernetes = provider(cluster, home, **settings)
        try:
            return await asyncio.wait_for(
                work(Subject(kubernetes, image=IMAGE, pause_s=0.02)), 60
            )
        finally:
            await kubernetes.close()

    return asyncio.run(all_of_it())


async def polled(instance: Subject, job_id: str, *wanted: JobStatus) -> JobResult:
    """Ask as the controller does, until it is so."""
    deadline = time.monotonic() + 60
    while True:
        result = (await instance.provider.poll_jobs([job_id])).get(job_id)
        if result and result.status in (wanted or OVER):
            return result
        assert time.monotonic() < deadline, result
        await asyncio.sleep(0.02)


def pod_of(cluster: Cluster, job_id: str) -> Object:
    return wait_until(
        lambda: next(
            (
                pod
                for pod in cluster.objects("pods")
                if pod["metadata"]["labels"].get("job-name") == job_id
            ),
            None,
        )
    )


def left(cluster: Cluster) -> list[str]:
    """All that gpuyard made and has not removed."""
    kinds = ("jobs", "pods", "secrets", "services")
    return [
        f"{kind}/{item['metadata']['name']}"
        for kind in kinds
        for item in cluster.objects(kind)
    ]


# --- somebody or something takes it away ---


def take_node(cluster: Cluster, pod: Object) -> None:
    cluster.lose_node(pod["spec"]["nodeName"])


TAKEN: Mapping[str, tuple[Callable[[Cluster, Object], None], JobStatus, str]] = {
    "evicted": (
        lambda cluster, pod: cluster.evict(pod["metadata"]["name"]),
        JobStatus.FAILED,
        "preempted",
    ),
    "its pod deleted": (
        lambda cluster, pod: cluster.delete("pods", pod["metadata"]["name"]),
        JobStatus.CANCELLED,
        "",
    ),
    "its Job deleted": (
        lambda cluster, pod: cluster.delete(
            "jobs", pod["metadata"]["labels"]["job-name"]
        ),
        JobStatus.CANCELLED,
        "",
    ),
    "its node lost": (take_node, JobStatus.FAILED, "node_lost"),
}


@pytest.mark.parametrize("how", TAKEN)
def test_one_that_is_taken_away_is_told_from_one_that_fails(cluster, tmp_path, how):
    take, status, reason = TAKEN[how]

    async def work(instance: Subject) -> JobResult:
        job_id = await instance.submit(instance.job(STAY))
        await polled(instance, job_id, JobStatus.RUNNING)
        await asyncio.to_thread(take, cluster, pod_of(cluster, job_id))
        return await polled(instance, job_id)

    result = run(cluster, tmp_path, work, node_lost_s=0.3)
    assert (result.status, result.reason) == (status, reason), result
    assert result.exit_code is None or status is not JobStatus.FAILED, result


def test_one_that_uses_more_memory_than_it_asked_for(cluster, tmp_path):
    async def work(instance: Subject) -> JobResult:
        spec = GpuSpec(gpu_count=0, ram_gb=0.1)
        return await polled(
            instance,
            await instance.submit(
                instance.job("x = bytearray(1 << 29); input()", gpu_spec=spec)
            ),
        )

    assert run(cluster, tmp_path, work).reason == "out_of_memory"


def test_a_timeout_keeps_what_was_printed_also_while_nobody_was_there(
    cluster, tmp_path
):
    job_id = run(
        cluster,
        tmp_path,
        lambda instance: instance.running(instance.job(STAY, timeout_minutes=0.02)),
    )

    async def later(instance: Subject) -> tuple[JobResult, str]:
        return await polled(instance, job_id), await instance.provider.get_job_logs(
            job_id
        )

    result, log = run(cluster, tmp_path, later)
    assert (result.status, result.reason, log) == (
        JobStatus.FAILED,
        "timed_out",
        "here\n",
    )


@pytest.mark.parametrize("shift_s", [-300, 300])
def test_a_clock_that_is_minutes_off_ends_nobody_early_and_moves_no_times(
    cluster, tmp_path, shift_s
):
    cluster.faults.shift_clock(shift_s)

    async def work(instance: Subject) -> JobResult:
        job_id = await instance.submit(instance.job("print('done')", timeout_minutes=1))
        return await polled(instance, job_id)

    result = run(cluster, tmp_path, work)
    assert result.status is JobStatus.COMPLETED
    for at in (result.created_at, result.started_at, result.completed_at):
        assert abs(at - time.time()) < abs(shift_s) / 2, result


SAVES = """
    import signal, sys, time
    def save(*_):
        print("saved", flush=True)
        sys.exit(0)
    signal.signal(signal.SIGUSR1, save)
    print("ready", flush=True)
    while True:
        time.sleep(0.05)
    """


def test_whoever_makes_room_is_asked_to_save_its_work_first(cluster, tmp_path):
    async def work(instance: Subject) -> tuple[JobResult, str]:
        job_id = await instance.submit(
            instance.job(
                SAVES, checkpoint=CheckpointSpec(signal="USR1", grace_s=20), grace_s=20
            )
        )
        await instance.says(job_id, "ready\n")
        assert await instance.provider.stop_job(job_id, checkpoint=True)
        return await polled(instance, job_id), await instance.provider.get_job_logs(
            job_id
        )

    result, log = run(cluster, tmp_path, work)
    assert (result.reason, log) == ("preempted", "ready\nsaved\n")


def test_it_is_asked_to_save_its_work_every_so_often_once_it_can(cluster, tmp_path):
    # Before it handles the signal, that would end it.
    code = SAVES.replace("def save", "time.sleep(1)\n    def save", 1)
    code = code.replace("sys.exit(0)", "pass")

    async def work(instance: Subject) -> str:
        job_id = await instance.submit(
            instance.job(code, checkpoint=CheckpointSpec(signal="USR1", every_s=0.2))
        )
        return await instance.says(job_id, "saved\nsaved\n")

    assert run(cluster, tmp_path, work).startswith("ready\nsaved\n")


@pytest.mark.parametrize("signal", ["INT", "QUIT"])
def test_a_signal_that_would_not_reach_it_is_refused(cluster, tmp_path, signal):
    with pytest.raises(
        ProviderError, match=f"checkpoint.signal {signal} does not reach"
    ):
        run(
            cluster,
            tmp_path,
            lambda instance: instance.submit(
                instance.job(SAVES, checkpoint=CheckpointSpec(signal=signal))
            ),
        )
    assert left(cluster) == []


def test_a_program_that_is_not_there_is_told_apart_also_under_the_guard(
    cluster, tmp_path
):
    async def work(instance: Subject) -> JobResult:
        config = instance.job("", checkpoint=CheckpointSpec(signal="USR1")).model_copy(
            update={"command": ("nosuch", "x")}
        )
        return await polled(instance, await instance.submit(config))

    result = run(cluster, tmp_path, work)
    assert (result.exit_code, result.reason) == (127, "command_not_found")


def test_a_variable_called_stdin_is_not_the_input(cluster, tmp_path):
    code = "import os, sys; print(os.environ['stdin'], sys.stdin.read())"

    async def work(instance: Subject) -> str:
        return await instance.succeed(
            instance.job(
                code, environment={"stdin": "a variable"}, args_via_stdin=b"the input"
            )
        )

    assert run(cluster, tmp_path, work) == "a variable the input\n"


# --- why it waits, in the cluster's own words ---


def test_why_it_waits_is_what_the_cluster_says(cluster, tmp_path):
    async def work(instance: Subject) -> JobResult:
        for _ in range(2):
            await instance.running(instance.job(STAY, gpu_spec=GpuSpec(gpu_count=2)))
        waiting = await instance.submit(
            instance.job(STAY, gpu_spec=GpuSpec(gpu_count=1))
        )
        deadline = time.monotonic() + 60
        while (
            result := await polled(instance, waiting, JobStatus.PENDING)
        ).reason != "Unschedulable":
            assert time.monotonic() < deadline, result
            await asyncio.sleep(0.02)
        await instance.clean_up()
        return result

    result = run(cluster, tmp_path, work)
    said = [
        event["message"]
        for event in cluster.objects("events")
        if event["reason"] == "FailedScheduling"
    ]
    assert result.error_message == f"Unschedulable: {said[-1]}"
    assert "2 Insufficient nvidia.com/gpu" in result.error_message


def test_an_image_that_does_not_exist_fails_and_leaves_nothing_running(
    cluster, tmp_path
):
    async def work(instance: Subject) -> JobResult:
        job_id = await instance.submit(instance.job("pass", image="nobody/nothing:1"))
        result = await polled(instance, job_id)
        await instance.provider.forget_job(job_id)
        return result

    result = run(cluster, tmp_path, work)
    assert (result.status, result.reason) == (JobStatus.FAILED, "no_image")
    assert "nobody/nothing:1" in result.error_message
    assert "not found" in result.error_message or "denied" in result.error_message
    assert wait_until(lambda: not left(cluster))


def test_in_kueues_line_the_reason_is_kueues(tmp_path):
    with Cluster([Node("one", gpus=2)], kueue={"team": 1}) as cluster:

        async def work(instance: Subject) -> str:
            gpu = GpuSpec(gpu_count=1)
            first = await instance.running(instance.job(STAY, gpu_spec=gpu))
            second = await instance.submit(instance.job("print('after')", gpu_spec=gpu))
            deadline = time.monotonic() + 60
            while "quota" not in (
                (
                    result := await polled(instance, second, JobStatus.PENDING)
                ).error_message
                or ""
            ):
                assert time.monotonic() < deadline, result
                await asyncio.sleep(0.05)
            await instance.provider.cancel_job(first)
            assert (await polled(instance, second)).status is JobStatus.COMPLETED
            return result.error_message

        assert "insufficient unused quota" in run(cluster, tmp_path, work, queue="team")


def test_one_that_its_queue_puts_back_runs_no_second_time_as_the_same(
    cluster, tmp_path
):
    async def work(instance: Subject) -> JobResult:
        job_id = await instance.submit(instance.job(STAY))
        await polled(instance, job_id, JobStatus.RUNNING)
        await asyncio.to_thread(
            cluster.edit, "jobs", job_id, lambda job: job["spec"].update(suspend=True)
        )
        return await polled(instance, job_id)

    result = run(cluster, tmp_path, work)
    assert (result.status, result.reason) == (JobStatus.FAILED, "preempted")
    assert wait_until(lambda: not left(cluster)), (
        "it is not there to be let begin again"
    )


def test_what_exceeds_the_namespaces_quota_is_told_apart(cluster, tmp_path):
    cluster.create(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "few"},
            "spec": {"hard": {"count/jobs.batch": "0"}},
        }
    )
    with pytest.raises(InsufficientResourcesError, match="exceeded quota"):
        run(
            cluster,
            tmp_path,
            lambda instance: instance.submit(
                instance.job("pass", environment={"TOKEN": "x"})
            ),
        )
    assert left(cluster) == [], "what was made for it is gone"


# --- gangs ---


def test_the_shares_of_a_gang_know_each_other_and_its_output_is_one(cluster, tmp_path):
    code = """
        import os
        print(os.environ["NODE_RANK"], os.environ["NNODES"], os.environ["MASTER_ADDR"], flush=True)
        """

    async def work(instance: Subject) -> tuple[JobResult, str]:
        job_id = await instance.submit(
            instance.job(code, gpu_spec=GpuSpec(gpu_count=2), options={"nodes": 2})
        )
        result = await polled(instance, job_id)
        log = b"".join(
            [
                part
                async for part in instance.provider.stream_logs(
                    job_id, lines=None, follow=True
                )
            ]
        )
        await instance.provider.forget_job(job_id)
        return result, log.decode()

    result, log = run(cluster, tmp_path, work)
    assert result.status is JobStatus.COMPLETED
    first = f"{result.job_id}-0.{result.job_id}"
    assert sorted(log.splitlines()) == [f"0 2 {first}", f"1 2 {first}"]
    assert wait_until(lambda: not left(cluster))


def test_a_gang_of_which_one_share_fails_ends_whole(cluster, tmp_path):
    code = (
        "import os, time; os.environ['NODE_RANK'] == '1' and exit(7); time.sleep(600)"
    )

    async def work(instance: Subject) -> JobResult:
        return await polled(
            instance, await instance.submit(instance.job(code, options={"nodes": 2}))
        )

    result = run(cluster, tmp_path, work)
    assert (result.status, result.exit_code) == (JobStatus.FAILED, 7)
    assert wait_until(lambda: not cluster.gpus_held())


def test_a_gang_whose_node_dies_is_released_as_one(cluster, tmp_path):
    async def work(instance: Subject) -> JobResult:
        job_id = await instance.submit(
            instance.job(STAY, gpu_spec=GpuSpec(gpu_count=2), options={"nodes": 2})
        )
        await polled(instance, job_id, JobStatus.RUNNING)
        await asyncio.to_thread(cluster.lose_node, "two")
        return await polled(instance, job_id)

    result = run(cluster, tmp_path, work, node_lost_s=0.3)
    assert (result.status, result.reason) == (JobStatus.FAILED, "node_lost")
    assert wait_until(lambda: not cluster.gpus_held())


def test_a_gang_of_which_only_a_part_has_a_place_is_taken_back_whole(cluster, tmp_path):
    async def work(instance: Subject) -> tuple[JobResult, JobResult]:
        holder = await instance.running(
            instance.job(STAY, gpu_spec=GpuSpec(gpu_count=2))
        )
        gang = await instance.submit(
            instance.job(STAY, gpu_spec=GpuSpec(gpu_count=2), options={"nodes": 2})
        )
        return await polled(instance, gang), await polled(
            instance, holder, JobStatus.RUNNING
        )

    gang, _ = run(cluster, tmp_path, work, gang_patience_s=0.5)
    assert (gang.status, gang.reason) == (JobStatus.FAILED, "revoked")
    assert wait_until(lambda: len(cluster.gpus_held()) == 2), (
        "only the other's are held"
    )


# --- the wire ---

SUBMIT = ("POST", "/jobs$")


@pytest.mark.parametrize(
    "fault",
    ["cut", "cut_after", "answer500", "answer429", "answer409", "misdirect", "hang"],
)
def test_whatever_becomes_of_a_submission_it_is_one_job(cluster, tmp_path, fault):
    async def work(instance: Subject) -> JobResult:
        await instance.provider.offers()
        put = {
            "cut": cluster.faults.cut,
            "cut_after": cluster.faults.cut_after,
            "hang": cluster.faults.hang,
            "misdirect": cluster.faults.misdirect,
            "answer409": lambda *where: cluster.faults.answer(409, *where),
            "answer500": lambda *where: cluster.faults.answer(500, *where),
            "answer429": lambda *where: cluster.faults.answer(429, *where),
        }[fault](*SUBMIT)
        config = instance.job("print('once')", environment={"A": "b"})
        with pytest.raises(ProviderError) as raised:
            await instance.provider.submit_job(config)
        assert raised.value.error_code in ("NOT_CONNECTED", "TIMEOUT", "THROTTLED")
        assert put.met == 1
        put.release()
        found = await instance.provider.find_by_attempt(config.attempt_id)
        assert found is None, "it may be there, but does not begin before it is whole"
        again = [await instance.provider.submit_job(config) for _ in range(2)]
        assert again[0] == again[1]
        return await polled(instance, again[0])

    assert run(cluster, tmp_path, work, timeout_s=1.0).status is JobStatus.COMPLETED
    assert len(cluster.objects("jobs")) == 1


@pytest.mark.parametrize("part", ["secrets", "services"])
def test_a_submission_cut_off_before_all_of_it_is_there_does_not_begin_and_is_made_whole(
    cluster, tmp_path, part
):
    async def work(instance: Subject) -> JobResult:
        await instance.provider.offers()
        cluster.faults.cut("POST", f"/{part}$")
        config = instance.job(
            "import os; print(os.environ['A'])",
            environment={"A": "b"},
            options={"nodes": 2},
        )
        with pytest.raises(ProviderError):
            await instance.provider.submit_job(config)
        assert await instance.provider.find_by_attempt(config.attempt_id) is None
        assert not cluster.objects("pods")
        result = await polled(instance, await instance.provider.submit_job(config))
        assert (
            await instance.provider.find_by_attempt(config.attempt_id) == result.job_id
        )
        return result

    assert run(cluster, tmp_path, work).status is JobStatus.COMPLETED


def test_what_was_sent_to_an_offer_that_is_no_more_goes_nowhere_else(cluster, tmp_path):
    config = {"offer": "kubernetes/gone"}
    with pytest.raises(
        InsufficientResourcesError, match="kubernetes/gone is not on offer any more"
    ):
        run(
            cluster,
            tmp_path,
            lambda instance: instance.submit(instance.job("pass", options=config)),
        )
    assert left(cluster) == []


def test_an_api_that_is_away_has_lost_nothing(cluster, tmp_path):
    async def work(instance: Subject) -> JobResult:
        job_id = await instance.running(instance.job(STAY))
        await polled(instance, job_id, JobStatus.RUNNING)
        away = cluster.faults.cut(times=None)
        await asyncio.to_thread(cluster.faults.reset_connections)
        with pytest.raises(ProviderError) as raised:
            while True:
                await instance.provider.poll_jobs([job_id])
                await asyncio.sleep(0.02)
        assert raised.value.error_code == "NOT_CONNECTED"
        assert (await instance.provider.health_check())["status"] == "unhealthy"
        away.release()
        deadline = time.monotonic() + 60
        while True:
            try:
                result = (await instance.provider.poll_jobs([job_id]))[job_id]
                break
            except ProviderError:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.1)
        await instance.clean_up()
        return result

    assert run(cluster, tmp_path, work).status is JobStatus.RUNNING


def test_a_job_that_went_while_the_api_was_away_is_not_known_once_it_answers(
    cluster, tmp_path
):
    """Until then nobody can say that it is lost."""

    async def begin(instance: Subject) -> str:
        return await instance.running(instance.job(STAY))

    async def ask(instance: Subject, job_id: str) -> None:
        away = cluster.faults.cut(times=None)
        with pytest.raises(ProviderError, match="Kubernetes at"):
            await instance.provider.poll_jobs([job_id])
        cluster.delete("jobs", job_id)
        wait_until(lambda: not cluster.objects("pods"))
        away.release()
        deadline = time.monotonic() + 60
        while True:
            try:
                assert await instance.provider.poll_jobs([job_id]) == {}
                return
            except ProviderError:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.1)

    job_id = run(cluster, tmp_path, begin)
    run(cluster, tmp_path, lambda instance: ask(instance, job_id))


def test_a_job_whose_notes_somebody_has_broken_fails_alone(cluster, tmp_path):
    def break_notes(job: Object) -> None:
        job["metadata"]["annotations"]["gpuyard.dev/limits"] = "no JSON"

    async def work(instance: Subject) -> tuple[JobResult, JobResult]:
        broken, whole = [await instance.running(instance.job(STAY)) for _ in range(2)]
        await asyncio.to_thread(cluster.edit, "jobs", broken, break_notes)
        await polled(instance, broken)
        results = await instance.provider.poll_jobs([broken, whole])
        await instance.clean_up()
        await asyncio.to_thread(wait_until, lambda: not cluster.get("jobs", broken), 30)
        return results[broken], results[whole]

    broken, whole = run(cluster, tmp_path, work)
    assert (broken.status, broken.reason) == (JobStatus.FAILED, "broken_file")
    assert whole.status is JobStatus.RUNNING


@pytest.mark.parametrize("as_http", [False, True])
def test_a_watch_that_missed_too_much_is_begun_anew_and_misses_nothing(
    tmp_path, as_http
):
    with Cluster([Node("one")], gone_as_http=as_http) as cluster:

        async def work(instance: Subject) -> list[JobResult]:
            stays = await instance.running(instance.job(STAY))
            ends = await instance.submit(
                instance.job("print('here', flush=True); raise SystemExit(1)")
            )
            await instance.says(ends)
            await polled(instance, stays, JobStatus.RUNNING)
            await asyncio.to_thread(cluster.delete, "jobs", stays)
            await asyncio.to_thread(cluster.forget_history)
            await asyncio.to_thread(cluster.end_watches)
            new = await instance.submit(instance.job("pass"))
            return [await polled(instance, job_id) for job_id in (stays, ends, new)]

        stays, ends, new = run(cluster, tmp_path, work)
    assert stays.status is JobStatus.CANCELLED
    assert ends.status is JobStatus.FAILED
    assert new.status is JobStatus.COMPLETED


def asked_without_watches(cluster: Cluster) -> int:
    """How many requests came; a watch may begin anew at any time."""
    return cluster.faults.count() - cluster.faults.count(verb="watch")


def test_asking_after_many_jobs_takes_no_request(cluster, tmp_path):
    async def work(instance: Subject) -> int:
        running = [await instance.running(instance.job(STAY)) for _ in range(5)]
        for job_id in running:
            await polled(instance, job_id, JobStatus.RUNNING)
        before = asked_without_watches(cluster)
        for _ in range(50):
            assert len(await instance.provider.poll_jobs(running)) == 5
        asked = asked_without_watches(cluster) - before
        await instance.clean_up()
        return asked

    assert run(cluster, tmp_path, work) == 0


@pytest.mark.parametrize(
    "fields", [("items.status",), ("items.metadata.labels",), ("items",), ("status",)]
)
def test_an_answer_with_fields_missing_is_no_end_and_no_crash(
    cluster, tmp_path, fields
):
    async def work(instance: Subject) -> JobResult:
        job_id = await instance.running(instance.job(STAY))
        lacking = cluster.faults.drop(
            *fields, method="GET", path="jobs|pods", times=None
        )
        for _ in range(3):
            assert (await instance.provider.get_job_status(job_id)).status not in OVER
        lacking.release()
        result = await polled(instance, job_id, JobStatus.RUNNING)
        await instance.clean_up()
        return result

    run(cluster, tmp_path, work)


# --- who may, and what is secret ---


def as_user(
    cluster: Cluster, home: Path, token: str, **settings: Any
) -> KubernetesProvider:
    config = cluster.kubeconfig(home / "kubeconfig", token)
    return KubernetesProvider(
        {
            "home": str(home),
            "kubeconfig": str(config),
            "namespace": "default",
            **settings,
        }
    )


def role(cluster: Cluster, home: Path, **instead: str) -> str:
    """The token of an account that has the rights in deploy/kubernetes/rbac.yaml and no
    others.
    """
    text = (
        ROLE.read_text()
        .replace("namespace: gpuyard", "namespace: default")
        .replace("[gpuyard]", "[default]")
    )
    for before, after in instead.items():
        assert before in text
        text = text.replace(before, after)
    (home / "rbac.yaml").write_text(text)
    return cluster.load_role(home / "rbac.yaml")


def test_the_rights_in_rbac_yaml_are_enough_and_all_of_them_are_used(cluster, tmp_path):
    token = role(cluster, tmp_path)

    async def work() -> None:
        kubernetes = as_user(cluster, tmp_path, token)
        instance = Subject(kubernetes, image=IMAGE)
        try:
            assert await kubernetes.health_check() == {
                "status": "healthy",
                "version": "v1.30.0",
            }
            gang = await instance.submit(
                instance.job(STAY, options={"nodes": 2}, environment={"A": "b"})
            )
            await polled(instance, gang, JobStatus.RUNNING)
            # A pod runs before its program has said anything.
            while "here" not in await kubernetes.get_job_logs(gang):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            await kubernetes.cancel_job(gang)
            assert (await polled(instance, gang)).status is JobStatus.CANCELLED
            await kubernetes.forget_job(gang)
        finally:
            await kubernetes.close()

    asyncio.run(work())
    assert wait_until(lambda: not left(cluster))


def test_a_missing_right_is_named(cluster, tmp_path):
    token = role(cluster, tmp_path, **{"[list, watch, patch, delete]": "[list, watch]"})

    async def work() -> dict[str, Any]:
        kubernetes = as_user(cluster, tmp_path, token)
        try:
            return await kubernetes.health_check()
        finally:
            await kubernetes.close()

    health = asyncio.run(work())
    assert health["status"] == "degraded"
    assert "patch pods, delete pods" in health["message"]


def test_credentials_that_expired_are_named_and_never_shown_and_a_renewed_file_is_read(
    cluster, tmp_path
):
    token = role(cluster, tmp_path)

    async def work() -> str:
        kubernetes = as_user(cluster, tmp_path, token)
        instance = Subject(kubernetes, image=IMAGE)
        try:
            await kubernetes.offers()
            await asyncio.to_thread(cluster.expire, token)
            config = instance.job("pass")
            with pytest.raises(ProviderError) as raised:
                await kubernetes.submit_job(config)
            cluster.kubeconfig(tmp_path / "kubeconfig", role(cluster, tmp_path))
            assert (
                await polled(instance, await kubernetes.submit_job(config))
            ).status is JobStatus.COMPLETED
            assert raised.value.error_code == "NOT_CONNECTED"
            return str(raised.value)
        finally:
            await kubernetes.close()

    said = asyncio.run(work())
    assert "credentials of its kubeconfig were refused (401)" in said
    assert token not in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "kubeconfig"),
        ("", "kubeconfig"),
        ("a: [", "kubeconfig"),
        ("token: hunter2\nusers: 3\n", "kubeconfig"),
        (
            (
                "apiVersion: v1\nkind: Config\ncurrent-context: x\ncontexts:"
                " []\nclusters: []\nusers: []\n"
            ),
            "x",
        ),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_is_named(tmp_path, text, said):
    path = tmp_path / "kubeconfig"
    if text is not None:
        path.write_text(text)
    kubernetes = KubernetesProvider({"home": str(tmp_path), "kubeconfig": str(path)})

    async def work() -> dict[str, Any]:
        try:
            return await kubernetes.health_check()
        finally:
            await kubernetes.close()

    health = asyncio.run(work())
    assert health["status"] == "unhealthy"
    assert said in health["message"]
    assert "hunter2" not in health["message"]


def test_another_cluster_is_noticed_before_anything_is_sent_there(cluster, tmp_path):
    run(cluster, tmp_path, lambda instance: instance.provider.offers())
    with (
        Cluster() as other,
        pytest.raises(ProviderError, match="another cluster than before"),
    ):
        run(other, tmp_path, lambda instance: instance.submit(instance.job("pass")))
    (tmp_path / "kubernetes" / "cluster").unlink()
    with Cluster() as other:
        run(other, tmp_path, lambda instance: instance.provider.offers())


def test_what_the_owner_says_is_in_a_secret_and_nowhere_else_and_goes_with_the_job(
    cluster, tmp_path
):
    hidden = "s3cr3t-$(HOME)-\n-`id`"

    async def work(instance: Subject) -> None:
        code = (
            "import os; print(repr(os.environ['TOKEN']), flush=True); import time;"
            " time.sleep(600)"
        )
        job_id = await instance.submit(
            instance.job(code, environment={"TOKEN": hidden})
        )
        assert await instance.says(job_id) == f"{hidden!r}\n"
        (secret,) = cluster.objects("secrets")
        assert base64.b64decode(secret["data"]["TOKEN"]).decode() == hidden
        shown = [str(cluster.objects(kind)) for kind in ("jobs", "pods", "events")]
        assert not any("s3cr3t" in text for text in shown)
        await instance.provider.cancel_job(job_id)
        await instance.ended(job_id)
        await instance.provider.forget_job(job_id)

    run(cluster, tmp_path, work)
    assert wait_until(lambda: not left(cluster))


def test_the_container_may_do_little(cluster, tmp_path):
    async def work(instance: Subject) -> Object:
        job_id = await instance.running(
            instance.job(STAY, gpu_spec=GpuSpec(gpu_count=1, vcpus=2, ram_gb=1))
        )
        pod = pod_of(cluster, job_id)
        await instance.clean_up()
        return pod["spec"]

    spec = run(cluster, tmp_path, work)
    (container,) = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert container["resources"]["limits"] == {
        "cpu": "2000m",
        "memory": str(1 << 30),
        "nvidia.com/gpu": "1",
    }
    assert spec["automountServiceAccountToken"] is False
    assert {"name": "shm", "emptyDir": {"medium": "Memory"}} in spec["volumes"]


def test_volumes_are_claims_and_a_folder_of_this_host_is_refused(cluster, tmp_path):
    spec = {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "1Gi"}},
    }
    cluster.create(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data"},
            "spec": spec,
        }
    )

    async def work(instance: Subject) -> JobConfig:
        code = "open('/mine/out', 'w').write(open('/all/in').read() + ' seen')"
        config = instance.job(code, volumes={"/mine": "pvc:data/me"})
        assert (
            await polled(instance, await instance.submit(config))
        ).status is JobStatus.COMPLETED
        with pytest.raises(
            ProviderError, match="folders of this host are not on the cluster"
        ):
            await instance.provider.submit_job(
                instance.job("pass", volumes={"/x": "/home"})
            )
        return config

    folder = cluster.claim("data")
    (folder / "me").mkdir(parents=True)
    (folder / "in").write_text("it was")
    run(cluster, tmp_path, work, volumes={"/all": "pvc:data"})
    assert (folder / "me" / "out").read_text() == "it was seen"


# --- supply ---


def test_nodes_alike_are_one_offer_with_their_price_and_jobs_go_to_those(tmp_path):
    nodes = [
        Node("a1", gpus=4, cpus=32),
        Node("a2", gpus=4, cpus=32),
        Node(
            "t1",
            gpus=1,
            gpu_product="Tesla-T4",
            gpu_memory_mib=15360,
            instance_type="small",
            labels={"karpenter.sh/capacity-type": "spot"},
        ),
        Node("c1", cpus=64, instance_type="cpu.large", taints=("team=x:NoSchedule",)),
        Node("c2", cpus=16, instance_type="cpu.large"),
    ]
    pools = {
        "h100": {
            "node_selector": {"pool": "h100"},
            "gpu": "H100",
            "gpus": 8,
            "cpus": 96,
            "memory_gb": 1000,
            "nodes": 4,
            "price_per_hour": 40,
            "wait_s": 300,
        }
    }
    with Cluster(nodes) as cluster:

        async def work(instance: Subject) -> tuple[Any, str]:
            offers = {offer.id: offer for offer in await instance.provider.offers()}
            options = {"offer": "kubernetes/tesla-t4-small-spot"}
            job_id = await instance.running(
                instance.job(STAY, gpu_spec=GpuSpec(gpu_count=1), options=options)
            )
            node = pod_of(cluster, job_id)["spec"]["nodeName"]
            await asyncio.to_thread(cluster.cordon, "t1")
            offers |= {offer.id: offer for offer in await instance.provider.offers()}
            await instance.clean_up()
            return offers, node

        prices = {"NVIDIA-A100-SXM4-40GB": 3, "small": "0.4"}
        offers, node = run(cluster, tmp_path, work, pools=pools, prices=prices)
    assert node == "t1"
    a100, t4, cpu = (
        offers[f"kubernetes/{name}"]
        for name in (
            "nvidia-a100-sxm4-40gb-test.large",
            "tesla-t4-small-spot",
            "cpu-cpu.large",
        )
    )
    assert (a100.nodes, a100.gpus, a100.price_per_hour, sorted(a100.classes)) == (
        2,
        4,
        12,
        ["a100-40gb"],
    )
    assert (t4.spot, t4.gpu_gb, t4.capability, sorted(t4.classes)) == (
        True,
        15,
        (7, 5),
        ["t4"],
    )
    assert "cordoned" in t4.problem
    assert (cpu.nodes, cpu.cpus, cpu.price_per_hour) == (1, 16, None)
    assert (offers["kubernetes/h100"].nodes, offers["kubernetes/h100"].wait_s) == (
        4,
        300,
    )


def test_a_job_that_is_not_known(cluster, tmp_path):
    async def work(instance: Subject) -> None:
        with pytest.raises(JobNotFoundError):
            await instance.provider.stop_job("gpuyard-nothing", checkpoint=True)
        assert await instance.provider.poll_jobs(["gpuyard-nothing"]) == {}
        await instance.provider.forget_job("gpuyard-nothing")

    run(cluster, tmp_path, work)
