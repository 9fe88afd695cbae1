"""What asking after a thousand jobs costs Slurm."""

import asyncio
from pathlib import Path

import pytest

from gpuyard.providers.slurm.provider import SlurmProvider


@pytest.fixture
def commands(tmp_path: Path) -> Path:
    """A folder with a `squeue` that notes each call and knows a thousand running
    jobs.
    """
    folder = tmp_path / "bin"
    folder.mkdir()
    rows = "".join(
        f"{n}|RUNNING|1700000000|node1|attempt_{n}|None\n" for n in range(1000)
    )
    (tmp_path / "rows").write_text(rows)
    (folder / "squeue").write_text(
        f"#!/bin/sh\necho called >> {tmp_path}/calls\ncat {tmp_path}/rows\n"
    )
    for name in ("sacct", "scontrol", "sinfo", "sbatch", "scancel"):
        (folder / name).write_text(
            f"#!/bin/sh\necho {name} >> {tmp_path}/calls\nexit 1\n"
        )
    for program in folder.iterdir():
        program.chmod(0o755)
    return folder


def test_a_thousand_running_jobs_are_one_question_however_many_ask_at_once(
    commands: Path, tmp_path: Path
) -> None:
    async def ask() -> None:
        environment = {"PATH": f"{commands}:/usr/bin:/bin"}
        provider = SlurmProvider({"home": str(tmp_path), "environment": environment})
        jobs = [str(n) for n in range(1000)]
        found = await provider.poll_jobs(jobs)
        assert len(found) == 1000
        assert (tmp_path / "calls").read_text().split() == ["called"]
        await asyncio.gather(*(provider.poll_jobs(jobs) for _ in range(10)))
        assert len((tmp_path / "calls").read_text().split()) <= 3, (
            "those who ask meanwhile share the next one"
        )
        await provider.close()

    asyncio.run(ask())
