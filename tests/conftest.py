"""What tests of any package may ask for."""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Generator

import pytest
import uvloop

from tests.support.dockerd import dockerd
from tests.support.ec2 import ec2, ec2_server
from tests.support.examples import register_profiles
from tests.support.instance import TestInstance
from tests.support.nvml.fixtures import fake_gpus, nvml_library
from tests.support.postgres import postgres
from tests.support.s3 import bucket, s3
from tests.support.slurm import SlurmCluster, slurm
from tests.support.slurmdbd import slurm_with_accounts
from tests.support.slurmrestd import rest_cluster, slurm_rest
from tests.support.sshd import sshd

__all__ = [
    "bucket",
    "dockerd",
    "ec2",
    "ec2_server",
    "fake_gpus",
    "nvml_library",
    "postgres",
    "rest_cluster",
    "s3",
    "slurm",
    "slurm_rest",
    "slurm_with_accounts",
    "sshd",
]

register_profiles()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Where a test failed, tell what Slurm and gpuyard's processes wrote last."""
    report = yield
    if not report.failed:
        return report
    fixtures: dict[str, object] = getattr(item, "funcargs", {})
    for name, fixture in fixtures.items():
        if isinstance(fixture, SlurmCluster):
            report.sections.append((f"slurmctld of {name}", fixture.newest_log()))
        if isinstance(fixture, TestInstance):
            report.sections.append((f"logs of {name}", fixture.newest_logs()))
    return report


# The workers begin with these files, so that none of them waits for one at the end.
_LONGEST = (
    "test_studies.py",
    "test_docs.py",
    "test_verify_providers.py",
    "test_soak.py",
    "test_verify_cheaters.py",
    "test_verify_outages.py",
    "test_benchmarks.py",
    "test_transformers.py",
)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without looking for garbage: there is hardly any, and ever more to
    look through, which then stays until the end.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests of the longest files first; the order of the others stays."""
    items.sort(key=lambda item: item.path.name not in _LONGEST)


# `python3` in a job is the interpreter itself and no script that looks for it.
os.environ["PATH"] = f"{sys.base_prefix}/bin:{os.environ['PATH']}"

# Tests that run in the background of a shell ignore Ctrl-C, and so would every program
# they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The loop that the server runs on: it is stricter than asyncio's own, and providers are
# to work there.
asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
