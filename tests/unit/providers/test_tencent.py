"""Tencent's instance types, and what `[providers.tencent]` may say."""

import base64
from pathlib import Path
from typing import Any

import pytest

from gpuyard.config.paths import Home
from gpuyard.config.settings import load_settings
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.gpus import GPU_CLASSES, GPUClass, classify
from gpuyard.providers.tencent.catalogue import CATALOGUE_DATE, INSTANCE_TYPES
from gpuyard.providers.tencent.config import TencentConfig

KEYS = {
    "home": "/",
    "secret_id": "AKIDexample",
    "secret_key": "a-secret-key",
    "region": "ap-guangzhou",
    "cluster_id": "cls-65r1c5nu",
}


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SECRET_ID", "SECRET_KEY", "REGION"):
        monkeypatch.delenv(f"TENCENTCLOUD_{name}", raising=False)


def encoded(cluster: str = "cls-65r1c5nu") -> str:
    text = f"""
        clusters: [{{name: {cluster}, cluster: {{server: "https://{cluster}.ccs.tencent-cloud.com"}}}}]
        users: [{{name: "1", user: {{token: a-secret-token}}}}]
        contexts: [{{name: {cluster}-1-context-default, context: {{cluster: {cluster}, user: "1"}}}}]
        """
    return base64.b64encode(text.encode()).decode()


def refused(**values: Any) -> str:
    with pytest.raises(InvalidInputError) as caught:
        TencentConfig.read({**KEYS, **values})
    assert len(caught.value.faults) == 1
    assert "a-secret" not in str(caught.value)
    return str(caught.value)


# --- the catalogue ---


@pytest.mark.parametrize("name", INSTANCE_TYPES)
def test_each_type_says_what_it_has_and_who_says_so(name: str) -> None:
    kind = INSTANCE_TYPES[name]
    assert kind.gpu is not None
    assert classify(kind.gpu_name, int(kind.gpu_memory_gb * 1024)) is kind.gpu, (
        "its GPU is known by name and size"
    )
    assert kind.gpu_memory_gb == GPU_CLASSES[kind.gpu].memory_gb
    assert name.endswith(str(int(kind.memory_gb))), (
        "Tencent's names end with the gigabytes"
    )
    assert CATALOGUE_DATE in kind.source


def test_the_three_types_of_s2_are_there_from_one_gpu_on() -> None:
    for gpu, most in (
        (GPUClass.T4, 4),
        (GPUClass.V100_32GB, 8),
        (GPUClass.A100_40GB, 8),
    ):
        counts = [kind.gpus for kind in INSTANCE_TYPES.values() if kind.gpu is gpu]
        assert (min(counts), max(counts)) == (1, most)


def test_a_part_of_a_gpu_is_not_called_one() -> None:
    assert not {"GN7.LARGE20", "GN7.2XLARGE40"} & set(INSTANCE_TYPES)


# --- the configuration ---


def test_keys_come_from_the_environment_when_they_are_not_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TENCENTCLOUD_SECRET_ID", "AKIDfrom")
    monkeypatch.setenv("TENCENTCLOUD_SECRET_KEY", "a-secret-from-there\n")
    monkeypatch.setenv("TENCENTCLOUD_REGION", "ap-chengdu")
    found = TencentConfig.read({"home": "/", "cluster_id": "cls-1"})
    assert (
        found.secret_id.get_secret_value(),
        found.secret_key.get_secret_value(),
        found.region,
    ) == (
        "AKIDfrom",
        "a-secret-from-there",
        "ap-chengdu",
    )
    assert TencentConfig.read(KEYS).secret_id.get_secret_value() == "AKIDexample"


@pytest.mark.parametrize("key", ["secret_id", "secret_key", "region"])
def test_a_missing_key_is_named_with_its_variable(key: str) -> None:
    for value in ("", None):
        said = refused(**{key: value})
        assert said == f"{key}: is missing (set TENCENTCLOUD_{key.upper()})"


def test_a_cluster_has_to_be_named() -> None:
    assert refused(cluster_id=None).startswith("cluster_id: is missing")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("region", "Guangzhou", "ap-guangzhou"),
        ("cluster_id", "my cluster", "cls-65r1c5nu"),
        ("secret_key", 12345, "secret_key: is not text"),
        ("secret_id", ["a-secret"], "secret_id: is not text"),
        ("kubeconfig", 5, "kubeconfig: is not text"),
        ("kubeconfig", "a-secret!", "kubeconfig: is not base64"),
        ("kubeconfig", base64.b64encode(b"\xff\xfe").decode(), "is not base64 of text"),
        ("kubeconfig", base64.b64encode(b"a-secret: [").decode(), "is not YAML"),
        ("kubeconfig", base64.b64encode(b"a-secret").decode(), "names no cluster"),
        (
            "kubeconfig",
            encoded("cls-other"),
            "kubeconfig: is of cls-other and not of cls-65r1c5nu",
        ),
        ("secret", "a-secret", "did you mean"),
    ],
)
def test_what_is_wrong_is_named_and_no_secret_shown(
    key: str, value: Any, said: str
) -> None:
    assert said in refused(**{key: value})


def test_a_kubeconfig_may_be_wrapped_and_name_its_cluster_as_it_likes() -> None:
    given = encoded()
    wrapped = "\n".join(given[at : at + 60] for at in range(0, len(given), 60))
    assert TencentConfig.read({**KEYS, "kubeconfig": wrapped}).kubeconfig == wrapped
    assert TencentConfig.read({**KEYS, "kubeconfig": encoded("mine")}).kubeconfig


def test_settings_do_not_show_their_secrets() -> None:
    found = TencentConfig.read({**KEYS, "kubeconfig": encoded()})
    shown = f"{found!r} {found} {found.model_dump_json(exclude={'kubeconfig'})}"
    assert "a-secret" not in shown
    assert encoded() not in shown
    assert "AKIDexample" not in shown


def test_prices_are_in_yuan_unless_told_otherwise() -> None:
    assert TencentConfig.read(KEYS).currency == "CNY"


# --- where secrets may stand ---


@pytest.mark.parametrize(
    "key", ["secret_key", "access_key_secret", "secret_access_key", "password", "token"]
)
def test_a_secret_in_a_file_is_refused(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GPUYARD_CONFIG", raising=False)
    (tmp_path / "gpuyard.toml").write_text(
        f'[providers.tencent]\nregion = "ap-guangzhou"\n{key} = "a-secret-key"\n'
    )
    with pytest.raises(InvalidInputError) as caught:
        load_settings(Home(tmp_path))
    said = str(caught.value)
    assert f"gpuyard.toml: providers.tencent.{key}: is a secret" in said
    assert f"GPUYARD_PROVIDERS__TENCENT__{key.upper()}" in said
    assert "a-secret-key" not in said


def test_a_secret_in_the_environment_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GPUYARD_CONFIG", raising=False)
    (tmp_path / "gpuyard.toml").write_text(
        '[providers.tencent]\nregion = "ap-guangzhou"\nimage_pull_secrets = ["a"]\n'
    )
    monkeypatch.setenv("GPUYARD_PROVIDERS__TENCENT__SECRET_KEY", "a-secret-key")
    section = load_settings(Home(tmp_path)).providers["tencent"]
    assert section == {
        "region": "ap-guangzhou",
        "image_pull_secrets": ["a"],
        "secret_key": "a-secret-key",
    }
