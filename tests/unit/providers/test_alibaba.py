"""Alibaba's instance types, and what `[providers.alibaba]` may say."""

from pathlib import Path
from typing import Any

import pytest

from gpuyard.config.paths import Home
from gpuyard.config.settings import load_settings
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.gpus import GPU_CLASSES, GPUClass
from gpuyard.providers.alibaba.catalogue import (
    CATALOGUE_DATE,
    INSTANCE_TYPES,
    SOURCE,
    class_of,
    types_of,
)
from gpuyard.providers.alibaba.client import host_of
from gpuyard.providers.alibaba.config import AlibabaConfig, region_of
from gpuyard.providers.alibaba.errors import RefusedCallError
from gpuyard.providers.alibaba.machines import client_token
from gpuyard.providers.alibaba.market_answers import (
    machine_type,
    newest_spot_prices,
    price_in,
    stock_in,
    vcpus_left,
)
from gpuyard.providers.instances.api import SETTING, MachineType

KEYS = {
    "home": "/",
    "access_key_id": "LTAI5example",
    "access_key_secret": "a-secret-key",
    "region_id": "cn-hangzhou",
    "security_group_id": "sg-bp15ed6xe1yxeycg7o",
    "vswitch_id": "vsw-bp1s5fnvk4gn2tws0",
}


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ACCESS_KEY_ID", "ACCESS_KEY_SECRET", "SECURITY_TOKEN", "REGION_ID"):
        monkeypatch.delenv(f"ALIBABA_CLOUD_{name}", raising=False)


def refused(**values: Any) -> str:
    with pytest.raises(InvalidInputError) as caught:
        AlibabaConfig.read({**KEYS, **values})
    assert len(caught.value.faults) == 1, caught.value
    assert "a-secret" not in str(caught.value)
    return str(caught.value)


# --- the catalogue ---


def test_each_type_has_a_class_of_gpus() -> None:
    for name, kind in INSTANCE_TYPES.items():
        found = class_of(kind)
        assert found is not None, name
        assert kind.gpu_memory_gb == GPU_CLASSES[found].memory_gb
        assert kind.capability == GPU_CLASSES[found].compute_capability
    assert CATALOGUE_DATE in SOURCE


def test_the_three_types_of_s2_are_what_it_says() -> None:
    said = {
        "ecs.gn6i-c4g1.xlarge": GPUClass.T4,
        "ecs.gn6v-c8g1.2xlarge": GPUClass.V100_16GB,
        "ecs.gn7-c12g1.3xlarge": GPUClass.A100_40GB,
    }
    assert {name: class_of(INSTANCE_TYPES[name]) for name in said} == said


def test_names_and_classes_mean_types() -> None:
    assert types_of(("ecs.g7.large", "ecs.g7.large")) == ("ecs.g7.large",)
    big = types_of(("a100-80gb",))
    assert big
    assert all(name.startswith("ecs.gn7e-") for name in big)
    assert set(types_of(("A100",))) > set(big)
    assert types_of(()) == tuple(INSTANCE_TYPES)


# --- the configuration ---


@pytest.mark.parametrize(
    ("values", "host"),
    [
        ({}, "business.aliyuncs.com"),
        ({"region_id": "cn-hongkong"}, "business.ap-southeast-1.aliyuncs.com"),
        ({"region_id": "eu-central-1"}, "business.ap-southeast-1.aliyuncs.com"),
        ({"site": "international"}, "business.ap-southeast-1.aliyuncs.com"),
        ({"region_id": "eu-central-1", "site": "china"}, "business.aliyuncs.com"),
    ],
)
def test_bills_are_asked_for_at_the_site_of_the_account(
    values: dict[str, str], host: str
) -> None:
    settings = AlibabaConfig.read({**KEYS, **values})
    assert host_of("business", settings.region_id, settings) == host
    region = settings.region_id
    assert host_of("ecs", region, settings) == f"ecs.{region}.aliyuncs.com"


def test_another_site_is_named_where_the_bills_are_not() -> None:
    said = "Please check whether the caller site matches the API domain regionId."
    error = RefusedCallError("alibaba", "bssapi:X", "NotApplicable", said, "1-2")
    assert error.error_code == SETTING
    assert 'providers.alibaba.site to "china"' in str(error)
    assert "aliyun" in refused(site="aliyun")


def test_keys_come_from_the_environment_when_they_are_not_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_ID", "LTAIfrom")
    monkeypatch.setenv("ALIBABA_CLOUD_ACCESS_KEY_SECRET", "a-secret-from-there\n")
    monkeypatch.setenv("ALIBABA_CLOUD_REGION_ID", "cn-beijing")
    hidden = {"access_key_id", "access_key_secret", "region_id"}
    found = AlibabaConfig.read({k: v for k, v in KEYS.items() if k not in hidden})
    assert found.access_key_id.get_secret_value() == "LTAIfrom"
    assert found.access_key_secret.get_secret_value() == "a-secret-from-there"
    assert found.region_id == "cn-beijing"
    given = AlibabaConfig.read(KEYS)
    assert given.access_key_id.get_secret_value() == "LTAI5example"


@pytest.mark.parametrize(
    "key",
    [
        "access_key_id",
        "access_key_secret",
        "region_id",
        "security_group_id",
        "vswitch_id",
    ],
)
def test_a_missing_key_is_named(key: str) -> None:
    for value in ("", None):
        said = refused(**{key: value})
        assert said.startswith(f"{key}: is missing (")


