"""What `[providers.aws]` may say, AWS's errors, and the request for a machine."""

import csv
import gzip
from dataclasses import replace
from decimal import Decimal
from importlib.resources import files
from typing import Any

import pytest

from gpuyard.domain.errors import InvalidInputError, ProviderError
from gpuyard.providers.aws import errors
from gpuyard.providers.aws.config import AwsConfig
from gpuyard.providers.aws.errors import Question, explained
from gpuyard.providers.aws.launching import MachineImage, run_request
from gpuyard.providers.aws.prices import read_rows
from gpuyard.providers.aws.quotas import quota_of
from gpuyard.providers.instances import api as contract
from gpuyard.providers.instances.api import InstanceOrder

IMAGE = MachineImage("ami-0a1b2c3d4e5f67890", "/dev/sda1", 75)
SETTINGS = AwsConfig.read({"regions": ["us-east-1"]})
ORDER = InstanceOrder(
    owner="att_1",
    installation="inst_1",
    name="gpuyard-att_1",
    type="g5.xlarge",
    region="us-east-1",
    zone="us-east-1a",
    spot=False,
    user_data="#!/bin/sh\n",
    disk_gb=50,
)


# --- the settings ---


def refused(**values: Any) -> str:
    with pytest.raises(InvalidInputError) as caught:
        AwsConfig.read({"regions": ["us-east-1"], **values})
    assert len(caught.value.faults) == 1
    assert "a-secret" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("values", "field", "wrong", "right"),
    [
        ({"regions": ["us-east"]}, "regions.us-east", "'us-east'", "as us-east-1"),
        ({"regions": "us-east-1"}, "regions", "is text", '["us-east-1"]'),
        ({"regions": []}, "regions", "is []", "1 or more"),
        (
            {"regions": {"us-east-1": {"subnet": []}}},
            "regions.us-east-1.subnet",
            "is not a field",
            "subnets",
        ),
        (
            {"regions": {"us-east-1": {"subnets": ["net-1"]}}},
            "regions.us-east-1.subnets.0",
            "'net-1'",
            "subnet-0a1b2c3d4e5f67890",
        ),
        (
            {"regions": {"us-east-1": {"security_groups": ["default"]}}},
            "regions.us-east-1.security_groups.0",
            "'default'",
            "sg-0a1b2c3d4e5f67890",
        ),
        ({"image": "ubuntu"}, "image", "'ubuntu'", "ami-0a1b2c3d4e5f67890"),
        (
            {"image": IMAGE.id, "regions": ["us-east-1", "eu-west-1"]},
            "image",
            "eu-west-1 and us-east-1 need one",
            "regions.NAME.image",
        ),
        ({"types": ["A1000"]}, "types.0", "'A1000'", "g5.xlarge"),
        ({"spot": False, "on_demand": False}, "spot", "so is on_demand", "one of them"),
        ({"access_key_id": "AKIA"}, "secret_access_key", "is missing", "give both"),
        (
            {"secret_access_key": "a-secret"},
            "access_key_id",
            "is missing",
            "give both",
        ),
        ({"session_token": "a-secret"}, "session_token", "without its key", "too"),
        (
            {"profile": "lab", "access_key_id": "A", "secret_access_key": "a-secret"},
            "profile",
            "beside access_key_id",
            "one of the two",
        ),
        (
            {"access_key_id": 1, "secret_access_key": "a-secret"},
            "access_key_id",
            "is not text",
            "in quotes",
        ),
        ({"disk_gb": 1}, "disk_gb", "is 1", "at least"),
        ({"region": "us-east-1"}, "region", "is not a field", "regions"),
    ],
)
def test_a_wrong_setting_is_named(
    values: dict[str, Any], field: str, wrong: str, right: str
) -> None:
    text = refused(**values)
    assert text.startswith(f"{field}: ")
    assert wrong in text
    assert right in text


def test_a_region_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    with pytest.raises(InvalidInputError, match="regions: is missing"):
        AwsConfig.read({})
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert list(AwsConfig.read({}).regions) == ["eu-west-1"]


def test_the_settings_show_no_key() -> None:
    settings = AwsConfig.read(
        {
            "regions": ["us-east-1"],
            "access_key_id": "a-secret-id",
            "secret_access_key": "a-secret-key",
        }
    )
    assert "a-secret" not in repr(settings)


def test_an_image_of_a_region_comes_first() -> None:
    regions = {"us-east-1": {"image": IMAGE.id}, "eu-west-1": {}}
    settings = AwsConfig.read({"regions": regions, "image": "/lab/image"})
    assert settings.image_of("us-east-1") == IMAGE.id
    assert settings.image_of("eu-west-1") == "/lab/image"


# --- the request ---


