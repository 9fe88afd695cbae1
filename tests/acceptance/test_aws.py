"""Jobs on machines of EC2, from the command to the machine's end: through boto3 and moto,
whose machines really join.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

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


@pytest.fixture
def rented(ec2: Ec2, tmp_path: Path) -> Iterator[Rented]:
    ec2.prices = {"c5.large": "0.085", "g5.xlarge": "1.006"}
    with (
        playing_ec2(ec2, tmp_path) as players,
        make_instance(**ec2.environment) as instance,
    ):
        instance.home.create()
        instance.home.own_settings.write_text(SETTINGS)
        yield instance, ec2, players


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