def test_several_vswitches_do_instead_of_one() -> None:
    found = AlibabaConfig.read(
        {**KEYS, "vswitch_id": None, "vswitches": {"cn-hangzhou-h": "vsw-1"}}
    )
    assert found.vswitch_id is None
    assert found.regions == ("cn-hangzhou",)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("region_id", "Hangzhou", "cn-hangzhou"),
        ("security_group_id", "default", "sg-"),
        ("vswitch_id", "default", "vsw-"),
        ("access_key_secret", 12345, "access_key_secret: is not text"),
        ("security_token", ["a-secret"], "security_token: is not text"),
        ("vswitches", {"hangzhou": "vsw-1"}, "cn-hangzhou-h"),
        ("vswitches", {"cn-hangzhou": "vsw-1"}, "cn-hangzhou-h"),
        ("vswitches", {"cn-beijing-a": "vsw-1"}, "security_groups: has none for cn-b"),
        ("types", ["h2o"], "there is no GPU class 'h2o'"),
        ("types", ["h100"], "the catalogue has no instance type with h100"),
        ("internet_mbps", 1000, "internet_mbps"),
        ("disk_gb", 1, "disk_gb"),
        ("release_after_s", 600, "release_after_s: is 600"),
        ("vpc_id", "vpc-1", "vpc_id"),
    ],
)
def test_a_wrong_setting_is_named_with_what_would_be_right(
    key: str, value: Any, said: str
) -> None:
    assert said in refused(**{key: value})


def test_alibaba_never_deletes_a_machine_before_gpuyard_gives_it_up() -> None:
    assert "at least 4000" in refused(silence_s=2000)
    assert AlibabaConfig.read({**KEYS, "silence_s": 2000, "release_after_s": 0})


def test_secrets_are_not_shown() -> None:
    shown = repr(AlibabaConfig.read({**KEYS, "security_token": "a-secret-token"}))
    assert "a-secret" not in shown
    assert "LTAI5example" not in shown


def test_a_file_must_not_hold_the_secrets(tmp_path: Path) -> None:
    for key in ("access_key_secret", "security_token"):
        file = tmp_path / "gpuyard.toml"
        file.write_text(f'[providers.alibaba]\n{key} = "a-secret"\n')
        with pytest.raises(InvalidInputError) as caught:
            load_settings(Home(tmp_path))
        assert key in str(caught.value)
        assert "a-secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("zone", "region"),
    [
        ("cn-hangzhou-h", "cn-hangzhou"),
        ("us-west-1a", "us-west-1"),
        ("cn-beijing-finance-1k", "cn-beijing-finance-1"),
    ],
)
def test_a_zone_is_of_a_region(zone: str, region: str) -> None:
    assert region_of(zone) == region
    config = AlibabaConfig.read(
        {**KEYS, "vswitches": {zone: "vsw-1"}, "security_groups": {region: "sg-1"}}
    )
    assert config.regions[-1] == region


def test_any_owner_makes_a_token() -> None:
    assert client_token("att_1") == "att_1"
    (long, longer) = (client_token("a" * length) for length in (65, 66))
    assert len(long) == len(longer) == 64
    assert long != longer


# --- what Alibaba answers ---


def test_types_that_are_not_in_the_catalogue_are_what_alibaba_says() -> None:
    row = {
        "InstanceTypeId": "ecs.gn8is.2xlarge",
        "GPUSpec": "NVIDIA L20",
        "GPUAmount": 1,
        "GPUMemorySize": 48,
        "CpuCoreCount": 8,
        "MemorySize": 64,
    }
    unknown = MachineType("ecs.gn8is.2xlarge", "L20", 1, 48, "", 8, 64)
    assert machine_type(row) == unknown
    known = machine_type({**row, "GPUSpec": "NVIDIA L40", "GPUMemorySize": 48})
    assert known is not None
    assert (known.gpu, known.capability) == ("L40", "8.9")
    family = machine_type({**row, "GPUSpec": "NVIDIA H100", "GPUMemorySize": 80})
    assert family is not None
    assert family.capability == "9.0", "both sizes have it"
    assert machine_type({**row, "GPUSpec": "NVIDIA T4/8", "GPUAmount": 1}) is None
    plain = machine_type({**row, "GPUSpec": "", "GPUAmount": 0})
    assert plain == MachineType("ecs.gn8is.2xlarge", cpus=8, memory_gb=64)


def test_the_size_that_alibaba_says_comes_before_the_catalogue() -> None:
    row = {"InstanceTypeId": "ecs.gn6i-c4g1.xlarge", "GPUSpec": "NVIDIA T4"}
    kind = machine_type({**row, "GPUAmount": 1, "CpuCoreCount": 6, "MemorySize": 16})
    assert kind is not None
    assert (kind.cpus, kind.memory_gb, kind.gpu, kind.gpus) == (6, 16, "T4", 1)


def test_empty_answers_say_nothing() -> None:
    assert stock_in({}) == {}
    assert newest_spot_prices({"SpotPrices": None}) == {}
    assert price_in({"PriceInfo": {}}) == (None, 0, "CNY")
    assert vcpus_left({}, "spot") is None
