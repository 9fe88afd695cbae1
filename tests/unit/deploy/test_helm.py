"""The Helm chart, rendered by Helm: what is in each document, and what the schema of
the values refuses.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpuyard import __version__
from gpuyard.config.paths import Home
from gpuyard.config.settings import load_settings
from tests.support.helm import CHART, ChartError, Values, lint, render, require_helm

RBAC = Path(__file__).parents[3] / "deploy/kubernetes/rbac.yaml"
EVERYTHING: Values = {
    "replicaCount": 2,
    "tls": {"existingSecret": "instance-tls"},
    "spool": {"enabled": True},
    "postgresql": {"enabled": True},
    "extraEnv": [{"name": "AWS_REGION", "value": "eu-west-1"}],
    "podAnnotations": {"note": "here"},
    "imagePullSecrets": [{"name": "registry"}],
    "nodeSelector": {"kubernetes.io/arch": "amd64"},
    "tolerations": [{"operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "serviceAccount": {"annotations": {"note": "here"}},
    "service": {"annotations": {"note": "here"}},
    "networkPolicy": {"from": [{"namespaceSelector": {}}]},
}
VARIANTS: dict[str, Values] = {"default": {}, "everything": EVERYTHING}
pytestmark = pytest.mark.usefixtures("helm")


@pytest.fixture(scope="module")
def helm() -> None:
    require_helm()


def named(documents: list[Values], kind: str, name: str = "instance-gpuyard") -> Values:
    (found,) = [
        one
        for one in documents
        if one["kind"] == kind and one["metadata"]["name"] == name
    ]
    return found


def pod_of(values: Values | None = None) -> Values:
    return named(render(values), "Deployment")["spec"]["template"]["spec"]


def environment_of(values: Values | None = None) -> dict[str, Any]:
    server = pod_of(values)["containers"][0]
    return {one["name"]: one.get("value") or one["valueFrom"] for one in server["env"]}


def test_the_linter_finds_nothing() -> None:
    assert lint() == []


def test_the_chart_has_the_version_of_the_code() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__


def test_by_default_there_is_one_server_with_its_rights_and_no_more() -> None:
    kinds = sorted(document["kind"] for document in render())
    assert kinds == [
        "ClusterRole",
        "ClusterRoleBinding",
        "ConfigMap",
        "Deployment",
        "NetworkPolicy",
        "Role",
        "RoleBinding",
        "Service",
        "ServiceAccount",
    ]


def test_everything_turned_on_adds_its_documents() -> None:
    added = {(one["kind"], one["metadata"]["name"]) for one in render(EVERYTHING)}
    added -= {(one["kind"], one["metadata"]["name"]) for one in render()}
    assert added == {
        ("PodDisruptionBudget", "instance-gpuyard"),
        ("PersistentVolumeClaim", "instance-gpuyard-spool"),
        ("Service", "instance-gpuyard-postgresql"),
        ("StatefulSet", "instance-gpuyard-postgresql"),
        ("NetworkPolicy", "instance-gpuyard-postgresql"),
    }


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_no_secret_is_written_anywhere(values: Values) -> None:
    documents = render({**values, "existingSecret": "mine"})
    assert not [one for one in documents if one["kind"] == "Secret"]
    text = json.dumps([one.get("data", {}) for one in documents])
    assert not [word for word in ("token", "password", "postgresql://") if word in text]
    for one in (
        one for one in documents if one["kind"] in ("Deployment", "StatefulSet")
    ):
        for container in one["spec"]["template"]["spec"]["containers"]:
            for variable in container.get("env", []):
                if any(word in variable["name"] for word in ("TOKEN", "PASSWORD")):
                    assert variable["valueFrom"]["secretKeyRef"]["name"] == "mine"


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_selectors_find_the_pods_they_are_about(values: Values) -> None:
    documents = render(values)
    pods = {
        one["metadata"]["name"]: one["spec"]["template"]["metadata"]["labels"]
        for one in documents
        if one["kind"] in ("Deployment", "StatefulSet")
    }
    for one in documents:
        selector = one.get("spec", {}).get("selector") or one.get("spec", {}).get(
            "podSelector"
        )
        if selector:
            wanted = selector.get("matchLabels", selector).items()
            assert [
                name for name, labels in pods.items() if wanted <= labels.items()
            ] == [one["metadata"]["name"]]


def test_the_rights_are_those_of_the_manifest() -> None:
    # The namespace, as a resource.
    manifest = list(yaml.safe_load_all(RBAC.read_text().replace("[gpuyard]", "[ml]")))
    documents = render()
    assert (
        named(documents, "Role")["rules"] == named(manifest, "Role", "gpuyard")["rules"]
    )
    cluster = named(documents, "ClusterRole", "ml-instance-gpuyard")
    assert cluster["rules"] == named(manifest, "ClusterRole", "gpuyard")["rules"]
    for kind, name in (
        ("RoleBinding", "instance-gpuyard"),
        ("ClusterRoleBinding", "ml-instance-gpuyard"),
    ):
        binding = named(documents, kind, name)
        assert binding["roleRef"]["name"] == name
        assert binding["subjects"] == [
            {"kind": "ServiceAccount", "name": "instance-gpuyard", "namespace": "ml"}
        ]


def test_the_manifest_grants_the_least() -> None:
    manifest = list(yaml.safe_load_all(RBAC.read_text()))
    rules = [rule for one in manifest for rule in one.get("rules", [])]
    words = [word for rule in rules for words in rule.values() for word in words]
    assert not {
        "*",
        "update",
        "deletecollection",
        "escalate",
        "bind",
        "impersonate",
    } & set(words)
    secrets = next(rule for rule in rules if rule["resources"] == ["secrets"])
    assert secrets["verbs"] == ["create", "delete"], "it can read none"
    assert named(manifest, "Namespace", "gpuyard")
    assert {one["metadata"].get("namespace", "gpuyard") for one in manifest} == {
        "gpuyard"
    }


def test_the_service_leads_to_a_port_that_is_open() -> None:
    for values, port in (({}, ("http", 80)), (EVERYTHING, ("https", 443))):
        service = named(render(values), "Service")["spec"]["ports"]
        assert [(one["targetPort"], one["port"]) for one in service] == [port]
        open_ports = {
            one["name"]: one["containerPort"]
            for one in pod_of(values)["containers"][1]["ports"]
        }
        nginx = named(render(values), "ConfigMap")["data"]["nginx.conf"]
        assert all(f"listen {number}" in nginx for number in open_ports.values())
        assert port[0] in open_ports


@pytest.mark.parametrize("values", VARIANTS.values(), ids=VARIANTS)
def test_containers_have_no_rights_and_write_to_volumes_only(values: Values) -> None:
    for one in render(values):
        if one["kind"] in ("Deployment", "StatefulSet"):
            pod = one["spec"]["template"]["spec"]
            assert pod["securityContext"]["runAsNonRoot"] is True
            volumes = {volume["name"] for volume in pod["volumes"]}
            volumes |= {
                claim["metadata"]["name"]
                for claim in one["spec"].get("volumeClaimTemplates", [])
            }
            for container in pod["containers"]:
                context = container["securityContext"]
                assert context["readOnlyRootFilesystem"] is True
                assert context["capabilities"] == {"drop": ["ALL"]}
                assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
                assert container["image"].partition(":")[2][0].isdigit()


def test_with_a_name_for_it_the_servers_speak_tls_among_themselves() -> None:
    inside: Values = {
        "tls": {"existingSecret": "instance-tls", "name": "gpuyard.example"}
    }
    environment = environment_of(inside)
    assert environment["GPUYARD_SERVER__URL"] == "https://$(POD_IP):8443"
    assert environment["GPUYARD_SERVER__TLS_NAME"] == "gpuyard.example"
    mounts = pod_of(inside)["containers"][0]["volumeMounts"]
    assert environment["GPUYARD_SERVER__CA_FILE"] in [
        one["mountPath"] for one in mounts
    ]
    rules = named(render(inside), "NetworkPolicy")["spec"]["ingress"]
    assert [one["ports"] for one in rules] == [[{"port": "https"}]] * 2
    assert "GPUYARD_SERVER__TLS_NAME" not in environment_of(EVERYTHING)


def test_the_server_is_told_where_it_is_and_where_its_ledger_is() -> None:
    environment = environment_of()
    assert environment["GPUYARD_SERVER__URL"] == "http://$(POD_IP):8080"
    assert environment["GPUYARD_LEDGER__URL"]["secretKeyRef"] == {
        "name": "gpuyard",
        "key": "database-url",
    }
    assert environment["GPUYARD_TOKEN"]["secretKeyRef"] == {
        "name": "gpuyard",
        "key": "token",
    }
    assert "PGPASSWORD" not in environment
    assert (
        environment_of({"url": "https://instance.example.org"})["GPUYARD_SERVER__URL"]
        == "https://instance.example.org"
    )


def test_a_bundled_database_is_the_one_that_the_server_uses() -> None:
    environment = environment_of({"postgresql": {"enabled": True}})
    assert (
        environment["GPUYARD_LEDGER__URL"]
        == "postgresql://gpuyard@instance-gpuyard-postgresql:5432/gpuyard"
    )
    assert environment["PGPASSWORD"]["secretKeyRef"]["key"] == "postgres-password"


def test_gpuyard_reads_the_file_and_the_environment_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {
        "kubernetes": {"max_pending": 9, "labels": ["a", 'b"<'], "enabled": True},
        "config": (
            '[scheduler]\npolicy = "fcfs"\n\n[providers.kubernetes.queue]\nname = "gpu"'
        ),
    }
    (tmp_path / "gpuyard.toml").write_text(
        named(render(values), "ConfigMap")["data"]["gpuyard.toml"]
    )
    for name, value in environment_of(values).items():
        if isinstance(value, str):
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("GPUYARD_CONFIG", str(tmp_path / "gpuyard.toml"))
    settings = load_settings(Home(tmp_path))
    assert settings.providers["kubernetes"] == {
        "namespace": "ml",
        "max_pending": 9,
        "labels": ["a", 'b"<'],
        "enabled": True,
        "queue": {"name": "gpu"},
    }
    assert (
        settings.scheduler.policy,
        settings.server.port,
        settings.server.idle_exit_s,
    ) == ("fcfs", 8400, 0)


def test_a_change_of_the_configuration_restarts_the_servers() -> None:
    def checksum(values: Values) -> str:
        template = named(render(values), "Deployment")["spec"]["template"]
        return template["metadata"]["annotations"]["checksum/config"]

    assert (
        checksum({}) == checksum({"replicaCount": 3}) != checksum({"config": "[node]"})
    )


def test_a_spool_is_shared_and_outlives_the_release() -> None:
    documents = render({"spool": {"enabled": True, "storageClassName": "nfs"}})
    claim = named(documents, "PersistentVolumeClaim", "instance-gpuyard-spool")
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    assert claim["spec"]["storageClassName"] == "nfs"
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    pod = pod_of({"spool": {"enabled": True, "existingClaim": "mine"}})
    assert {"name": "spool", "persistentVolumeClaim": {"claimName": "mine"}} in pod[
        "volumes"
    ]
    mounts = {
        mount["mountPath"]: mount.get("subPath")
        for mount in pod["containers"][0]["volumeMounts"]
    }
    assert (mounts["/spool"], mounts["/var/lib/gpuyard/blobs"]) == (None, "blobs")


def test_what_is_turned_off_is_not_there() -> None:
    kinds = {
        one["kind"]
        for one in render(
            {
                "rbac": {"create": False},
                "networkPolicy": {"enabled": False},
                "serviceAccount": {"create": False, "name": "mine"},
            }
        )
    }
    assert kinds == {"ConfigMap", "Deployment", "Service"}
    assert (
        pod_of({"serviceAccount": {"create": False, "name": "mine"}})[
            "serviceAccountName"
        ]
        == "mine"
    )


def test_the_servers_image_is_named_by_its_digest_where_one_is_given() -> None:
    digest = f"sha256:{'0' * 64}"
    image = pod_of({"image": {"digest": digest}})["containers"][0]["image"]
    assert image == f"gpuyard/gpuyard:{__version__}@{digest}"
    assert "@" not in pod_of()["containers"][0]["image"]


def test_a_release_named_gpuyard_does_not_stutter() -> None:
    assert named(render(name="gpuyard"), "Deployment", "gpuyard")


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"replicaCount": "two"}, "replicaCount"),
        ({"replicaCount": 0}, "replicaCount"),
        ({"replicas": 2}, "replicas"),
        ({"existingSecret": ""}, "existingSecret"),
        ({"image": {"tag": "latest"}}, "image/tag"),
        ({"image": {"digest": "sha256:12"}}, "image/digest"),
        ({"proxy": {"image": "nginx:stable"}}, "proxy/image"),
        ({"spool": {"size": "much"}}, "spool/size"),
        ({"postgresql": {"password": "secret"}}, "password"),
        ({"kubernetes": {"namespace": "other"}}, "kubernetes/namespace"),
        ({"kubernetes": {"queue": {"name": "gpu"}}}, "kubernetes/queue"),
        ({"url": "instance.example.org"}, "url"),
        (
            {"url": "https://instance.example.org", "replicaCount": 2},
            "set replicaCount to 1",
        ),
    ],
)
def test_values_that_cannot_be_meant_are_refused_by_name(
    values: Values, fault: str
) -> None:
    with pytest.raises(ChartError) as caught:
        render(values)
    assert fault in str(caught.value)


def test_a_secret_for_jobs_is_a_folder_of_the_server() -> None:
    given: Values = {"jobSecrets": "keys-of-jobs"}
    pod = pod_of(given)
    (volume,) = (one for one in pod["volumes"] if one["name"] == "job-secrets")
    assert volume["secret"] == {"secretName": "keys-of-jobs"}
    mounts = pod["containers"][0]["volumeMounts"]
    (mount,) = (one for one in mounts if one["name"] == "job-secrets")
    folder = environment_of(given)["GPUYARD_SECRETS__FOLDER"]
    assert (mount["mountPath"], mount["readOnly"]) == (folder, True)
