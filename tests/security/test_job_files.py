"""Jobs that leave links and broken files where server and agent look."""

import asyncio
import os
import pwd
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from gpuyard.domain import wire
from gpuyard.domain.attempt_order import AttemptOrder
from gpuyard.domain.errors import ProviderError
from gpuyard.domain.ids import new_id
from gpuyard.domain.jobconfig import JobConfig, JobResult, JobStatus
from gpuyard.domain.jobspec import CheckpointSpec
from gpuyard.domain.reasons import Reason
from gpuyard.node.checkpoints import CheckpointWatcher
from gpuyard.providers.base import GpuProviderInterface
from gpuyard.providers.docker.provider import DockerProvider
from gpuyard.providers.slurm.provider import SlurmProvider
from gpuyard.storage.blobs import BlobStore
from tests.support.attacker import USER, attacking
from tests.support.dockerd import IMAGE, Dockerd
from tests.support.slurm import SlurmCluster

SECRET = "the secret of the server"
# Links to a secret under every name that matches, and a folder that is swapped for a
# link as fast as it goes.
PLANT = """
import os, sys
work, secret = sys.argv[1:]
os.chdir(work)
os.symlink(secret + "/step-1.pt", "step-1.pt")
os.symlink(secret, "deep")
os.mkdir("step-2")
os.symlink(secret + "/step-1.pt", "step-2/weights")
os.mkdir("honest")
open("honest/step-3.pt", "w").write("honest")
print("planted", flush=True)
while True:
    os.rename("honest", "out"); os.rename("out", "honest")
    os.symlink(secret, "out"); os.unlink("out")
"""


@pytest.fixture
def secret() -> Iterator[Path]:
    """A folder that everybody may enter, with a file that only we may read."""
    with tempfile.TemporaryDirectory(prefix="gpuyard-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        file = folder / "step-1.pt"
        file.write_text(SECRET)
        file.chmod(0o600)
        yield folder


@pytest.fixture
def public_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="gpuyard-") as name:
        folder = Path(name)
        folder.chmod(0o1777)
        yield folder


@pytest.mark.parametrize("pattern", ["**/step-*", "out/*.pt"])
def test_an_agent_that_may_read_more_than_the_job_stores_nothing_of_it(
    public_folder: Path, secret: Path, tmp_path: Path, pattern: str
) -> None:
    blobs = BlobStore(tmp_path / "blobs")
    start = wire.StartAttempt("a", 1, 1, "j", ["x"], {}, checkpoint_path=pattern)
    owner = pwd.getpwnam(USER).pw_uid
    watcher = CheckpointWatcher(
        start, public_folder, time.time() - 60, blobs, lambda: None, owner=owner
    )
    with attacking(PLANT, public_folder, secret) as attacker:
        assert attacker.stdout
        assert attacker.stdout.readline() == "planted\n"
        # A hard link needs no right to read where fs.protected_hardlinks is 0.
        os.link(secret / "step-1.pt", public_folder / "step-4.pt")
        for _ in range(200):
            watcher.scan(lambda: (), last=True)
    kept = [path.read_bytes() for path in blobs.root.glob("??/*")]
    assert not any(SECRET.encode() in content for content in kept)


async def until_over(provider: GpuProviderInterface, job_id: str) -> JobResult:
    async with asyncio.timeout(60):
        while True:
            result = (await provider.poll_jobs([job_id]))[job_id]
            if result.status.is_over:
                return result
            await asyncio.sleep(0.1)


def run(
    provider: GpuProviderInterface,
    check: Callable[[GpuProviderInterface], Awaitable[None]],
) -> None:
    async def whole() -> None:
        try:
            await check(provider)
        finally:
            await provider.close()

    asyncio.run(whole())


def test_a_container_hands_out_no_file_of_its_host(
    dockerd: Dockerd, secret: Path, tmp_path: Path
) -> None:
    code = f"""
        ln -s {secret}/step-1.pt step-1.pt; ln -s {secret} out
        mkdir step-2; ln -s {secret}/step-1.pt step-2/far; echo x > step-2/own
        echo honest > step-3.pt; ln -s step-3.pt step-latest
    """
    foreign = new_id("attempt")
    dockerd.call("create", "--name", f"gpuyard-{foreign}", IMAGE, "sh", "-c", "true")

    async def check(provider: GpuProviderInterface) -> None:
        order = AttemptOrder(
            attempt_id=new_id("attempt"),
            name="x",
            image=IMAGE,
            command=("sh", "-c", code),
            checkpoint=CheckpointSpec(path="**/step-*"),
        )
        job_id = await provider.submit_attempt(order)
        assert (await until_over(provider, job_id)).status is JobStatus.COMPLETED
        blobs = BlobStore(tmp_path / "blobs")
        found = await provider.checkpoints(job_id)
        assert sorted(item.path for item in found) == ["step-2", "step-3.pt"]
        for item in found:
            assert item.beneath
            blobs.put_beneath(item.beneath, item.where.relative_to(item.beneath))
        kept = [path.read_bytes() for path in blobs.root.glob("??/*")]
        assert len(kept) == 2
        assert not any(SECRET.encode() in content for content in kept)
        # Somebody else's container with a name of ours hides no other.
        both = await provider.poll_jobs([f"gpuyard-{foreign}", job_id])
        assert both[job_id].status is JobStatus.COMPLETED
        assert both[f"gpuyard-{foreign}"].reason == Reason.BROKEN_FILE
        taken = AttemptOrder(
            attempt_id=foreign, name="x", image=IMAGE, command=("true",)
        )
        with pytest.raises(ProviderError, match="not gpuyard's"):
            await provider.submit_attempt(taken)
        await provider.forget_job(f"gpuyard-{foreign}")

    run(DockerProvider({"home": str(tmp_path), "host": dockerd.host}), check)
    assert dockerd.call("inspect", f"gpuyard-{foreign}").returncode == 0


def test_a_slurm_job_that_breaks_its_folder_fails_alone(
    slurm: SlurmCluster, secret: Path, tmp_path: Path
) -> None:
    spool = tmp_path / "home" / "slurm"
    attack = f"""
        cd {spool}/$GPUYARD_ATTEMPT_ID
        echo '[{{"file": "../../step", "path": "x"}}]' > checkpoints.json
        rm log; ln -s {secret}/step-1.pt log
        rm started.json; ln -s {secret}/step-1.pt started.json
        mkdir exit.json; echo '../../keep 0' > arrays; sleep 100
    """
    keep = tmp_path / "home" / "keep"
    keep.mkdir(parents=True)

    def job(command: str) -> JobConfig:
        words = ("sh", "-c", command)
        return JobConfig(name="x", command=words, attempt_id=new_id("attempt"))

    async def check(provider: GpuProviderInterface) -> None:
        bad = await provider.submit_job(job(attack))
        good = await provider.submit_job(job("echo fine"))
        broken = await until_over(provider, bad)
        assert (broken.status, broken.reason) == (JobStatus.FAILED, Reason.BROKEN_FILE)
        assert broken.error_message
        assert broken.error_message.startswith(("started.json", "exit.json"))
        assert (await until_over(provider, good)).status is JobStatus.COMPLETED
        assert "fine" in await provider.get_job_logs(good)
        with pytest.raises(ProviderError, match=r"checkpoints\.json"):
            await provider.checkpoints(bad)
        assert await provider.get_job_logs(bad) == ""
        await provider.forget_job(bad)

    config = {"home": str(tmp_path / "home"), "environment": slurm.environment}
    run(SlurmProvider(config), check)
    assert keep.is_dir()
