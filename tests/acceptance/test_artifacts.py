"""Artifacts through the command: kept at the end of a job, listed, fetched, shared by a
link and removed.
"""

import asyncio
import hashlib
from pathlib import Path
from urllib.request import urlopen

import httpx

from gpuyard.client.aio import AsyncClient
from tests.support.instance import TestInstance
from tests.support.refusal import refused
from tests.support.s3 import Bucket

WRITES = "mkdir -p out && echo weights > out/model.pt && echo log > out/log.txt"


def test_what_a_job_leaves_is_listed_fetched_and_removed(
    stored: TestInstance, blob_place: Bucket | None, tmp_path: Path
) -> None:
    instance = stored
    job = instance.submit(["sh", "-c", WRITES], artifacts=["out/*", "none"])
    info = instance.wait(job)
    # Beside it, that of the keys of the bucket which it does not get.
    assert "artifacts: none matches no file that it wrote" in info.warnings
    found = instance.json("artifacts", "list", job)["items"]
    assert [(each["path"], each["size"]) for each in found] == [
        ("out/log.txt", 4),
        ("out/model.pt", 8),
    ]
    assert found[1]["sha256"] == hashlib.sha256(b"weights\n").hexdigest()
    assert found[1]["sha256"][:12] in instance.ok("artifacts", "list", job)

    said = instance.ok("artifacts", "get", job, "out/model.pt", "-o", str(tmp_path))
    assert said == f"{tmp_path}/out/model.pt\n"
    assert (tmp_path / "out/model.pt").read_text() == "weights\n"
    spoil(instance, blob_place, found[0]["sha256"])
    told = refused(instance, "artifacts", "get", job, "-o", str(tmp_path), code=4)
    assert "out/log.txt has arrived damaged" in told
    assert not (tmp_path / "out/log.txt").exists()

    assert "1 artifact removed" in instance.ok("artifacts", "rm", job, "out/log.txt")
    told = refused(instance, "artifacts", "get", job, "out/log.txt", code=3)
    assert f"gpuyard artifacts list {job}" in told


def spoil(instance: TestInstance, bucket: Bucket | None, sha256: str) -> None:
    """Change the content of a blob in the folder of the instance, or in its bucket."""
    key = f"{sha256[:2]}/{sha256[2:]}"
    if bucket is None:
        (instance.home.blobs / key).write_text("LOG\n")
        return
    assert not (instance.home.blobs / key).exists()
    (name,) = [name for name in bucket.objects() if name.endswith(key)]
    bucket.s3.client.put_object(Bucket=bucket.name, Key=name, Body=b"LOG\n")


def test_only_a_job_that_asked_for_it_leaves_something_when_it_fails(
    shared_instance: TestInstance,
) -> None:
    program = ["sh", "-c", f"{WRITES}; exit 3"]
    plain = shared_instance.submit(program, artifacts=["out"])
    always = shared_instance.submit(program, artifacts=["out"], artifacts_always=True)
    stopped = shared_instance.submit(
        ["sh", "-c", f"{WRITES}; sleep 60"],
        artifacts=["out"],
        artifacts_always=True,
        timeout_s=1,
    )
    with shared_instance.client() as client:
        kept: dict[str, int] = {}
        for job in (plain, always, stopped):
            client.job(job).wait(60)
            kept[job] = len(client.job(job).artifacts())
    assert kept == {plain: 0, always: 2, stopped: 2}


def test_a_link_opens_one_file_until_it_expires_or_the_file_is_removed(
    shared_instance: TestInstance,
) -> None:
    instance = shared_instance
    job = instance.submit(["sh", "-c", WRITES], artifacts=["out"])
    instance.wait(job)
    url = instance.ok("artifacts", "share", job, "out/model.pt", "--for", "1h").strip()
    with urlopen(url) as answer:
        assert answer.read() == b"weights\n"
        assert "attachment" in answer.headers["Content-Disposition"]
    altered = httpx.get(url[:-1] + ("0" if url[-1] != "0" else "1"), timeout=60)
    assert altered.status_code == 403
    (living,) = instance.json("artifacts", "links", job, "out/model.pt")["items"]
    assert (living["url"], living["made_by"]) == (url, None)
    second = instance.json("artifacts", "share", job, "out/model.pt")
    instance.ok("artifacts", "end-link", job, "out/model.pt", second["id"])
    ended = httpx.get(second["url"], timeout=60)
    assert (ended.status_code, ended.json()) == (403, altered.json())
    assert httpx.get(url, timeout=60).status_code == 200
    # It is no token.
    found = instance.json("artifacts", "list", job)["items"]
    direct = f"{url.partition('/shared')[0]}/api/v1/artifacts/{found[0]['id']}/content"
    assert httpx.get(direct, timeout=60).status_code == 401
    instance.ok("artifacts", "rm", job, "out/model.pt")
    removed = httpx.get(url, timeout=60)
    assert (removed.status_code, removed.json()) == (403, altered.json())
    told = refused(
        instance, "artifacts", "share", job, "out/log.txt", "--for", "2y", code=2
    )
    assert "--for" in told


def test_the_asynchronous_client_gets_them_too(
    shared_instance: TestInstance, tmp_path: Path
) -> None:
    async def use() -> None:
        async with AsyncClient(shared_instance.address()) as client:
            job = await client.run(
                ["sh", "-c", WRITES],
                artifacts=["out"],
                workdir=str(shared_instance.work),
            )
            await job.wait()
            first, _ = await job.artifacts()
            saved = await client.download_artifact(first, tmp_path)
            assert saved.read_text() == "log\n"
            assert (await client.share_artifact(first, 60)).expires_at > 0
            assert len(await client.remove_artifacts(job.id)) == 2

    asyncio.run(use())
