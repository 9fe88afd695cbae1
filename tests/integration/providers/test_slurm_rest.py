"""The provider `slurm` on a real cluster that is asked by slurmrestd alone: no command
of Slurm's is run.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuyard.domain.errors import InsufficientResourcesError, ProviderError
from gpuyard.domain.ids import new_id
from gpuyard.domain.jobconfig import GpuSpec, JobConfig
from gpuyard.providers.conformance import Subject
from gpuyard.providers.conformance.subject import Case
from gpuyard.providers.slurm.provider import SlurmProvider
from tests.support.conformance import all_but, only
from tests.support.slurmrestd import RestCluster
from tests.support.wait import wait_until


def make(home: Path, rest: str, **more: Any) -> SlurmProvider:
    # Commands would not find this cluster.
    environment = {"SLURM_CONF": "/no/such/file"}
    return SlurmProvider(
        {
            "home": str(home),
            "poll_s": 0.2,
            "price_per_hour": 3600,
            "rest": rest,
            "environment": environment,
            **more,
        }
    )


def job(*command: str, gpus: int = 0) -> JobConfig:
    return JobConfig(
        name="job",
        command=command,
        gpu_spec=GpuSpec(gpu_count=gpus),
        attempt_id=new_id("attempt"),
    )


# The files of jobs are read as without slurmrestd, and the same runner writes them.
_SAME_WITHOUT_REST = {
    "empty_log",
    "undecodable_log",
    "last_lines",
    "big_log",
    "log_while_running",
    "log_of_a_talker",
    "follow_to_the_end",
    "no_stdin",
    "unknown_program",
    "missing_workdir",
    "timeout_not_reached",
    "fifty_at_once",
    "command_beside",
    "terminal_beside",
    "command_without_client",
}


@pytest.mark.parametrize("case", all_but(_SAME_WITHOUT_REST), ids=str)
def test_conformance(case: Case, slurm_rest: RestCluster, tmp_path: Path) -> None:
    @asynccontextmanager
    async def subject() -> AsyncIterator[Subject]:
        provider = make(tmp_path, slurm_rest.unix)
        yield Subject(
            provider, missing_workdir={"workdir": "/no/such/folder"}, pause_s=0.1
        )
        await provider.close()

    case.run(subject)


@pytest.mark.parametrize("case", only({"completes", "lost_reply", "health"}), ids=str)
def test_conformance_over_a_port_in_an_older_version(
    case: Case, slurm_rest: RestCluster, tmp_path: Path
) -> None:
    @asynccontextmanager
    async def subject() -> AsyncIterator[Subject]:
        provider = make(tmp_path, slurm_rest.http, rest_version="v0.0.37")
        yield Subject(
            provider, missing_workdir={"workdir": "/no/such/folder"}, pause_s=0.1
        )
        await provider.close()

    case.run(subject)


def test_both_ways_see_the_same_cluster(
    slurm_rest: RestCluster, tmp_path: Path
) -> None:
    async def ask() -> None:
        rest = make(tmp_path, slurm_rest.http)
        commands = SlurmProvider(
            {"home": str(tmp_path), "environment": slurm_rest.environment}
        )
        assert sorted(await rest.offers(), key=str) == sorted(
            await commands.offers(), key=str
        )
        health = await rest.health_check()
        assert (health["status"], health["nodes"], health["accounting"]) == (
            "healthy",
            4,
            False,
        )
        assert "slurmrestd is not asked for accounts" in health["message"]
        await rest.close()

    asyncio.run(ask())


def test_what_slurm_refuses_is_said_in_its_words(
    slurm_rest: RestCluster, tmp_path: Path
) -> None:
    async def ask() -> None:
        provider = make(tmp_path, slurm_rest.unix)
        with pytest.raises(
            InsufficientResourcesError, match="node configuration is not available"
        ):
            await provider.submit_job(job("true", gpus=8))
        lost = job("true").model_copy(
            update={"provider_options": {"partition": "nope"}}
        )
        with pytest.raises(
            ProviderError,
            match="Slurm refused the job: Invalid partition name specified",
        ):
            await provider.submit_job(lost)
        await provider.close()

    asyncio.run(ask())


@pytest.mark.parametrize("token", [None, "not.a.token", "two\nlines", "Ω"])
def test_a_wrong_token_is_told_by_its_variable_and_never_shown(
    slurm_rest: RestCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    token: str | None,
) -> None:
    monkeypatch.delenv("SLURM_JWT")
    if token:
        monkeypatch.setenv("SLURM_JWT", token)

    async def ask() -> None:
        provider = make(tmp_path, slurm_rest.http)
        for question in (provider.submit_job(job("true")), provider.poll_jobs(["1"])):
            with pytest.raises(ProviderError, match="SLURM_JWT") as raised:
                await question
            assert raised.value.error_code == "NOT_CONNECTED"
            assert not token or token not in str(raised.value)
        assert (await provider.health_check())["status"] == "unhealthy"
        await provider.close()

    asyncio.run(ask())


def test_slurmrestd_killed_and_back_loses_nothing(
    slurm_rest: RestCluster, tmp_path: Path
) -> None:
    end = tmp_path / "end"

    async def ask() -> None:
        provider = make(tmp_path, slurm_rest.unix)
        runs = await provider.submit_job(
            job("sh", "-c", f"while [ ! -e {end} ]; do sleep 0.1; done; exit 3")
        )
        slurm_rest.kill("slurmrestd")
        later = job("true")
        try:
            for question in (provider.submit_job(later), provider.poll_jobs([runs])):
                with pytest.raises(ProviderError) as raised:
                    await question
                assert raised.value.error_code == "NOT_CONNECTED"
            assert (await provider.health_check())["status"] == "unhealthy"
        finally:
            slurm_rest.start_rest()
        end.touch()
        await provider.submit_job(later)
        deadline = time.monotonic() + 60
        while (result := await provider.get_job_status(runs)).exit_code is None:
            assert time.monotonic() < deadline, result
            await asyncio.sleep(0.1)
        assert result.exit_code == 3
        await provider.close()

    asyncio.run(ask())


def test_a_controller_that_is_away_is_no_refusal(
    slurm_rest: RestCluster, tmp_path: Path
) -> None:
    async def ask() -> None:
        provider = make(tmp_path, slurm_rest.unix)
        await provider.offers()
        slurm_rest.kill("slurmctld")
        try:
            with pytest.raises(ProviderError) as raised:
                await provider.submit_job(job("true"))
            assert raised.value.error_code in ("NOT_CONNECTED", "TIMEOUT")
        finally:
            slurm_rest.start_controller()
            wait_until(lambda: slurm_rest.state(), what="the controller")
            # It writes down what it knows every 5 s, so jobs that have ended may run
            # again as far as it knows.
            slurm_rest.call("scancel", "--user", "root")
            wait_until(
                lambda: slurm_rest.state().count("idle") == len(slurm_rest.nodes),
                what="the nodes to be idle",
            )
        await provider.close()

    asyncio.run(ask())
