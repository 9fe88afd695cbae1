"""The spool of Slurm, where jobs write: what they put there is read with care."""

import asyncio
import io
import os
import tarfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import pytest

from gpuyard.domain.attempt_order import AttemptOrder, ResumePoint
from gpuyard.domain.errors import ProviderError
from gpuyard.providers.attempt_folder import AttemptFolder
from gpuyard.providers.slurm.client import SlurmClient
from gpuyard.providers.slurm.config import SlurmSettings
from gpuyard.providers.slurm.job_index import JobIndex
from gpuyard.providers.slurm.provider import SlurmProvider
from gpuyard.providers.slurm.site import LocalSlurmSite, SlurmSite
from gpuyard.providers.slurm.site_over_ssh import SshSlurmSite
from gpuyard.providers.slurm.staging import SlurmStaging
from gpuyard.providers.slurm.submissions import SlurmSubmissions
from gpuyard.storage.blobs import BlobStore
from gpuyard.storage.untrusted import UntrustedFileError
from tests.support.open_folder import open_folder
from tests.support.sshd import Sshd

Check = Callable[[SlurmSite], Coroutine[Any, Any, None]]


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    """A spool that is reached through a link, as many shared folders are."""
    (tmp_path / "disk" / "spool").mkdir(parents=True)
    (tmp_path / "shared").symlink_to(tmp_path / "disk")
    return tmp_path / "shared" / "spool"


@pytest.fixture(params=["here", "over ssh"])
def with_site(request: pytest.FixtureRequest, spool: Path) -> Callable[[Check], None]:
    def run(check: Check) -> None:
        async def whole() -> None:
            site: SlurmSite = LocalSlurmSite({}, 20.0, 4, spool)
            if request.param == "over ssh":
                sshd: Sshd = request.getfixturevalue("sshd")
                site = SshSlurmSite("login", sshd.options, {}, 20.0, 4, spool)
            try:
                await check(site)
            finally:
                await site.close()

        asyncio.run(whole())

    return run


def test_one_bad_file_hides_no_other(
    with_site: Callable[[Check], None], spool: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"the secret")
    for name in ("good", "link", "huge", "folder", "pipe"):
        (spool / name).mkdir()
    (spool / "good" / "exit.json").write_bytes(b"{}")
    (spool / "link" / "exit.json").symlink_to(secret)
    with (spool / "huge" / "exit.json").open("wb") as huge:
        huge.truncate(1 << 40)
    (spool / "folder" / "exit.json").mkdir()
    os.mkfifo(spool / "pipe" / "exit.json")
    names = ["good", "link", "huge", "folder", "pipe", "missing"]
    paths = {name: spool / name / "exit.json" for name in names}

    async def check(site: SlurmSite) -> None:
        found = await site.read_all(list(paths.values()))
        assert found.pop(paths["good"]) == b"{}"  # type: ignore[attr-defined]
        assert set(found) == {paths[name] for name in names[1:5]}
        assert all(isinstance(item, UntrustedFileError) for item in found.values())
        assert await site.read_all([paths["missing"]]) == {}
        for name in ("link", "folder", "pipe", "missing"):
            assert await site.read(paths[name]) is None
            assert await site.size(paths[name]) == 0
        assert await site.read(paths["huge"], 1 << 39, 5) == bytes(5)
        assert await site.size(paths["huge"]) == 1 << 40

    with_site(check)


def test_a_folder_that_became_a_link_is_not_read_or_written_through(
    spool: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "exit.json").write_bytes(b"{}")
    (spool / "job").symlink_to(outside)
    site = LocalSlurmSite({}, 20.0, 4, spool)
    path = spool / "job" / "exit.json"

    async def check() -> None:
        assert isinstance((await site.read_all([path]))[path], UntrustedFileError)
        assert await site.read(path) is None
        with pytest.raises(UntrustedFileError):
            await site.write({spool / "job" / "stop.json": b"{}"})
        with pytest.raises(UntrustedFileError):
            await site.write({}, {spool / "job" / "0": "../attempt"})
        with pytest.raises(UntrustedFileError):
            await site.make_folder(spool / "job" / "resume")
        await site.remove(path)

    asyncio.run(check())
    assert [item.name for item in outside.iterdir()] == ["exit.json"]


