"""Jobs on machines of Alibaba ECS, from the command to the machine's end: the whole way
through Alibaba's own SDK, before a fake whose machines really join.
"""

import csv
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from tests.support.fake_ecs import FakeEcs
from tests.support.instance import TestInstance, make_instance
from tests.support.playing_ecs import Players, ecs_environment, playing_ecs
from tests.support.wait import wait_until

SETTINGS = """
[providers.alibaba]
region_id = "cn-hangzhou"
security_group_id = "sg-cnhangzhou"
vswitch_id = "vsw-cnhangzhouh"
types = ["ecs.g7.large", "T4"]
"""
Rented = tuple[TestInstance, FakeEcs, Players]


@pytest.fixture(scope="module")
def rented(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rented]:
    with playing_ecs(tmp_path_factory.mktemp("ecs")) as (ecs, players):
        ecs.prices = {"ecs.g7.large": 0.8}
        with make_instance(**ecs_environment(ecs)) as instance:
            instance.home.root.mkdir(parents=True, exist_ok=True)
            instance.home.settings.write_text(SETTINGS)
            yield instance, ecs, players


def test_a_job_runs_on_one_machine_though_an_answer_is_lost(rented: Rented) -> None:
    instance, ecs, players = rented
    ecs.fault("cut", "RunInstances")
    words = ("--provider", "alibaba", "--", "sh", "-c", "echo from afar; exit 3")
    job = instance.ok("run", "--detach", *words).strip()
    ended = instance.wait(job)
    attempts = instance.json("show", job)["attempts"]
    assert (ended.state, ended.exit_code) == ("failed", 3), (
        instance.ok("logs", job),
        [str(one) for one in attempts],
        [players.log(machine) for machine in ecs.machines.values()],
        instance.newest_logs(),
    )
    assert instance.ok("logs", job) == "from afar\n"
    wait_until(lambda: not ecs.machines, what="the machine to end")
    (attempt,) = attempts
    launches = [given for action, given in ecs.calls if action == "RunInstances"]
    assert {given["ClientToken"] for given in launches} == {attempt["id"]}
    assert launches[0]["InstanceType"] == "ecs.g7.large"
    assert len(players.cloud.rows()) == 1, "one machine has ever been started"
    assert ecs.access_key_secret not in instance.newest_logs()
    cost = attempt["cost"]
    parts = {name: Decimal(spent) for name, spent in cost["parts"].items()}
    assert parts.keys() == {"machine", "disk"}, cost
    assert sum(parts.values()) == Decimal(cost["amount"]) > 0
    assert cost["price_sources"]["disk"].startswith("Alibaba's price, with the disk, ")
    assert "machine " in instance.ok("show", job).partition("prices")[2]
    (line,) = instance.json("report", "--by", "provider")["items"]
    assert {name: Decimal(spent) for name, spent in line["parts"].items()} == parts
    assert "of it disk" in instance.ok("report")
    instance.ok("report", "--focus", str(instance.work / "bill.csv"))
    rows = list(csv.DictReader((instance.work / "bill.csv").open()))
    assert {row["SkuId"]: Decimal(row["BilledCost"]) for row in rows} == {
        "alibaba": parts["machine"],
        "alibaba/disk": parts["disk"],
    }


def test_offers_have_prices_in_yuan(rented: Rented) -> None:
    instance, _, _ = rented
    wanted = "alibaba/cn-hangzhou-h/ecs.g7.large/on-demand"

    def found() -> list[Any]:
        offers = instance.json("offers")["items"]
        return [row for row in offers if row["id"] == wanted]

    # The first answer of a server may come before the cloud's.
    (offer,) = wait_until(found, what="the offer")
    assert (offer["price_per_hour"], offer["currency"]) == ("0.85", "CNY")
