"""The provider `slurm` on a real cluster of four nodes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuyard.domain.errors import InsufficientResourcesError, ProviderError
from gpuyard.domain.jobconfig import GpuSpec, JobConfig
from gpuyard.providers.conformance import Subject
from gpuyard.providers.conformance.subject import Case
from gpuyard.providers.slurm.provider import SlurmProvider
from tests.support.clock import survive_a_jump
from tests.support.conformance import all_but, only
from tests.support.slurm import SlurmCluster
from tests.support.sshd import Sshd


# Fifty jobs are twenty seconds' work here. Many that come together are shown in
# tests/acceptance/test_slurm.py, and fifty at once on other providers.
@pytest.mark.parametrize("case", all_but({"fifty_at_once"}), ids=str)
def test_conformance(case: Case, slurm: SlurmCluster, tmp_path: Path) -> None:
    @asynccontextmanager
    async def subject() -> AsyncIterator[Subject]:
        config = {
            "home": str(tmp_path),
            "poll_s": 0.2,
            "environment": slurm.environment,
            "price_per_hour": 3600,
        }
        provider = SlurmProvider(config)
        yield Subject(
            provider, missing_workdir={"workdir": "/no/such/folder"}, pause_s=0.1
        )
        await provider.close()

    case.run(subject)


def test_a_clock_that_jumps_ends_no_job_early_and_keeps_none_too_long(
    slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def jump() -> None:
        provider = SlurmProvider(
            {"home": str(tmp_path), "poll_s": 0.2, "environment": slurm.environment}
        )
        subject = Subject(provider, pause_s=0.1)
        try:
            await survive_a_jump(subject, monkeypatch)
        finally:
            await subject.clean_up()
            await provider.close()

    asyncio.run(jump())


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"gpu_spec": GpuSpec(gpu_type="T4")}, "Slurm: "),
        ({"gpu_spec": GpuSpec(gpu_type="A100", memory_gb=80)}, "A100 with 80 GB"),
        ({"image": "pytorch:latest"}, "image is pytorch:latest"),
    ],
)
def test_what_the_cluster_has_not_is_refused_and_not_left_out(
    slurm: SlurmCluster, tmp_path: Path, fields: dict[str, Any], said: str
) -> None:
    async def submit() -> None:
        provider = SlurmProvider(
            {"home": str(tmp_path), "environment": slurm.environment}
        )
        with pytest.raises(ProviderError, match=said) as caught:
            await provider.submit_job(JobConfig(name="a", command=("true",), **fields))
        if isinstance(caught.value, InsufficientResourcesError):
            assert caught.value.requested_spec == fields["gpu_spec"]
        else:
            assert "gpu_spec" not in fields
        await provider.close()

    asyncio.run(submit())


# What goes through ssh. Exit codes and timeouts are the runner's matter; variables go
# in the same file as arguments, and the last lines are read as a big log is.
_OVER_SSH = {
    "command_beside",
    "terminal_beside",
    "command_without_client",
    "unknown_id",
    "arguments",
    "stdin",
    "follow",
    "big_log",
    "cancel_while_running",
    "same_attempt_once",
    "lost_reply",
    "health",
}


@pytest.mark.parametrize("case", only(_OVER_SSH), ids=str)
def test_conformance_over_ssh(
    case: Case, slurm: SlurmCluster, sshd: Sshd, tmp_path: Path
) -> None:
    @asynccontextmanager
    async def subject() -> AsyncIterator[Subject]:
        provider = SlurmProvider(
            {
                "home": str(tmp_path),
                "poll_s": 0.2,
                "environment": slurm.environment,
                "price_per_hour": 3600,
                "host": "login",
                "ssh_options": sshd.options,
                "spool": str(tmp_path / "spool"),
            }
        )
        yield Subject(
            provider, missing_workdir={"workdir": "/no/such/folder"}, pause_s=0.2
        )
        await provider.close()

    case.run(subject)


def test_a_login_node_that_is_not_there_is_said_so(sshd: Sshd, tmp_path: Path) -> None:
    provider = SlurmProvider(
        {
            "home": str(tmp_path),
            "host": "nowhere.invalid",
            "ssh_options": sshd.options,
            "spool": "/s",
        }
    )
    health = asyncio.run(provider.health_check())
    assert health["status"] == "unhealthy"
    assert health["message"].startswith("ssh to nowhere.invalid: ")


def test_a_cluster_without_accounting_says_what_is_missing(
    slurm: SlurmCluster, tmp_path: Path
) -> None:
    health = asyncio.run(
        SlurmProvider(
            {"home": str(tmp_path), "environment": slurm.environment}
        ).health_check()
    )
    assert (health["status"], health["accounting"]) == ("healthy", False)
    assert "4 nodes can be used; no accounting (slurmdbd): " in health["message"]
    assert "exit codes and end times" in health["message"]