@pytest.mark.parametrize(
    ("place", "sent"),
    [
        ("attempt_1", "checkpoint"),
        ("attempt_1/resume", "checkpoint"),
        ("attempt_1", "folder"),
        ("snapshots", "folder"),
    ],
)
def test_no_checkpoint_and_no_folder_is_put_where_a_link_leads(
    spool: Path, tmp_path: Path, place: str, sent: str
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    link = spool / place
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(outside)
    source = tmp_path / "source"
    source.mkdir()
    (source / "train.py").write_text("print()")
    staging, blobs = staging_of(spool, tmp_path)
    blob = blobs.put(io.BytesIO(b"weights"))
    resume = ResumePoint(blob.sha256, "step-1.pt")
    order = AttemptOrder(
        attempt_id="attempt_1",
        name="train",
        command=("true",),
        workdir=str(source) if sent == "folder" else None,
        resume_from=resume if sent == "checkpoint" else None,
    )
    with pytest.raises(ProviderError, match="below a link"):
        asyncio.run(staging.stage_in(AttemptFolder(spool, "attempt_1"), order))
    assert list(outside.iterdir()) == []


def test_attempts_of_one_folder_share_its_copy_in_the_spool(
    spool: Path, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "train.py").write_text("print()")
    staging, _ = staging_of(spool, tmp_path)

    async def check() -> None:
        for name in ("attempt_1", "attempt_2"):
            order = AttemptOrder(
                attempt_id=name, name="x", command=("true",), workdir=str(source)
            )
            await staging.stage_in(AttemptFolder(spool, name), order)

    asyncio.run(check())
    (kept,) = (spool / "snapshots").iterdir()
    assert kept.samefile(spool / "attempt_1" / "work.tar")
    assert kept.samefile(spool / "attempt_2" / "work.tar")


def test_no_user_gets_a_copy_of_a_folder_that_is_closed_to_others(
    spool: Path, tmp_path: Path
) -> None:
    staging, _ = staging_of(spool, tmp_path)
    folder = AttemptFolder(spool, "attempt_1")

    async def send(workdir: Path, user: str) -> None:
        order = AttemptOrder(
            attempt_id=folder.attempt_id,
            name="x",
            command=("true",),
            workdir=str(workdir),
            user=user,
        )
        await staging.stage_in(folder, order)

    with open_folder() as source:
        with pytest.raises(ProviderError, match=r"workdir: .*everybody.*may read"):
            asyncio.run(send(source / "keys", "mia"))
        assert not folder.work.exists()
        asyncio.run(send(source / "keys", ""))
        with tarfile.open(folder.work) as of_owner:
            assert of_owner.getnames() == ["id.py"]
        asyncio.run(send(source, "mia"))
        with tarfile.open(folder.work) as of_user:
            assert of_user.getnames() == ["train.py"]


def staging_of(spool: Path, tmp_path: Path) -> tuple[SlurmStaging, BlobStore]:
    """The staging of a cluster that does not see the folders of this host, and the
    blobs that it restores.
    """
    settings = SlurmSettings(home=str(tmp_path / "home"), folders="copied")
    blobs = BlobStore(tmp_path / "blobs")
    site = LocalSlurmSite({}, 20.0, 4, spool)
    return SlurmStaging(site, spool, settings, blobs), blobs


def test_no_id_that_a_job_wrote_leads_out_of_the_spool(
    spool: Path, tmp_path: Path
) -> None:
    keep = tmp_path / "disk" / "keep"
    keep.mkdir()
    job = spool / "attempt_1"
    job.mkdir()
    (job / "arrays").write_text("../../keep 0\n../../../disk/keep 1\n.. 2\n\xff\n")
    (job / "job").write_text("../../keep")
    (spool / "by-job").mkdir()
    (spool / "by-job" / "7").write_text("../keep")

    async def check() -> None:
        site = LocalSlurmSite({}, 20.0, 4, spool)
        index = JobIndex(site, spool)
        # It needs no Slurm: nothing is submitted.
        submissions = SlurmSubmissions(
            cast("SlurmClient", None), site, index, spool, "python3"
        )
        assert await index.attempt_of("7") is None

        async def queue() -> list[Any]:
            return []

        assert await submissions.find("attempt_1", queue) is None
        await submissions.forget("attempt_1")

    asyncio.run(check())
    assert keep.is_dir()
    assert not job.exists()
    assert (spool / "by-job").is_dir()


@pytest.mark.parametrize("name", ["../../secret", "/etc/hostname", "link", "deep/x"])
def test_a_list_of_checkpoints_names_only_what_the_runner_copied(
    spool: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / "secret").write_bytes(b"the secret")
    copies = spool / "attempt_1" / "checkpoints"
    copies.mkdir(parents=True)
    (copies / "link").symlink_to(tmp_path / "secret")
    listed = (
        f'[{{"path": "x", "at": 1, "file": "{name}", "directory": false, "size": 1}}]'
    )
    (spool / "attempt_1" / "checkpoints.json").write_text(listed)
    (spool / "by-job").mkdir()
    (spool / "by-job" / "7").write_text("attempt_1")

    async def check() -> None:
        provider = SlurmProvider({"home": str(tmp_path / "home"), "spool": str(spool)})
        staging = provider._staging
        folder = provider._jobs.folder("attempt_1")
        for found in await staging.checkpoints(folder):
            assert found.beneath
            place = found.where.relative_to(found.beneath)
            staging._blobs.put_beneath(found.beneath, place)

    with pytest.raises(Exception, match=r"no name of a file|is or lies below a link"):
        asyncio.run(check())
    assert not list((tmp_path / "home").rglob("blobs/??/*"))
