"""The fake cluster's server refuses, selects, watches and guards as a real one does."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kubernetes_asyncio import client, watch

from tests.integration.support.conftest import (
    CPU,
    GPUS,
    Client,
    in_phase,
    pods_of,
    said,
    with_condition,
)
from tests.support.kubernetes import Cluster
from tests.support.kubernetes.manifests import job, pod
from tests.support.kubernetes.objects import Object
from tests.support.wait import wait_until

Connect = Callable[..., Client]
_ROLE = """
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: gpuyard}
rules:
- {apiGroups: [batch], resources: [jobs], verbs: [create, get, list]}
- {apiGroups: [""], resources: [pods, pods/log], verbs: [get, list]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: gpuyard-nodes}
rules:
- {apiGroups: [""], resources: [nodes], verbs: [list]}
"""


def test_refusals_are_status_objects(cluster: Cluster, kube: Client) -> None:
    missing = kube.refused(kube.batch.read_namespaced_job("nobody", "default"))
    assert json.loads(missing.body) == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": 'jobs.batch "nobody" not found',
        "reason": "NotFound",
        "details": {"name": "nobody", "group": "batch", "kind": "jobs"},
        "code": 404,
    }
    kube.create(job("twice", suspend=True))
    again = kube.refused(kube.batch.create_namespaced_job("default", job("twice")))
    assert (again.status, json.loads(again.body)["reason"]) == (409, "AlreadyExists")
    nowhere = kube.refused(kube.batch.create_namespaced_job("nowhere", job("x")))
    assert json.loads(nowhere.body)["message"] == 'namespaces "nowhere" not found'
    stale = kube.do(kube.batch.read_namespaced_job("twice", "default"))
    kube.do(
        kube.batch.patch_namespaced_job(
            "twice", "default", {"metadata": {"labels": {"a": "b"}}}
        )
    )
    stale.spec.parallelism = 2
    conflict = kube.refused(
        kube.batch.replace_namespaced_job("twice", "default", stale)
    )
    assert (conflict.status, json.loads(conflict.body)["reason"]) == (409, "Conflict")
    wrong = client.V1DeleteOptions(preconditions=client.V1Preconditions(uid="other"))
    assert (
        kube.refused(
            kube.batch.delete_namespaced_job("twice", "default", body=wrong)
        ).status
        == 409
    )


def _limits(**limits: Any) -> Object:
    return {"resources": {"limits": limits}}


@pytest.mark.parametrize(
    ("manifest", "field"),
    [
        (job("Not_Valid"), "metadata.name"),
        (job("x" * 64), "spec.template.labels"),
        (
            job("x", container=_limits(cpu="-1")),
            "spec.template.spec.containers[0].resources.limits[cpu]",
        ),
        (
            job(
                "x",
                container={
                    "resources": {
                        "limits": {"nvidia.com/gpu": 2},
                        "requests": {"nvidia.com/gpu": 1},
                    }
                },
            ),
            "spec.template.spec.containers[0].resources.requests",
        ),
        (job("x", container={"image": ""}), "spec.template.spec.containers[0].image"),
        (
            job("x", container={"volumeMounts": [{"name": "v", "mountPath": "/v"}]}),
            "spec.template.spec.containers[0].volumeMounts[0].name",
        ),
        (
            job("x", pod_spec={"restartPolicy": "Always"}),
            "spec.template.spec.restartPolicy",
        ),
        (
            {**job("x"), "metadata": {"name": "x", "labels": {"a": "not valid"}}},
            "metadata.labels",
        ),
    ],
)
def test_what_is_not_valid(kube: Client, manifest: Object, field: str) -> None:
    error = kube.refused(kube.batch.create_namespaced_job("default", manifest))
    status = json.loads(error.body)
    assert (
        error.status,
        status["reason"],
        status["details"]["causes"][0]["field"],
    ) == (422, "Invalid", field)


def test_what_is_immutable(kube: Client) -> None:
    kube.create(job("fixed"))
    change = {"spec": {"template": {"spec": {"nodeSelector": {"a": "b"}}}}}
    error = kube.refused(kube.batch.patch_namespaced_job("fixed", "default", change))
    assert "field is immutable" in json.loads(error.body)["message"]
    for container in (
        _limits(cpu="lots"),
        {"env": [{"name": "A", "value": 1}]},
        {"command": ["sleep", 5]},
    ):
        unreadable = pod("x", container=container)
        assert (
            kube.refused(kube.core.create_namespaced_pod("default", unreadable)).status
            == 400
        )
    large = {
        "kind": "ConfigMap",
        "metadata": {"name": "large"},
        "data": {"x": "." * (1 << 20), "y": "."},
    }
    assert (
        kube.refused(kube.core.create_namespaced_config_map("default", large)).status
        == 422
    )


def test_selectors(cluster: Cluster, kube: Client) -> None:
    for name, labels in (
        ("one", {"tier": "a", "gpu": "yes"}),
        ("two", {"tier": "b"}),
        ("three", {"tier": "c"}),
    ):
        cluster.create(
            {"kind": "ConfigMap", "metadata": {"name": name, "labels": labels}}
        )

    def names(**query: str) -> set[str]:
        return {
            each.metadata.name
            for each in kube.do(
                kube.core.list_namespaced_config_map("default", **query)
            ).items
        }

    assert names(label_selector="tier=a") == {"one"}
    assert names(label_selector="tier!=a,tier") == {"two", "three"}
    assert names(label_selector="tier in (a, b),!gpu") == {"two"}
    assert names(label_selector="tier notin (a),tier") == {"two", "three"}
    assert names(field_selector="metadata.name=three") == {"three"}
    kube.create(pod("selected"))
    in_phase(cluster, "selected", "Succeeded")
    query = "status.phase=Succeeded,spec.nodeName=cpu-1,metadata.name=selected"
    assert (
        len(
            kube.do(
                kube.core.list_namespaced_pod("default", field_selector=query)
            ).items
        )
        == 1
    )
    query = "involvedObject.kind=Pod,involvedObject.name=selected,reason=Started"
    (event,) = kube.do(
        kube.core.list_namespaced_event("default", field_selector=query)
    ).items
    assert (event.message, event.type, event.count) == (
        "Started container main",
        "Normal",
        1,
    )
    assert (
        kube.refused(
            kube.core.list_namespaced_pod("default", field_selector="spec.volumes=1")
        ).status
        == 400
    )


def test_pages_show_one_moment(cluster: Cluster, kube: Client) -> None:
    for number in range(5):
        cluster.create(
            {
                "kind": "Secret",
                "metadata": {"name": f"page-{number}", "labels": {"of": "pages"}},
            }
        )
    query: dict[str, Any] = {"limit": 2, "label_selector": "of=pages"}
    first = kube.do(kube.core.list_namespaced_secret("default", **query))
    cluster.delete("secrets", "page-4")
    token = first.metadata._continue
    second = kube.do(
        kube.core.list_namespaced_secret("default", _continue=token, **query)
    )
    third = kube.do(
        kube.core.list_namespaced_secret(
            "default", _continue=second.metadata._continue, **query
        )
    )
    found = [
        each.metadata.name for page in (first, second, third) for each in page.items
    ]
    assert found == [f"page-{number}" for number in range(5)]
    assert third.metadata._continue is None
    cluster.forget_history()
    assert (
        kube.refused(
            kube.core.list_namespaced_secret("default", _continue=token, **query)
        ).status
        == 410
    )


def test_a_watch_tells_what_changes(cluster: Cluster, kube: Client) -> None:
    version = kube.do(
        kube.core.list_namespaced_config_map("default")
    ).metadata.resource_version

    async def scenario() -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = []
        stream = watch.Watch().stream(
            kube.core.list_namespaced_config_map,
            "default",
            resource_version=version,
            label_selector="watched=yes",
            timeout_seconds=20,
        )
        async for event in stream:
            found.append((event["type"], event["object"].metadata.name))
            if len(found) == 4:
                return found
        return found

    def label(value: str) -> Callable[[Object], None]:
        return lambda draft: draft["metadata"].update(labels={"watched": value})

    cluster.create(
        {
            "kind": "ConfigMap",
            "metadata": {"name": "seen", "labels": {"watched": "yes"}},
        }
    )
    cluster.create({"kind": "ConfigMap", "metadata": {"name": "unseen"}})
    cluster.edit("configmaps", "seen", lambda draft: draft.update(data={"a": "b"}))
    cluster.edit("configmaps", "seen", label("no"))
    cluster.edit("configmaps", "unseen", label("yes"))
    assert kube.do(scenario()) == [
        ("ADDED", "seen"),
        ("MODIFIED", "seen"),
        ("DELETED", "seen"),
        ("ADDED", "unseen"),
    ]


def test_bookmarks_and_the_end_of_a_watch(connect: Connect) -> None:
    with Cluster([CPU], bookmark_s=0.05) as cluster:
        kube = connect(cluster)
        before = kube.do(
            kube.core.list_namespaced_pod("default")
        ).metadata.resource_version
        cluster.create({"kind": "ConfigMap", "metadata": {"name": "other"}})

        async def scenario() -> str:
            stream = watch.Watch().stream(
                kube.core.list_namespaced_pod,
                "default",
                allow_watch_bookmarks=True,
                resource_version=before,
                timeout_seconds=10,
            )
            async for event in stream:
                version = event["raw_object"]["metadata"]["resourceVersion"]
                if event["type"] == "BOOKMARK" and int(version) > int(before):
                    cluster.end_watches()
            return "ended"

        assert kube.do(scenario()) == "ended"


@pytest.mark.parametrize("as_http", [False, True])
def test_a_version_that_is_too_old(connect: Connect, as_http: bool) -> None:
    with Cluster([CPU], window=5, gone_as_http=as_http) as cluster:
        kube = connect(cluster)
        old = kube.do(
            kube.core.list_namespaced_pod("default")
        ).metadata.resource_version
        for number in range(6):
            cluster.create({"kind": "ConfigMap", "metadata": {"name": f"c{number}"}})
        path = "/api/v1/namespaces/default/pods"
        if as_http:
            query = {"resource_version": old, "watch": True, "_preload_content": False}
            reply = kube.do(kube.core.list_namespaced_pod("default", **query))
            assert reply.status == 410
            return
        event = json.loads(kube.do(kube.get(path, resourceVersion=old, watch="true")))
        assert (event["type"], event["object"]["code"], event["object"]["reason"]) == (
            "ERROR",
            410,
            "Expired",
        )

        async def scenario() -> None:
            async for _ in watch.Watch().stream(
                kube.core.list_namespaced_pod,
                "default",
                resource_version=old,
                timeout_seconds=5,
            ):
                raise AssertionError("nothing was to come")

        assert kube.refused(scenario()).status == 410


def test_tokens_and_roles(cluster: Cluster, connect: Connect, tmp_path: Path) -> None:
    path = tmp_path / "role.yaml"
    path.write_text(_ROLE)
    token = cluster.load_role(path)
    kube = connect(cluster, token)
    kube.create(job("allowed", "echo yes"))
    with_condition(cluster, "allowed", "Complete")
    assert kube.log(pods_of(cluster, "allowed")[0]["metadata"]["name"]) == "yes\n"
    assert kube.do(kube.core.list_node()).items
    error = kube.refused(kube.batch.delete_namespaced_job("allowed", "default"))
    assert (
        json.loads(error.body)["message"] == 'jobs.batch "allowed" is forbidden: User'
        ' "system:serviceaccount:default:gpuyard" cannot delete resource "jobs" in'
        ' API group "batch" in the namespace "default"'
    )
    assert kube.refused(kube.core.list_namespaced_pod("kube-system")).status == 403
    assert kube.refused(kube.core.list_pod_for_all_namespaces()).status == 403
    assert [_allowed(kube, verb) for verb in ("create", "delete")] == [True, False]
    cluster.expire(token)
    assert kube.refused(kube.core.list_node()).status == 401
    stranger = connect(cluster, "unknown")
    assert stranger.refused(stranger.core.list_node()).status == 401


def _allowed(kube: Client, verb: str) -> bool:
    wanted = client.V1ResourceAttributes(
        group="batch", resource="jobs", verb=verb, namespace="default"
    )
    review = client.V1SelfSubjectAccessReview(
        spec=client.V1SelfSubjectAccessReviewSpec(resource_attributes=wanted)
    )
    return kube.do(
        kube.authorization.create_self_subject_access_review(review)
    ).status.allowed


def test_discovery(kube: Client) -> None:
    assert kube.do(kube.version.get_code()).git_version == "v1.30.0"
    groups = kube.do(client.ApisApi(kube.api).get_api_versions()).groups
    assert "batch" in {each.name for each in groups}
    assert "jobs" in {
        each.name for each in kube.do(kube.batch.get_api_resources()).resources
    }


def test_quotas_and_priority_classes(cluster: Cluster, kube: Client) -> None:
    cluster.create({"kind": "Namespace", "metadata": {"name": "small"}})
    cluster.create(
        {
            "kind": "ResourceQuota",
            "metadata": {"name": "gpus", "namespace": "small"},
            "spec": {"hard": {"requests.nvidia.com/gpu": "1", "count/jobs.batch": "2"}},
        }
    )
    kube.create(pod("first", "sleep 30", gpus=1), "small")
    error = kube.refused(
        kube.core.create_namespaced_pod("small", pod("second", gpus=1))
    )
    why = (
        "exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, used:"
        " requests.nvidia.com/gpu=1, limited: requests.nvidia.com/gpu=1"
    )
    assert (error.status, json.loads(error.body)["message"]) == (
        403,
        f'pods "second" is forbidden: {why}',
    )
    kube.create(job("over", gpus=1), "small")
    wait_until(lambda: why in said(cluster, "over").get("FailedCreate", ""))
    kube.create(job("more", suspend=True), "small")
    assert (
        kube.refused(kube.batch.create_namespaced_job("small", job("most"))).status
        == 403
    )
    error = kube.refused(
        kube.core.create_namespaced_pod("default", pod("vip", priorityClassName="nope"))
    )
    assert (
        json.loads(error.body)["message"]
        == 'pods "vip" is forbidden: no PriorityClass with name nope was found'
    )
    kube.do(kube.core.delete_namespace("small"))
    wait_until(lambda: cluster.get("namespaces", "small", "") is None)
    assert not cluster.objects("pods", "small")


def test_kueue_admits_by_quota(connect: Connect) -> None:
    with Cluster([CPU, GPUS], kueue={"research": 1}) as cluster:
        kube = connect(cluster)

        def queued(name: str, script: str, queue: str = "research") -> None:
            manifest = job(name, script, gpus=1)
            manifest["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": queue}
            kube.create(manifest)

        queued("first", "sleep 1")
        queued("second", "true")
        queued("lost", "true", "unknown")
        wait_until(
            lambda: (
                "insufficient unused quota for nvidia.com/gpu in flavor default-flavor,"
                " 1 more needed" in said(cluster, "second").get("Pending", "")
            )
        )
        with_condition(cluster, "first", "Complete")
        with_condition(cluster, "second", "Complete")
        with_condition(cluster, "lost", "Suspended")
        assert cluster.most_gpus("gpu-1") == 1


def test_watching_from_several_clients_at_once(cluster: Cluster, kube: Client) -> None:
    async def first(stream: Any) -> str:
        async for event in stream:
            return event["object"].metadata.name
        return ""

    async def scenario() -> list[str]:
        streams = [
            watch.Watch().stream(
                kube.batch.list_namespaced_job,
                "default",
                timeout_seconds=10,
                field_selector="metadata.name=many",
            )
            for _ in range(5)
        ]
        tasks = [asyncio.create_task(first(stream)) for stream in streams]
        await kube.batch.create_namespaced_job("default", job("many"))
        return await asyncio.gather(*tasks)

    assert kube.do(scenario()) == ["many"] * 5
