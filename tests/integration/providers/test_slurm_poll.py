"""What asking after a thousand jobs costs Slurm, and what becomes of a job that begins
while it is asked after.
"""

import asyncio
from pathlib import Path

import pytest

from gpuyard.domain.jobconfig import JobStatus
from gpuyard.providers.attempt_folder import AttemptFolder
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


@pytest.mark.parametrize(
    ("then", "status", "is_cancelled"),
    [
        ("RUNNING", JobStatus.RUNNING, False),
        ("PENDING", JobStatus.FAILED, True),
        ("", JobStatus.RUNNING, False),
    ],
)
def test_a_job_that_begins_just_after_slurm_said_it_waits_was_not_queued_again(
    commands: Path, tmp_path: Path, then: str, status: JobStatus, is_cancelled: bool
) -> None:
    """`squeue` says once that it waits, and `then` something else, or no more of it."""
    folder = AttemptFolder(tmp_path / "slurm", "attempt_7")
    folder.path.mkdir(parents=True)
    later = f"7|{then}|1700000000|node1|attempt_7|None" if then else ""
    (commands / "squeue").write_text(
        f"""#!/bin/sh
if [ -e {folder.started} ]; then
    echo '{later}'
else
    echo '7|PENDING|||attempt_7|None'
    echo '{{"at": 1700000000.0, "host": "node1"}}' > {folder.started}
fi
"""
    )

    async def ask() -> JobStatus:
        environment = {"PATH": f"{commands}:/usr/bin:/bin"}
        provider = SlurmProvider({"home": str(tmp_path), "environment": environment})
        found = await provider.poll_jobs(["7"])
        await provider.close()
        return found["7"].status

    assert asyncio.run(ask()) is status
    calls = tmp_path / "calls"
    called = calls.read_text().split() if calls.exists() else []
    assert ("scancel" in called) is is_cancelled
