"""`AwsApi` against moto, whose gaps `tests/support/ec2.py` closes."""

import asyncio
import json
import re
from base64 import b64decode
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from gpuyard.domain.errors import ProviderError
from gpuyard.providers.aws.api import AwsApi
from gpuyard.providers.aws.config import AwsConfig
from gpuyard.providers.aws.rights import NEEDED_FOR
from gpuyard.providers.instances import api as contract
from gpuyard.providers.instances.api import InstanceOrder, InstanceRef, InstanceState
from gpuyard.providers.instances.extras import with_extras
from tests.support.cost_explorer import BilledUsage
from tests.support.ec2 import IMAGE, Ec2

pytestmark = pytest.mark.anyio
GUIDE = Path(__file__).parents[3] / "docs/guides/aws.md"
ORDER = InstanceOrder(
    owner="att_1",
    installation="inst_1",
    name="gpuyard-att_1",
    type="g5.xlarge",
    region="us-east-1",
    zone="us-east-1a",
    spot=False,
    user_data="#!/bin/sh\necho 'a \"line\"' $HOME\n",
    disk_gb=120,
)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def api_of(ec2: Ec2, **values: Any) -> AwsApi:
    return AwsApi(AwsConfig.read(ec2.settings(**values)))


@pytest.fixture
async def api(ec2: Ec2) -> AsyncIterator[AwsApi]:
    made = api_of(ec2)
    yield made
    await made.close()


async def test_a_machine_is_started_found_and_ended(ec2: Ec2, api: AwsApi) -> None:
    started = await api.launch(ORDER)
    assert started.id.startswith("i-")
    assert (started.region, started.zone) == ("us-east-1", "us-east-1a")
    assert (started.type, started.spot, started.owner) == ("g5.xlarge", False, "att_1")
    assert started.state.is_live
    assert started.launched_at
    found = await api.find("att_1", "inst_1")
    assert found is not None
    assert found.id == started.id
    assert await api.find("att_2", "inst_1") is None
    assert await api.find("att_1", "inst_2") is None
    assert [one.id for one in await api.instances("inst_1")] == [started.id]
    await api.end([InstanceRef("us-east-1", started.id)])
    (ended,) = await api.instances("inst_1")
    assert ended.state is InstanceState.GONE
    assert "Client.UserInitiatedShutdown" in ended.why
    assert not ended.interrupted


