"""Jobs on machines of EC2, from the command to the machine's end: through boto3 and moto,
whose machines really join.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.cost_explorer import BilledUsage
from tests.support.ec2 import Ec2
from tests.support.instance import TestInstance, make_instance
from tests.support.playing_ec2 import Ec2Players, playing_ec2
from tests.support.wait import wait_until

SETTINGS = """
[providers.aws]
regions = ["us-east-1"]
types = ["g5.xlarge", "c5.large"]
poll_s = 0.2
sweep_s = 1
"""
Rented = tuple[TestInstance, Ec2, Ec2Players]


@pytest.fixture(scope="module")
def rented(
    ec2_server: Ec2, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Rented]:
    ec2_server.reset()
    ec2_server.prices = {"c5.large": "0.085", "g5.xlarge": "1.006"}
    folder = tmp_path_factory.mktemp("ec2")
    environment = ec2_server.environment
    with (
        playing_ec2(ec2_server, folder) as players,
        make_instance(**environment) as instance,
    ):
        instance.home.create()
        instance.home.own_settings.write_text(SETTINGS)
        yield instance, ec2_server, players


def test_a_job_runs_on_one_machine_though_a_reply_is_lost(rented: Rented) -> None:
    instance, ec2, players = rented
    ec2.lost_replies["RunInstances"] = 1
    words = ("--provider", "aws", "--", "sh", "-c", "echo from afar; exit 3")
    job = instance.ok("run", "--detach", *words).strip()
    ended = instance.wait(job)
    shown = instance.json("show", job)
    told = (shown["attempts"], players.log(), instance.newest_logs())
    assert (ended.state, ended.exit_code) == ("failed", 3), told
    assert instance.ok("logs", job) == "from afar\n"
    wait_until(
        lambda: [one.state for one in ec2.machines()] == ["terminated"],
        what="the machine to end",
    )
    assert len(ec2.launches) == len(players.cloud.rows()) == 1
    assert ec2.launches[0]["InstanceType"] == "c5.large"
    assert "a-secret-key" not in instance.newest_logs() + json.dumps(shown)


def test_the_account_is_checked_and_its_prices_are_read(
    rented: Rented,
) -> None:
    instance, ec2, _ = rented
    assert "all permissions" in instance.ok("cloud", "check", "aws")
    ec2.denied = {"ec2:RunInstances", "pricing:GetProducts"}
    lacking = instance.run("cloud", "check", "aws")
    assert lacking.returncode == 4, lacking.stderr
    assert lacking.stdout.splitlines() == [
        "aws lacks 2 of the permissions that gpuyard needs.",
        "  ec2:RunInstances: needed for starting machines",
        "  pricing:GetProducts: needed for on-demand prices of today",
    ]
    told = json.loads(instance.run("cloud", "check", "aws", "--json").stdout)
    assert {one["action"] for one in told["missing"]} == ec2.denied
    refused = instance.run("cloud", "prices", "aws", "--refresh")
    assert refused.returncode == 4
    assert "GetProducts" in refused.stderr
    ec2.denied = set()
    ec2.prices = {"g5.xlarge": "0.95"}
    instance.ok("cloud", "prices", "aws", "--refresh")
    prices = instance.json("cloud", "prices", "aws")["items"]
    assert {one["price_per_hour"] for one in prices if one["type"] == "g5.xlarge"} == {
        "0.95"
    }

    without = instance.ok("cloud", "check", "local")
    assert without == (
        "local has no permissions to check; `gpuyard providers` shows its health.\n"
    )
    assert not instance.json("cloud", "check", "local")["checked"]
    none = instance.run("cloud", "prices", "local")
    assert none.returncode == 4
    assert "no catalogue of prices" in none.stderr
    unknown = instance.run("cloud", "check", "awz")
    assert unknown.returncode == 3
    assert "There are: aws" in unknown.stderr


def test_the_bill_is_compared(rented: Rented) -> None:
    instance, ec2, _ = rented
    words = ("cloud", "bills", "aws", "--day", "2026-01-02")
    assert instance.ok(*words).startswith("No machine differs.")
    asked: Any = ec2.asked["GetCostAndUsage"]
    (installation,) = asked["Filter"]["Tags"]["Values"]
    used = ("2026-01-02", "att_9", "BoxUsage:c5.large", "3", "1", installation)
    ec2.bill = [BilledUsage(*used)]
    differs = instance.run(*words)
    assert differs.returncode == 4, (differs.stdout, differs.stderr)
    assert "att_9" in differs.stdout
    assert "billed 3.00 USD, counted 0.00, difference 3.00" in differs.stdout
    assert "no attempt and no node of a pool" in differs.stdout
    (item,) = json.loads(instance.run(*words, "--json").stdout)["items"]
    assert (item["match"], item["billed"]) == ("unknown", "3")
    wrong = instance.run("cloud", "bills", "aws", "--day", "yesterday")
    assert wrong.returncode == 2, wrong.stderr
    assert "day" in wrong.stderr
    none = instance.run("cloud", "bills", "local")
    assert none.returncode == 4
    assert "tells no bills" in none.stderr
