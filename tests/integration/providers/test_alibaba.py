"""Machines of Alibaba ECS, through its own SDK before a fake that checks signatures."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from gpuyard.domain.errors import ProviderError
from gpuyard.providers.alibaba.api import AlibabaApi
from gpuyard.providers.alibaba.config import AlibabaConfig
from gpuyard.providers.base import TRANSIENT
from gpuyard.providers.instances.api import (
    CAPACITY,
    CREDENTIALS,
    DENIED,
    PRICE,
    QUOTA,
    SETTING,
    Instance,
    InstanceOrder,
    InstanceRef,
    InstanceState,
    Market,
)
from gpuyard.providers.instances.fleet import RentedFleet
from tests.support.fake_ecs import FakeEcs
from tests.support.fake_ecs_bills import billed_item
from tests.support.fake_ecs_machines import Machine
from tests.support.wait import eventually

T4 = "ecs.gn6i-c4g1.xlarge"
V100 = "ecs.gn6v-c8g1.2xlarge"
A100 = "ecs.gn7-c12g1.3xlarge"
ZONE_H = "cn-hangzhou-h"
ZONE_I = "cn-hangzhou-i"
GUIDE = Path(__file__).parents[3] / "docs/guides/alibaba.md"

pytestmark = pytest.mark.anyio


@pytest.fixture
def ecs() -> Iterator[FakeEcs]:
    with FakeEcs() as found:
        found.prices = {T4: 11.63, V100: 26.46, A100: 34.74}
        found.spot_prices = {(ZONE_H, T4): 3.49, (ZONE_I, T4): 2.5}
        yield found


@pytest.fixture
async def api(ecs: FakeEcs) -> AsyncIterator[AlibabaApi]:
    found = made(ecs)
    yield found
    await found.close()


def made(ecs: FakeEcs, **settings: Any) -> AlibabaApi:
    given = {"vswitches": ecs.both_zones(), "types": [T4, V100, A100], **settings}
    return AlibabaApi(AlibabaConfig.read({"home": "/", **ecs.settings(**given)}))


def order(owner: str = "att_1", **fields: Any) -> InstanceOrder:
    given: dict[str, Any] = {
        "owner": owner,
        "installation": "home-1",
        "name": "alibaba-1",
        "type": T4,
        "region": "cn-hangzhou",
        "zone": ZONE_H,
        "spot": False,
        "user_data": "#!/bin/sh\necho 'it''s here: ✓ $HOME & \"more\"'\n",
        "disk_gb": 100,
        **fields,
    }
    return InstanceOrder(**given)


async def refused(work: Any) -> ProviderError:
    with pytest.raises(ProviderError) as caught:
        await work
    assert caught.value.provider == "alibaba"
    return caught.value


def ref(machine: Machine | Instance) -> InstanceRef:
    return InstanceRef(machine.region, machine.id)


# --- starting ---


async def test_a_machine_is_what_the_order_says(ecs: FakeEcs, api: AlibabaApi) -> None:
    found = await api.launch(order(tags={"team": "vision & more"}))
    (machine,) = ecs.machines.values()
    assert (found.id, found.state) == (machine.id, InstanceState.PENDING)
    assert (found.region, found.zone, found.type) == ("cn-hangzhou", ZONE_H, T4)
    assert not found.spot
    assert machine.user_data == order().user_data
    assert machine.tags == {
        "gpuyard-installation": "home-1",
        "gpuyard-owner": "att_1",
        "team": "vision & more",
    }
    asked = machine.order
    assert asked["ClientToken"] == "att_1"
    assert asked["SecurityGroupId"] == "sg-cnhangzhou"
    assert asked["InternetMaxBandwidthOut"] == "100"
    assert asked["SystemDisk.Size"] == "100"
    assert asked["SystemDisk.Category"] == "cloud_essd"
    assert asked["ImageFamily"] == "acs:ubuntu_22_04_x64"
    assert asked["DeletionProtection"].lower() == "false"


async def test_the_hook_of_the_fake_gets_what_the_machine_would_boot_from(
    ecs: FakeEcs, api: AlibabaApi
) -> None:
    booted: list[tuple[str, str]] = []
    ecs.on_launch = lambda machine, user_data: booted.append((machine.id, user_data))
    found = await api.launch(order())
    assert booted == [(found.id, order().user_data)]


async def test_a_repeated_order_starts_no_second_machine(
    ecs: FakeEcs, api: AlibabaApi
) -> None:
    ecs.fault("cut", "RunInstances")
    error = await refused(api.launch(order()))
    assert error.error_code in TRANSIENT, "nobody knows whether there is a machine"
    again = await api.launch(order())
    # A minute later the time of release is another, so Alibaba takes it for another
    # order with the same token.
    ecs.tokens["att_1"][0]["AutoReleaseTime"] = "2026-01-01T00:00:00Z"  # type: ignore[index]
    third = await api.launch(order())
    (machine,) = ecs.machines.values()
    assert (again.id, third.id) == (machine.id, machine.id)
    assert ecs.refused["IdempotentParameterMismatch"] == 1


async def test_an_order_whose_request_was_lost_can_be_repeated(
    ecs: FakeEcs, api: AlibabaApi
) -> None:
    ecs.fault("lose", "RunInstances")
    assert (await refused(api.launch(order()))).error_code in TRANSIENT
    assert await api.find("att_1", "home-1") is None
    await api.launch(order())
    assert len(ecs.machines) == 1


async def test_spot_machines_have_the_limit_of_the_order(
    ecs: FakeEcs, api: AlibabaApi
) -> None:
    found = await api.launch(order("a", spot=True))
    assert found.spot
    # Alibaba takes three decimals, and the limit must not be exceeded.
    await api.launch(order("b", spot=True, max_price=Decimal("3.500999")))
    (free, limited) = (ecs.named(owner)[0].order for owner in ("a", "b"))
    assert free["SpotStrategy"] == "SpotAsPriceGo"
    assert limited["SpotStrategy"] == "SpotWithPriceLimit"
    assert limited["SpotPriceLimit"] == "3.5"
    error = await refused(api.launch(order("c", spot=True, max_price=Decimal("3.4"))))
    assert error.error_code == PRICE
    assert "max_price" in str(error)


async def test_each_zone_and_region_has_its_own_network(ecs: FakeEcs) -> None:
    api = made(
        ecs,
        vswitches={**ecs.both_zones(), "ap-southeast-1a": "vsw-apsoutheast1a"},
        security_groups={"ap-southeast-1": "sg-apsoutheast1"},
        image="m-own",
    )
    await api.launch(order("near", zone=ZONE_I))
    await api.launch(order("far", region="ap-southeast-1", zone="ap-southeast-1a"))
    (near, far) = (ecs.named(owner)[0] for owner in ("near", "far"))
    assert (near.zone, far.zone) == (ZONE_I, "ap-southeast-1a")
    assert far.order["SecurityGroupId"] == "sg-apsoutheast1"
    assert far.order["ImageId"] == "m-own"
    assert {one.owner for one in await api.instances("home-1")} == {"near", "far"}
    found = await api.find("far", "home-1")
    assert found is not None and found.region == "ap-southeast-1"
    await api.end([ref(near), ref(far)])
    assert not ecs.machines
    error = await refused(api.launch(order(zone="cn-hangzhou-k")))
    assert error.error_code == SETTING
    assert "providers.alibaba.vswitches" in str(error)
    await api.close()


# --- what is refused ---


@pytest.mark.parametrize(
    ("code", "ours", "said"),
    [
        ("OperationDenied.NoStock", CAPACITY, "NoStock"),
        ("QuotaExceed.ElasticQuota", QUOTA, "Quota Center"),
        ("InvalidSecurityGroupId.NotFound", SETTING, "security_group_id"),
        ("InvalidVSwitchId.NotFound", SETTING, "vswitch_id"),
        ("InvalidVSwitchId.IpNotEnough", CAPACITY, "no free address"),
        ("InvalidImageId.NotFound", SETTING, "providers.alibaba.image"),
        ("InvalidRegionId.NotFound", SETTING, "region_id"),
        ("InvalidSystemDiskCategory.ValueNotSupported", SETTING, "disk_category"),
        ("InvalidAccessKeyId.NotFound", CREDENTIALS, "ALIBABA_CLOUD_ACCESS_KEY_ID"),
        ("InvalidAccessKeyId.Inactive", CREDENTIALS, "enabled"),
        ("SignatureDoesNotMatch", CREDENTIALS, "access_key_secret"),
        ("InvalidSecurityToken.Expired", CREDENTIALS, "temporary keys"),
        ("InvalidTimeStamp.Expired", CREDENTIALS, "clock"),
        ("InvalidAccountStatus.NotEnoughBalance", QUOTA, "balance"),
        ("Forbidden.RAM", DENIED, "ecs:RunInstances"),
        ("SomethingNew", "REFUSED", "SomethingNew"),
    ],
)
async def test_refusals_say_what_to_do(
    ecs: FakeEcs, api: AlibabaApi, code: str, ours: str, said: str
) -> None:
    ecs.refuse(code, "RunInstances")
    error = await refused(api.launch(order()))
    assert (error.error_code, said in str(error)) == (ours, True), error
    assert code in str(error)
    assert ecs.access_key_secret not in str(error)


async def test_what_the_fake_itself_refuses(ecs: FakeEcs) -> None:
    ecs.stock[ZONE_H, T4, False] = 0
    ecs.quota = 4
    api = made(ecs, security_group_id="sg-other")
    assert (await refused(api.launch(order()))).error_code == SETTING
    await api.close()
    api = made(ecs)
    assert (await refused(api.launch(order()))).error_code == CAPACITY
    assert (await refused(api.launch(order(type=V100)))).error_code == QUOTA
    assert (await refused(api.launch(order(type="ecs.none")))).error_code == SETTING
    ecs.forbidden.add("ecs:RunInstances")
    assert (await refused(api.launch(order()))).error_code == DENIED
    await api.close()


async def test_a_wrong_secret_is_told_by_its_signature(ecs: FakeEcs) -> None:
    api = made(ecs, access_key_secret="another-secret")
    error = await refused(api.launch(order()))
    assert error.error_code == CREDENTIALS
    assert "another-secret" not in str(error)
    assert ecs.refused == {"SignatureDoesNotMatch": 1}
    await api.close()


async def test_a_wrong_clock_is_told(ecs: FakeEcs, api: AlibabaApi) -> None:
    ecs.ahead_s = 3600.0
    error = await refused(api.instances("home-1"))
    assert error.error_code == CREDENTIALS
    assert "clock" in str(error)


async def test_temporary_keys_expire_in_the_middle(ecs: FakeEcs) -> None:
    ecs.security_token = "a-token"
    api = made(ecs, security_token="a-token")
    await api.launch(order())
    ecs.expired = True
    error = await refused(api.instances("home-1"))
    assert error.error_code == CREDENTIALS
    assert "ALIBABA_CLOUD_SECURITY_TOKEN" in str(error)
    assert "a-token" not in str(error)
    await api.close()


@pytest.mark.parametrize("what", ["cut", "lose", 502, 200])
async def test_an_answer_that_is_none_is_transient(
    ecs: FakeEcs, api: AlibabaApi, what: Any
) -> None:
    ecs.fault(what, "DescribeInstances")
    error = await refused(api.instances("home-1"))
    assert error.error_code in TRANSIENT, error
    assert list(await api.instances("home-1")) == []


async def test_a_server_that_hangs_is_given_up(ecs: FakeEcs) -> None:
    api = made(ecs, timeout_s=0.2)
    ecs.fault("hang", "DescribeInstances")
    error = await refused(api.instances("home-1"))
    assert error.error_code == "TIMEOUT"
    await api.close()


async def test_a_throttled_call_waits_and_is_sent_again(
    ecs: FakeEcs, api: AlibabaApi
) -> None:
    ecs.refuse("Throttling.User", "RunInstances", times=2)
    await api.launch(order())
    assert ecs.refused == {"Throttling.User": 2}
    assert len(ecs.machines) == 1


# --- listing and ending ---


def fill(ecs: FakeEcs, count: int) -> None:
    """Machines that run, as an earlier server has left them."""
    for number in range(count):
        machine = Machine(
            f"i-{number:020d}",
            "cn-hangzhou",
            ZONE_H,
            T4,
            False,
            {"gpuyard-installation": "home-1", "gpuyard-owner": f"att_{number}"},
            {},
            "",
            time.time(),
            status="Running",
            next_statuses=[],
            released_at=time.time() + 3600,
        )
        ecs.machines[machine.id] = machine


async def test_500_machines_take_few_requests(ecs: FakeEcs, api: AlibabaApi) -> None:
    fill(ecs, 500)
    other = next(iter(ecs.machines.values()))
    other.tags = {"gpuyard-installation": "home-2", "gpuyard-owner": "att_0"}
    found = await api.instances("home-1")
    assert len({one.id for one in found}) == 499
    assert len(ecs.calls) <= 10
    ecs.calls.clear()
    await api.end([ref(one) for one in found])
    assert list(ecs.machines) == [other.id]
    assert [action for action, _ in ecs.calls] == ["DeleteInstances"] * 5
    assert ecs.calls[0][1]["Force"].lower() == "true"
    assert ecs.calls[0][1]["TerminateSubscription"].lower() == "false"


async def test_each_state_is_ours(ecs: FakeEcs, api: AlibabaApi) -> None:
    await api.launch(order(spot=True))
    (machine,) = ecs.machines.values()
    machine.next_statuses = ["Starting", "Running", "Stopping", "Stopped"]
    states = [(await api.instances("home-1"))[0] for _ in range(5)]
    assert [one.state for one in states] == [
        InstanceState.PENDING,
        InstanceState.PENDING,
        InstanceState.RUNNING,
        InstanceState.RUNNING,
        InstanceState.ENDING,
    ]
    assert states[-1].why == "Stopped"
    launched_at = states[0].launched_at
    assert launched_at is not None
    assert abs(launched_at - machine.created_at) < 60


async def test_a_machine_that_is_taken_back_says_so(
    ecs: FakeEcs, api: AlibabaApi
) -> None:
    await api.launch(order(spot=True))
    (machine,) = ecs.machines.values()
    ecs.run(machine)
    ecs.interrupt(machine)
    (found,) = await api.instances("home-1")
    assert found.interrupted
    assert found.state is InstanceState.RUNNING
    assert found.why == "Running, Recycling"
    ecs.end(machine)
    assert await api.find("att_1", "home-1") is None
    (gone,) = await api.instances("home-1")
    assert (gone.id, gone.state, gone.interrupted) == (
        machine.id,
        InstanceState.GONE,
        True,
    )


async def test_gone_machines_are_no_error(ecs: FakeEcs, api: AlibabaApi) -> None:
    fill(ecs, 2)
    gone = InstanceRef("cn-hangzhou", "i-gone")
    await api.end([gone, *map(ref, list(ecs.machines.values())[:1])])
    assert list(ecs.machines) == ["i-00000000000000000001"]
    await api.end([gone])
    await api.end([])


async def test_a_machine_that_cannot_be_ended_yet_holds_up_no_other(
    ecs: FakeEcs, api: AlibabaApi
) -> None:
    fill(ecs, 3)
    (first, *_) = ecs.machines.values()
    first.status = "Pending"
    error = await refused(api.end([ref(one) for one in ecs.machines.values()]))
    assert error.error_code in TRANSIENT
    assert list(ecs.machines) == [first.id]


async def test_a_machine_that_is_ended_before_it_was_listed_is_known_to_be_gone(
    ecs: FakeEcs, api: AlibabaApi
) -> None:
    fleet = RentedFleet("alibaba", api, lambda: "home-1")
    reference = fleet.launched(await api.launch(order()))
    for machine in ecs.machines.values():
        ecs.run(machine)
    # Alibaba forgets it at once.
    await fleet.end([reference])
    known = await fleet.read()
    assert known[reference].state is InstanceState.GONE


async def test_no_listing_is_older_than_the_one_before(
    ecs: FakeEcs, api: AlibabaApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = api._client.call
    under_way = 0
    most = 0

    async def counted(region: str, action: str, *more: Any, **fields: Any) -> Any:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            return await call(region, action, *more, **fields)
        finally:
            under_way -= 1

    monkeypatch.setattr(api._client, "call", counted)
    fill(ecs, 1)
    # Fleet and pools ask at the same time. By an older listing, a new machine would be
    # gone.
    await asyncio.gather(*(api.instances("home-1") for _ in range(3)))
    assert most == 1


# --- what gpuyard does beside ---


async def test_a_machine_that_shut_down_is_ended_because_it_costs(
    ecs: FakeEcs, api: AlibabaApi
) -> None:
    fill(ecs, 2)
    (first, second) = ecs.machines.values()
    first.status = "Stopped"
    await api.instances("home-1")
    await eventually(lambda: first.id not in ecs.machines)
    assert second.id in ecs.machines


async def test_alibaba_deletes_what_gpuyard_no_longer_asks_for(
    ecs: FakeEcs, api: AlibabaApi
) -> None:
    await api.launch(order())
    (machine,) = ecs.machines.values()
    first = machine.released_at
    assert first is not None
    assert 3500 < first - time.time() <= 3600
    await api.instances("home-1")
    await asyncio.sleep(0)
    assert not [one for one in ecs.calls if one[0].startswith("Modify")], "not due yet"
    machine.released_at = time.time() + 1900  # some time later
    await api.instances("home-1")
    await eventually(lambda: (machine.released_at or 0) >= first)
    ecs.release_due(time.time() + 3700)
    assert not ecs.machines


async def test_a_machine_that_cannot_be_kept_holds_up_no_other(
    ecs: FakeEcs, api: AlibabaApi
) -> None:
    fill(ecs, 2)
    (first, second) = ecs.machines.values()
    first.released_at = second.released_at = time.time() + 1900
    ecs.refuse("InstanceLockedForSecurity", "ModifyInstanceAutoReleaseTime")
    later = time.time() + 3400
    await api.instances("home-1")
    await eventually(lambda: (second.released_at or 0) > later)
    assert (first.released_at or 0) < later
    while (first.released_at or 0) < later:  # each look tries again
        await api.instances("home-1")


# --- what there is to rent ---


def by_zone(markets: Any) -> dict[tuple[str, str, bool], Market]:
    return {(one.zone, one.type.name, one.spot): one for one in markets}


async def test_markets_have_size_price_and_stock(ecs: FakeEcs, api: AlibabaApi) -> None:
    ecs.stock[ZONE_I, T4, False] = 0
    ecs.not_sold.add((ZONE_I, A100))
    ecs.quota = 10
    found = by_zone(await api.markets())
    assert len(found) == 12, "three types in two zones, on demand and spot"
    on_demand = found[ZONE_H, T4, False]
    machine = on_demand.type
    assert (machine.gpu, machine.gpus, machine.gpu_memory_gb) == ("T4", 1, 16)
    assert (machine.cpus, machine.memory_gb, machine.capability) == (4, 15, "7.5")
    assert on_demand.region == "cn-hangzhou"
    assert on_demand.price_per_hour == Decimal("11.68"), "with its disk"
    assert on_demand.currency == "CNY"
    assert re.match(
        r"Alibaba's price, with the disk, \d{4}-\d\d-\d\d$", on_demand.price_source
    )
    assert not on_demand.problem
    assert found[ZONE_H, T4, True].price_per_hour == Decimal("3.54")
    assert found[ZONE_I, T4, True].price_per_hour == Decimal("2.55")
    assert found[ZONE_H, V100, True].price_per_hour is None, "no price is known"
    assert "sold out on demand in cn-hangzhou-i" in found[ZONE_I, T4, False].problem
    assert "cn-hangzhou-i does not sell" in found[ZONE_I, A100, False].problem
    assert "leaves 10 vCPUs" in found[ZONE_H, A100, False].problem
    assert not found[ZONE_H, V100, False].problem


async def test_prices_are_not_asked_for_each_time(
    ecs: FakeEcs, api: AlibabaApi
) -> None:
    await api.markets()
    first = len(ecs.calls)
    await api.markets()
    assert [action for action, _ in ecs.calls[first:]].count("DescribePrice") == 0
    assert len(ecs.calls) - first == 3, "stock twice, and quotas"


async def test_prices_are_listed_and_read_anew(ecs: FakeEcs, api: AlibabaApi) -> None:
    first = await api.list_prices(refresh=False)
    assert {row.type: row.price_per_hour for row in first} == {
        T4: Decimal("11.68"),
        V100: Decimal("26.51"),
        A100: Decimal("34.79"),
    }
    assert {(row.region, row.currency) for row in first} == {("cn-hangzhou", "CNY")}
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", first[0].date)
    ecs.prices[T4] = 12.0
    assert list(await api.list_prices(refresh=False)) == list(first)
    del ecs.prices[V100]  # which the region does not sell any more
    (new, other) = await api.list_prices(refresh=True)
    assert new.price_per_hour == Decimal("12.05")
    assert other.type == A100
    ecs.forbidden.add("ecs:DescribePrice")
    error = await refused(api.list_prices(refresh=True))
    assert error.error_code == DENIED


async def test_classes_and_names_choose_types(ecs: FakeEcs) -> None:
    api = made(ecs, types=["t4", "ecs.g7.large"], spot=False)
    found = by_zone(await api.markets())
    offered = {name for (_, name, _), one in found.items() if not one.problem}
    assert offered == {T4, "ecs.g7.large"}
    assert found[ZONE_H, "ecs.g7.large", False].type.gpus == 0
    await api.close()


async def test_without_names_the_catalogue_is_offered_as_far_as_it_is_sold(
    ecs: FakeEcs,
) -> None:
    api = made(ecs, types=[])
    found = await api.markets()
    assert {one.type.name for one in found} == {T4, V100, A100}
    await api.close()


async def test_a_zone_is_found_by_its_vswitch(ecs: FakeEcs) -> None:
    api = made(ecs, vswitches={})
    assert {one.zone for one in await api.markets()} == {ZONE_H}
    await api.close()
    api = made(ecs, vswitches={}, vswitch_id="vsw-other")
    error = await refused(api.markets())
    assert error.error_code == SETTING
    assert "providers.alibaba.vswitch_id" in str(error)
    await api.close()


async def test_without_the_right_to_ask_prices_are_unknown(
    ecs: FakeEcs, api: AlibabaApi
) -> None:
    ecs.forbidden |= {"ecs:DescribePrice", "ecs:DescribeAccountAttributes"}
    found = by_zone(await api.markets())
    assert found[ZONE_H, T4, False].price_per_hour is None
    assert not found[ZONE_H, T4, False].price_source
    assert not found[ZONE_H, T4, False].problem


# --- the bill ---


async def test_the_bill_is_read_by_machine_and_by_what_it_is_for(
    ecs: FakeEcs, api: AlibabaApi
) -> None:
    ours = {"gpuyard-installation": "home-1", "gpuyard-owner": "att_1", "team": "a b"}
    others = {"gpuyard-installation": "home-2"}
    ecs.bill = [
        billed_item("2026-11-27", "i-1", ours, "instance_type", 17.445),
        billed_item("2026-11-27", "i-1", ours, "systemdisk", 0.075),
        billed_item("2026-11-27", "i-1", ours, "NetworkOut", 0.8),
        billed_item("2026-11-27", "i-2", others, "instance_type", 9.0),
        billed_item("2026-11-27", "i-3", {}, "instance_type", 9.0),
        billed_item("2026-11-28", "i-1", ours, "instance_type", 9.0),
    ]
    bill = await api.bill(date(2026, 11, 27), "home-1")
    assert [
        (one.machine, one.owner, one.part, one.amount, one.hours)
        for one in bill.charges
    ] == [
        ("i-1", "att_1", "machine", Decimal("17.445"), Decimal("1.5")),
        ("i-1", "att_1", "disk", Decimal("0.075"), None),
        ("i-1", "att_1", "traffic", Decimal("0.8"), None),
    ]
    assert (bill.timezone, bill.end - bill.begin) == ("UTC+8", 86_400.0)
    assert bill.begin == 1_795_737_600.0 - 8 * 3600, "midnight in Beijing"


async def test_a_bill_that_is_refused_names_the_right(ecs: FakeEcs) -> None:
    api = made(ecs, vswitches={}, compare_bills=True)
    ecs.bill_refusal = "NotAuthorized"
    error = await refused(api.bill(date(2026, 11, 27), "home-1"))
    assert (error.error_code, "bssapi:DescribeInstanceBill" in str(error)) == (
        DENIED,
        True,
    )
    missing = [one.action for one in await api.missing_rights()]
    assert missing == ["bssapi:DescribeInstanceBill"]
    await api.close()


# --- rights ---


async def test_missing_rights_are_named_and_nothing_is_rented(ecs: FakeEcs) -> None:
    api = made(ecs, vswitches={})
    assert list(await api.missing_rights()) == []
    ecs.forbidden |= {"ecs:RunInstances", "ecs:DeleteInstances", "ecs:DescribePrice"}
    found = {one.action: one.needed_for for one in await api.missing_rights()}
    assert found == {
        "ecs:RunInstances": "to rent machines",
        "ecs:DeleteInstances": "to end machines",
        "ecs:DescribePrice": "to know prices",
    }
    await api.close()
    ecs.forbidden = {"vpc:DescribeVSwitches"}
    api = made(ecs, vswitches={})
    assert [one.action for one in await api.missing_rights()] == [
        "vpc:DescribeVSwitches"
    ]
    assert not ecs.machines
    await api.close()


async def test_wrong_credentials_are_no_missing_right(ecs: FakeEcs) -> None:
    api = made(ecs, access_key_secret="another-secret")
    assert (await refused(api.missing_rights())).error_code == CREDENTIALS
    await api.close()


async def test_the_guide_allows_what_is_called_and_no_more(ecs: FakeEcs) -> None:
    text = GUIDE.read_text()
    (block,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    (statement,) = json.loads(block)["Statement"]
    api = made(ecs, vswitches={}, compare_bills=True)
    await api.bill(date(2026, 11, 27), "home-1")
    await api.missing_rights()
    await api.markets()
    await api.launch(order())
    (machine,) = ecs.machines.values()
    ecs.run(machine)
    machine.released_at = None
    await api.instances("home-1")
    await eventually(lambda: machine.released_at)
    await api.find("att_1", "home-1")
    await api.end([ref(machine)])
    await api.close()
    assert ecs.actions == set(statement["Action"])