async def test_a_machine_is_made_as_ordered(ec2: Ec2, api: AwsApi) -> None:
    started = await api.launch(ORDER)
    (fields,) = ec2.launches
    machine = ec2.backend().get_instance(started.id)
    assert fields["ImageId"] == IMAGE
    assert b64decode(fields["UserData"]).decode() == ORDER.user_data
    assert fields["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert fields["MetadataOptions.HttpTokens"] == "required"
    assert fields["MetadataOptions.HttpPutResponseHopLimit"] == "1"
    disk = {
        name.rpartition(".")[2]: value
        for name, value in fields.items()
        if name.startswith("BlockDeviceMapping.1.")
    }
    assert disk["VolumeType"] == "gp3"
    assert disk["VolumeSize"] == "120"
    assert disk["DeleteOnTermination"] == "true"
    assert not any(name.startswith("InstanceMarketOptions") for name in fields)
    tags = {
        contract.TAG_INSTALLATION: "inst_1",
        contract.TAG_OWNER: "att_1",
        "Name": "gpuyard-att_1",
    }
    (volume,) = ec2.backend().volumes.values()
    for thing in (machine, volume):
        assert {tag["key"]: tag["value"] for tag in thing.get_tags()} == tags


async def test_a_spot_machine_has_its_price_limit(ec2: Ec2, api: AwsApi) -> None:
    order = replace(ORDER, spot=True, max_price=Decimal("0.5"))
    started = await api.launch(order)
    assert started.spot
    (fields,) = ec2.launches
    options = "InstanceMarketOptions.SpotOptions"
    assert fields[f"{options}.MaxPrice"] == "0.5"
    assert fields[f"{options}.SpotInstanceType"] == "one-time"
    assert fields[f"{options}.InstanceInterruptionBehavior"] == "terminate"
    ec2.interrupt(started.id)
    (found,) = await api.instances("inst_1")
    assert found.state is InstanceState.GONE
    assert found.interrupted
    assert "Spot instance termination" in found.why


async def test_an_order_whose_reply_was_lost_starts_one_machine(
    ec2: Ec2, api: AwsApi
) -> None:
    ec2.lost_replies["RunInstances"] = 2
    started = await api.launch(ORDER)
    assert ec2.calls["RunInstances"] == 3
    again = await api.launch(ORDER)
    assert again.id == started.id
    assert [one.id for one in ec2.machines()] == [started.id]


async def test_an_order_that_differs_finds_the_machine_of_its_owner(
    ec2: Ec2, api: AwsApi
) -> None:
    started = await api.launch(ORDER)
    again = await api.launch(replace(ORDER, user_data="#!/bin/sh\n"))
    assert again.id == started.id
    assert len(ec2.machines()) == 1


async def test_a_cloud_that_never_replies_is_told_as_such(
    ec2: Ec2, api: AwsApi
) -> None:
    ec2.lost_replies["RunInstances"] = 100
    with pytest.raises(ProviderError) as caught:
        await api.launch(ORDER)
    assert caught.value.error_code == "NOT_CONNECTED"
    ec2.lost_replies.clear()
    found = await api.find("att_1", "inst_1")
    assert [one.id for one in ec2.machines()] == [found and found.id]


async def test_all_machines_are_listed_in_few_requests(ec2: Ec2, api: AwsApi) -> None:
    orders = [replace(ORDER, owner=f"att_{number}") for number in range(5)]
    started = [await api.launch(order) for order in orders]
    ec2.page = 2
    found = await api.instances("inst_1")
    assert {one.id for one in found} == {one.id for one in started}
    assert ec2.calls["DescribeInstances"] == 3
    assert ec2.asked["DescribeInstances"]["MaxResults"] == "1000", "500 in one request"
    await api.end([InstanceRef(one.region, one.id) for one in found])
    assert ec2.calls["TerminateInstances"] == 1
    assert {one.state for one in await api.instances("inst_1")} == {InstanceState.GONE}


async def test_the_end_of_a_machine_that_is_gone_is_no_error(
    ec2: Ec2, api: AwsApi
) -> None:
    started = await api.launch(ORDER)
    forgotten = [InstanceRef("us-east-1", f"i-0123456789abcdef{n}") for n in range(3)]
    await api.end([*forgotten, InstanceRef("us-east-1", started.id)])
    await api.end([InstanceRef("us-east-1", started.id)])
    assert [one.state for one in ec2.machines()] == ["terminated"]


async def test_an_error_of_aws_says_what_to_do(ec2: Ec2, api: AwsApi) -> None:
    ec2.sold_out = {"g5.xlarge"}
    with pytest.raises(ProviderError) as caught:
        await api.launch(ORDER)
    assert caught.value.error_code == contract.CAPACITY
    assert "RunInstances in us-east-1" in str(caught.value)
    with pytest.raises(ProviderError) as caught:
        await api.launch(replace(ORDER, zone="us-east-1e", type="p4d.24xlarge"))
    assert "Unsupported" in str(caught.value)
    dear = replace(ORDER, type="g5.2xlarge", spot=True, max_price=Decimal("0.1"))
    with pytest.raises(ProviderError, match="max_price") as caught:
        await api.launch(dear)
    assert caught.value.error_code == contract.PRICE
    assert not ec2.machines()


async def test_credentials_that_were_renewed_are_used(
    ec2: Ec2, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "credentials"
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    settings = ec2.settings(profile="lab")
    settings = {name: value for name, value in settings.items() if "key" not in name}
    api = AwsApi(AwsConfig.read(settings))
    with pytest.raises(ProviderError, match="lab") as caught:
        await api.instances("inst_1")
    assert caught.value.error_code == contract.CREDENTIALS
    file.write_text("[lab]\naws_access_key_id = A\naws_secret_access_key = B\n")
    assert await api.instances("inst_1") == []
    ec2.errors["DescribeInstances"].append("ExpiredToken")
    with pytest.raises(ProviderError, match="may have expired"):
        await api.instances("inst_1")
    file.write_text("[lab]\naws_access_key_id = C\naws_secret_access_key = D\n")
    assert await api.instances("inst_1") == []
    await api.close()


async def test_calls_that_come_too_fast_are_sent_again(ec2: Ec2, api: AwsApi) -> None:
    ec2.errors["RunInstances"].extend(["RequestLimitExceeded"] * 3)
    orders = [replace(ORDER, owner=f"att_{number}") for number in range(4)]
    started = await asyncio.gather(*(api.launch(order) for order in orders))
    assert len({one.id for one in started}) == len(ec2.machines()) == 4
    assert ec2.calls["RunInstances"] == 7


# --- markets ---


async def test_markets_are_types_in_zones_with_prices(ec2: Ec2, tmp_path: Path) -> None:
    api = api_of(ec2, home=str(tmp_path), types=["g5.xlarge", "A100", "c5.large"])
    ec2.prices = {"g5.xlarge": "1.0060000000", "c5.large": "0.085"}
    found = {(one.type.name, one.zone, one.spot): one for one in await api.markets()}
    await api.close()
    assert {name for name, _, _ in found} == {
        "g5.xlarge",
        "p4d.24xlarge",
        "p4de.24xlarge",
        "c5.large",
    }
    zones = [zone for name, zone, spot in found if name == "g5.xlarge" and spot]
    assert zones == [f"us-east-1{letter}" for letter in "abcdf"]
    market = found["g5.xlarge", "us-east-1b", False]
    assert (market.type.gpu, market.type.gpus) == ("A10G", 1)
    assert (market.type.gpu_memory_gb, market.type.capability) == (24, "8.6")
    assert (market.type.cpus, market.type.memory_gb) == (4, 16)
    assert (market.price_per_hour, market.currency) == (Decimal("1.006"), "USD")
    assert market.price_source.startswith("AWS price list, 20")
    assert not market.problem
    spot = found["g5.xlarge", "us-east-1b", True]
    assert spot.price_per_hour == Decimal("0.4")
    assert spot.price_source.startswith("AWS spot price since ")
    assert found["p4d.24xlarge", zones[0], False].type.gpus == 8
    assert found["c5.large", zones[0], False].price_per_hour == Decimal("0.085")
    packaged = found["p4d.24xlarge", zones[0], False]
    assert packaged.price_per_hour is not None
    assert "price list," not in packaged.price_source, "the price list lacks it"


async def test_a_disk_is_as_large_as_the_image_and_counted_so(ec2: Ec2) -> None:
    ec2.image_gb = 730
    settings = AwsConfig.read(ec2.settings(disk_gb=100, public_address=False))
    api = AwsApi(settings)
    markets = with_extras(await api.markets(), "aws", settings)
    await api.launch(replace(ORDER, disk_gb=settings.disk_gb))
    await api.close()
    (fields,) = ec2.launches
    assert fields["BlockDeviceMapping.1.Ebs.VolumeSize"] == "730"
    # A GB of gp3 costs 0.08 in a month of 730 hours.
    assert {one.others_per_hour for one in markets} == {Decimal("0.08")}


async def test_an_image_that_is_not_there_leaves_markets_usable(ec2: Ec2) -> None:
    ec2.denied = {"ec2:DescribeImages"}
    api = api_of(ec2)
    assert {one.disk_gb for one in await api.markets()} == {0}
    await api.close()


async def test_markets_are_asked_for_once(ec2: Ec2, api: AwsApi) -> None:
    await api.markets()
    calls = dict(ec2.calls)
    await api.markets()
    assert dict(ec2.calls) == calls
    assert max(calls.values()) <= 2, calls


async def test_a_region_without_the_type_and_a_quota_are_told(
    ec2: Ec2, tmp_path: Path
) -> None:
    ec2.quotas = {"L-417A185B": 0.0, "L-7212CCBC": 64.0}
    types = ["p4d.24xlarge", "p5.4xlarge"]
    api = api_of(
        ec2, home=str(tmp_path), types=types, regions=["us-east-1", "af-south-1"]
    )
    problems = {
        (one.region, one.type.name, one.spot): one.problem
        for one in await api.markets()
    }
    await api.close()
    missing = problems["af-south-1", "p4d.24xlarge", False]
    assert missing == (
        "af-south-1 does not offer p4d.24xlarge; name another type or region"
    )
    on_demand = problems["us-east-1", "p4d.24xlarge", False]
    assert "Running On-Demand P instances (L-417A185B) of us-east-1 is 0" in on_demand
    assert "is 64 vCPUs" in problems["us-east-1", "p4d.24xlarge", True]


async def test_markets_without_what_is_not_needed(ec2: Ec2, tmp_path: Path) -> None:
    """Prices and quotas that cannot be read leave markets usable."""
    ec2.denied = {
        "pricing:GetProducts",
        "servicequotas:GetServiceQuota",
        "ec2:DescribeSpotPriceHistory",
    }
    api = api_of(ec2, home=str(tmp_path))
    found = await api.markets()
    await api.close()
    by_spot = {one.spot: one for one in found}
    assert not by_spot[True].problem
    assert by_spot[True].price_per_hour is None
    assert by_spot[False].price_per_hour == Decimal("1.006")
    ec2.denied = {"ec2:DescribeInstanceTypes"}
    api = api_of(ec2)
    with pytest.raises(ProviderError, match="DescribeInstanceTypes"):
        await api.markets()
    await api.close()


async def test_only_zones_with_a_configured_subnet_are_used(ec2: Ec2) -> None:
    subnets = {
        one.availability_zone: one.id for one in ec2.backend().describe_subnets()
    }
    regions = {
        "us-east-1": {
            "subnets": [subnets["us-east-1b"], subnets["us-east-1e"]],
            "security_groups": ["sg-0a1b2c3d4e5f67890"],
        }
    }
    api = api_of(ec2, regions=regions, public_address=True)
    assert {one.zone for one in await api.markets()} == {"us-east-1b"}
    with pytest.raises(ProviderError, match=r"subnets is in us-east-1a") as caught:
        await api.launch(ORDER)
    assert caught.value.error_code == contract.SETTING
    ec2.errors["RunInstances"].append("InvalidGroup.NotFound")
    with pytest.raises(ProviderError, match=r"us-east-1\.security_groups"):
        await api.launch(replace(ORDER, zone="us-east-1b"))
    asked = ec2.asked["RunInstances"]
    assert asked["NetworkInterface.1.SubnetId"] == subnets["us-east-1b"]
    assert asked["NetworkInterface.1.AssociatePublicIpAddress"] == "true"
    assert asked["NetworkInterface.1.SecurityGroupId.1"] == "sg-0a1b2c3d4e5f67890"
    await api.close()


async def test_prices_are_written_to_the_home(ec2: Ec2, tmp_path: Path) -> None:
    api = api_of(ec2, home=str(tmp_path))
    before = {one.type: one for one in api.list_prices()}
    assert before["g5.xlarge"].source != "AWS price list"
    ec2.prices = {"g5.xlarge": "0.95"}
    after = {one.type: one for one in await api.refresh_prices()}
    await api.close()
    assert after["g5.xlarge"].price_per_hour == Decimal("0.95")
    assert after["g5.xlarge"].source == "AWS price list"
    assert after["g6.xlarge"] == before["g6.xlarge"], "what is not listed stays"
    ec2.denied = {"pricing:GetProducts"}
    offline = api_of(ec2, home=str(tmp_path))
    market = next(one for one in await offline.markets() if not one.spot)
    await offline.close()
    assert market.price_per_hour == Decimal("0.95")


# --- the bill ---


async def test_the_bill_is_read_by_machine_and_by_what_it_is_for(
    ec2: Ec2, api: AwsApi
) -> None:
    def used(owner: str, usage_type: str, amount: str, **more: str) -> BilledUsage:
        values = {"day": "2026-11-27", "installation": "inst_1", **more}
        return BilledUsage(owner=owner, usage_type=usage_type, amount=amount, **values)

    ec2.bill = [
        used("att_1", "SpotUsage:g5.xlarge", "0.6035", quantity="1.5"),
        used("att_1", "EBS:VolumeUsage.gp3", "0.0167"),
        used("att_1", "USE2-DataTransfer-Out-Bytes", "0.09"),
        used("att_1", "PublicIPv4:InUseAddress", "0.0075"),
        used("att_1", "Requests-Tier1", "0"),
        used("", "NatGateway-Bytes", "0.01"),
        used("att_2", "BoxUsage:g5.xlarge", "9", day="2026-11-28"),
        used("att_3", "BoxUsage:g5.xlarge", "9", installation="another"),
    ]
    ec2.page = 2
    bill = await api.bill(date(2026, 11, 27), "inst_1")
    assert ec2.calls["GetCostAndUsage"] == 3, "two groups a page"
    found = [(one.owner, one.part, one.amount, one.hours) for one in bill.charges]
    assert found == [
        ("att_1", "machine", Decimal("0.6035"), Decimal("1.5")),
        ("att_1", "disk", Decimal("0.0167"), None),
        ("att_1", "traffic", Decimal("0.09"), None),
        ("att_1", "address", Decimal("0.0075"), None),
        ("", "other", Decimal("0.01"), None),
    ]
    assert {one.currency for one in bill.charges} == {"USD"}
    assert (bill.begin, bill.end - bill.begin) == (1_795_737_600.0, 86_400.0)
    assert bill.estimated
    ec2.denied = {"ce:GetCostAndUsage"}
    with pytest.raises(ProviderError, match="ce:GetCostAndUsage"):
        await api.bill(date(2026, 11, 27), "inst_1")


# --- rights ---


async def test_each_missing_permission_is_named(ec2: Ec2, api: AwsApi) -> None:
    assert await api.missing_rights() == []
    assert not ec2.machines()
    denied = {
        "ec2:CreateTags",
        "ec2:TerminateInstances",
        "ec2:DescribeInstances",
        "ec2:DescribeImages",
        "ssm:GetParameter",
        "pricing:GetProducts",
    }
    ec2.denied = denied
    fresh = api_of(ec2)
    found = {one.action: one.needed_for for one in await fresh.missing_rights()}
    await fresh.close()
    assert set(found) == denied
    assert found["ec2:CreateTags"] == "marking machines and disks as gpuyard's"
    assert "while there is none" in found["ec2:TerminateInstances"]


async def test_wrong_credentials_are_no_missing_permission(
    ec2: Ec2, api: AwsApi
) -> None:
    ec2.errors["DescribeInstances"].extend(["AuthFailure"] * 2)
    with pytest.raises(ProviderError) as caught:
        await api.missing_rights()
    assert caught.value.error_code == contract.CREDENTIALS


async def test_the_policy_of_the_guide_is_what_is_called(
    ec2: Ec2, tmp_path: Path
) -> None:
    """The policy has every action that the code calls, and no other."""
    subnets = [one.id for one in ec2.backend().describe_subnets()]
    regions = {"us-east-1": {"subnets": subnets}}
    home = str(tmp_path)
    api = api_of(ec2, regions=regions, home=home, compare_bills=True)
    await api.markets()
    await api.refresh_prices()
    await api.bill(date(2026, 11, 27), "inst_1")
    started = await api.launch(replace(ORDER, spot=True))
    await api.find("att_1", "inst_1")
    await api.instances("inst_1")
    await api.end([InstanceRef(started.region, started.id)])
    called = set(ec2.actions)
    assert await api.missing_rights() == []
    await api.close()
    assert set(ec2.actions) == called, "the check asks for the same, and all of it"
    (policy,) = re.findall(r"```json\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    allowed: set[str] = set()
    for statement in json.loads(policy)["Statement"]:
        actions = statement["Action"]
        allowed |= {actions} if isinstance(actions, str) else set(actions)
    assert allowed == called
    assert set(NEEDED_FOR) == called
