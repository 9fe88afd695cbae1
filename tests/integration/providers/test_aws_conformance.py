"""The conformance suite on machines of EC2, which really join."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpuyard.providers.aws.provider import AwsProvider
from gpuyard.providers.conformance import Case, Subject
from tests.support.conformance import only
from tests.support.ec2 import Ec2
from tests.support.playing_ec2 import playing_ec2
from tests.support.rented_subject import rented_subject

# What needs no machine. Those that do are as with other clouds, and tests/acceptance
# has a job that goes the whole way.
DAILY = {
    "too_much",
    "unknown_id",
    "available_gpus",
    "health",
}


@asynccontextmanager
async def open_subject(ec2: Ec2, folder: Path) -> AsyncGenerator[Subject]:
    ec2.prices = {"c5.large": "0.085", "g5.xlarge": "1.006"}
    settings = ec2.settings(types=["c5.large", "g5.xlarge"], spot=False, poll_s=0.2)
    provider = AwsProvider({**settings, "home": str(folder)})
    with playing_ec2(ec2, folder / "machines") as players:
        end = players.cloud.close_all
        async with rented_subject(folder, provider, end) as subject:
            yield subject


@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", only(DAILY), ids=str)
def test_conformance(case: Case, ec2: Ec2, tmp_path: Path) -> None:
    case.run(lambda: open_subject(ec2, tmp_path))