def test_equal_orders_are_equal_requests() -> None:
    long = replace(ORDER, user_data="#!/bin/sh\n" + "echo line\n" * 4000)
    first = run_request(long, SETTINGS, IMAGE, "")
    assert first == run_request(long, SETTINGS, IMAGE, "")
    assert gzip.decompress(first["UserData"]).decode() == long.user_data
    token = first["ClientToken"]
    assert len(token) == 64
    assert token.isascii()
    other = run_request(replace(long, owner="att_2"), SETTINGS, IMAGE, "")
    assert other["ClientToken"] != token


def test_a_script_that_is_too_long_is_refused() -> None:
    noise = "".join(f"{number * number:x}" for number in range(20000))
    with pytest.raises(ProviderError, match="EC2 takes 16384"):
        run_request(replace(ORDER, user_data=noise), SETTINGS, IMAGE, "")


def test_the_disk_holds_the_image() -> None:
    (disk,) = run_request(ORDER, SETTINGS, IMAGE, "")["BlockDeviceMappings"]
    assert disk["DeviceName"] == "/dev/sda1"
    assert disk["Ebs"]["VolumeSize"] == 75


# --- errors ---


class AnsweredError(Exception):
    """What botocore raises for an answer that is an error."""

    def __init__(self, code: str, status: int = 400) -> None:
        self.response = {
            "Error": {"Code": code, "Message": "Words\nof AWS."},
            "ResponseMetadata": {"HTTPStatusCode": status},
        }


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (
            "InsufficientInstanceCapacity",
            contract.CAPACITY,
            "RunInstances in us-east-1",
        ),
        ("Unsupported", contract.CAPACITY, "Words of AWS (Unsupported)."),
        ("VcpuLimitExceeded", contract.QUOTA, "Service Quotas of us-east-1"),
        ("MaxSpotInstanceCountExceeded", contract.QUOTA, "Service Quotas"),
        ("SpotMaxPriceTooLow", contract.PRICE, "providers.aws.max_price"),
        ("UnauthorizedOperation", contract.DENIED, "gpuyard cloud check aws"),
        ("AccessDeniedException", contract.DENIED, "gpuyard cloud check aws"),
        (
            "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
            contract.DENIED,
            "create-service-linked-role",
        ),
        ("AuthFailure", contract.CREDENTIALS, "access_key_id"),
        ("ExpiredTokenException", contract.CREDENTIALS, "may have expired"),
        ("RequestExpired", contract.CREDENTIALS, "clock of this host"),
        ("InvalidSubnetID.NotFound", contract.SETTING, "regions.us-east-1.subnets"),
        ("InvalidGroup.NotFound", contract.SETTING, "us-east-1.security_groups"),
        ("InvalidAMIID.NotFound", contract.SETTING, "regions.us-east-1.image"),
        ("ParameterNotFound", contract.SETTING, "providers.aws.image"),
        ("VPCIdNotSpecified", contract.SETTING, "no default network"),
        ("RequestLimitExceeded", errors.THROTTLED, ""),
        ("ThrottlingException", errors.THROTTLED, ""),
        ("InternalError", errors.NOT_CONNECTED, ""),
        ("Unheard.Of", errors.REFUSED, "(Unheard.Of)"),
    ],
)
def test_a_code_of_aws_has_a_meaning(answer: str, code: str, words: str) -> None:
    found = explained(AnsweredError(answer), Question("RunInstances", "us-east-1"))
    assert found.error_code == code
    assert found.aws_code == answer
    assert words in str(found)
    assert "\n" not in str(found)


def test_an_unknown_error_of_the_server_may_be_repeated() -> None:
    found = explained(AnsweredError("Odd", 502), Question("RunInstances", "us-east-1"))
    assert found.error_code == errors.NOT_CONNECTED


# --- catalogues ---


def test_each_price_says_whose_it_is_and_of_when() -> None:
    text = files("gpuyard.providers.aws").joinpath("prices.csv").read_text()
    rows = read_rows(text)
    assert len({(row.type, row.region) for row in rows}) == len(rows)
    assert len(rows) == len(list(csv.reader(text.splitlines()))) - 1
    for row in rows:
        assert row.price_per_hour > Decimal("0.1")
        assert row.currency == "USD"
        assert row.source
        assert len(row.date) == 10


@pytest.mark.parametrize(
    ("type_name", "on_demand", "spot"),
    [
        ("g5.xlarge", "L-DB2E81BA", "L-3819A6DF"),
        ("gr6.4xlarge", "L-DB2E81BA", "L-3819A6DF"),
        ("p4d.24xlarge", "L-417A185B", "L-7212CCBC"),
        ("p5en.48xlarge", "L-417A185B", "L-C4BD4855"),
        ("p6-b200.48xlarge", "L-417A185B", None),
        ("c5.large", None, None),
    ],
)
def test_a_type_counts_for_a_quota(
    type_name: str, on_demand: str | None, spot: str | None
) -> None:
    found = [quota_of(type_name, is_spot) for is_spot in (False, True)]
    assert [one and one.code for one in found] == [on_demand, spot]
