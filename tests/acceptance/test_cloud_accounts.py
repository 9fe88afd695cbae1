"""`gpuyard cloud`: the account of a provider at its cloud."""

import json
from collections.abc import Iterator

import pytest

from tests.support.ec2 import Ec2
from tests.support.instance import TestInstance, make_instance

SETTINGS = """
[providers.aws]
regions = ["us-east-1"]
types = ["g5.xlarge"]
"""


@pytest.fixture
def instance(ec2: Ec2) -> Iterator[TestInstance]:
    with make_instance(**ec2.environment) as made:
        made.home.create()
        made.home.own_settings.write_text(SETTINGS)
        yield made


def test_the_account_is_checked_and_its_prices_are_read(
    ec2: Ec2, instance: TestInstance
) -> None:
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
