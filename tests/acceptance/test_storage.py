"""Checkpoints in a bucket: kept, listed, downloaded and resumed from by way of the
command and HTTP.
"""

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.dockerd import IMAGE, Dockerd
from tests.support.instance import TestInstance, make_instance
from tests.support.postgres import PostgresServer
from tests.support.s3 import SECRET, Bucket
from tests.support.wait import wait_until
from tests.support.web import http

# Saves 300,000 bytes, or says where it goes on from; either way it then waits to be
# ended.
JOB = """
import hashlib, os, pathlib, time
found = os.environ.get("GPUYARD_RESUME_FROM")
if found:
    print("from", hashlib.sha256(pathlib.Path(found).read_bytes()).hexdigest(), flush=True)
    raise SystemExit
pathlib.Path("draft").write_bytes(os.urandom(300_000))
os.rename("draft", "ckpt_7.pt")
time.sleep(600)
"""


def configure(instance: TestInstance, url: str, more: str = "") -> None:
    instance.home.create()
    instance.home.settings.write_text(f'[storage]\nurl = "{url}"\n{more}')


@pytest.fixture
def stored(bucket: Bucket) -> Iterator[TestInstance]:
    """An instance whose checkpoints go into the bucket."""
    with make_instance(
        GPUYARD_SCHEDULER__RETRY_BASE_S="0.1", GPUYARD_SCHEDULER__RETRY_MAX_S="0.5"
    ) as instance:
        configure(instance, bucket.url)
        yield instance


def saved(
    instance: TestInstance, folder: Path | None = None
) -> tuple[str, dict, bytes]:
    """A job that has saved a checkpoint and runs; its id, the checkpoint, and its
    bytes, whose file is gone.
    """
    folder = folder or instance.work
    job = instance.submit(
        [sys.executable, "-c", JOB],
        checkpoint={"path": "ckpt_*.pt"},
        workdir=str(folder),
    )
    (checkpoint,) = wait_until(
        lambda: instance.json("checkpoints", job)["items"], what="a checkpoint"
    )
    file = folder / "ckpt_7.pt"
    content = file.read_bytes()
    file.unlink()
    return job, checkpoint, content


def name_of(content: bytes) -> str:
    digest = hashlib.sha256(content).hexdigest()
    return f"deep/er/{digest[:2]}/{digest[2:]}"


def went_on_from(instance: TestInstance, job: str, content: bytes) -> None:
    """The job's newest attempt found these very bytes."""
    assert instance.wait(job).state == "completed"
    assert f"from {hashlib.sha256(content).hexdigest()}" in instance.ok("logs", job)


def test_a_job_goes_on_from_the_bucket_after_a_cancel_and_a_crash(
    stored: TestInstance, bucket: Bucket
) -> None:
    job, _, content = saved(stored)
    assert bucket.objects() == [name_of(content)]
    assert bucket.content(name_of(content)) == content
    assert list(stored.home.blobs.iterdir()) == [], "none in the home"
    stored.kill("server", "agent")
    stored.ok("up")
    stored.ok("cancel", job)
    assert stored.wait(job).state == "cancelled"
    assert (
        stored.ok("checkpoints", job, "--download", "newest", "--output", "back.pt")
        .strip()
        .endswith("back.pt")
    )
    assert (stored.work / "back.pt").read_bytes() == content
    stored.ok("resume", job, "-d")
    went_on_from(stored, job, content)
    (finding,) = [
        item for item in stored.json("doctor")["items"] if item["what"] == "storage"
    ]
    assert (finding["ok"], finding["found"]) == (True, bucket.url)
    for log in stored.home.logs.iterdir():
        assert SECRET not in log.read_text()


def test_a_download_is_streamed_whole_or_in_part(
    stored: TestInstance, bucket: Bucket
) -> None:
    _, checkpoint, content = saved(stored)
    with http(stored) as web:
        path = f"/api/v1/checkpoints/{checkpoint['id']}/content"
        whole = web.get(path)
        assert whole.content == content
        assert whole.headers["content-length"] == "300000"
        assert whole.headers["etag"] == f'"{checkpoint["sha256"]}"'
        assert (
            whole.headers["content-disposition"] == 'attachment; filename="ckpt_7.pt"'
        )
        for asked, code, part in (
            ("100-199", 206, content[100:200]),
            ("-10", 206, content[-10:]),
            ("0-1,4-5", 200, content),
        ):
            answer = web.get(path, headers={"Range": f"bytes={asked}"})
            assert (answer.status_code, answer.content) == (code, part)
        assert (
            web.get(path, headers={"Range": "bytes=7-8"}).headers["content-range"]
            == "bytes 7-8/300000"
        )
        stale = {"Range": "bytes=0-1", "If-Range": '"other"'}
        assert web.get(path, headers=stale).content == content
        outside = web.get(path, headers={"Range": "bytes=300000-"})
        assert (outside.status_code, outside.headers["content-range"]) == (
            416,
            "bytes */300000",
        )
        with bucket.away():
            answer = web.get(path)
            assert (answer.status_code, answer.json()["code"]) == (502, "bucket_error")
        bucket.s3.client.delete_object(Bucket=bucket.name, Key=name_of(content))
        answer = web.get(path)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


def test_only_the_newest_are_kept_there(stored: TestInstance, bucket: Bucket) -> None:
    code = """
import os, pathlib, time
for step in range(8):
    pathlib.Path("draft").write_text(f"step {step}")
    os.rename("draft", f"ckpt_{step}.pt")
    time.sleep(0.05)
"""
    job = stored.submit([sys.executable, "-c", code], checkpoint={"path": "ckpt_*.pt"})
    assert stored.wait(job).state == "completed"
    kept = {name_of(f"step {step}".encode()) for step in range(3, 8)}
    wait_until(lambda: set(bucket.objects()) == kept, what="the oldest to be deleted")


def test_a_bucket_that_is_away_stops_nothing_and_costs_no_retry(
    stored: TestInstance, bucket: Bucket
) -> None:
    job, _, content = saved(stored)
    stored.ok("cancel", job)
    stored.wait(job)
    stored.ok("down")
    with bucket.away():
        stored.ok("up")
        log = stored.home.logs / "server.log"
        wait_until(
            lambda: "checkpoints cannot be kept" in log.read_text(),
            what="the warning at the start",
        )
        done = stored.run("doctor")
        assert done.returncode != 0
        assert f"There is no bucket for {bucket.url}" in done.stdout
        stored.ok("resume", job, "-d")
        wait_until(
            lambda: len(stored.json("show", job)["attempts"]) > 2, what="a second try"
        )
        stored.ok("run", "--", "true")
    went_on_from(stored, job, content)
    reasons = [attempt["reason"] for attempt in stored.json("show", job)["attempts"]]
    assert reasons[0] == "cancelled"
    assert set(reasons[1:-1]) == {"storage_unreachable"}
    assert "storage_unreachable" in stored.ok("show", job)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (
            'url = "s4://x"',
            (
                "storage: 's4://x' is no place for blobs (an absolute path, or a bucket"
                " such as s3://"
            ),
        ),
        ('url = "blobs"', "storage: 'blobs' is no place for blobs"),
        ('url = ["x"]', "storage.url: "),
        (
            f'url = "s3://x"\noptions = {{ secret_access_key = "{SECRET}" }}',
            "is a secret (set AWS_ACCESS_KEY_ID and",
        ),
        (f'url = "s3://me:{SECRET}@x/y"', "the URL of s3://x/y holds a secret"),
        (
            f'url = "ftp://me:{SECRET}@x/y"',
            "storage: 'ftp://x/y' is no place for blobs",
        ),
        (
            'url = "s3://x"\noptions = { regoin = "x" }',
            "storage: 's3://x' cannot be used",
        ),
        ('url = "s3://x"\noptions = { region = 7 }', "storage.options.region: "),
        ('address = "s3://x"', "storage.address: is not a field"),
    ],
)
def test_wrong_settings_are_named_at_the_start(setting: str, said: str) -> None:
    with make_instance() as instance:
        instance.home.create()
        instance.home.settings.write_text(f"[storage]\n{setting}\n")
        done = instance.run("up")
        assert done.returncode != 0
        assert said in done.stderr
        assert "Traceback" not in done.stderr
        assert (
            SECRET
            not in done.stderr
            + done.stdout
            + (instance.home.logs / "server.log").read_text()
        )


def test_a_folder_elsewhere(tmp_path: Path) -> None:
    with make_instance() as instance:
        configure(instance, f"file://{tmp_path}/kept")
        _, checkpoint, content = saved(instance)
        path = tmp_path / "kept" / checkpoint["sha256"][:2] / checkpoint["sha256"][2:]
        assert path.read_bytes() == content
        instance.ok(
            "checkpoints",
            checkpoint["job_id"],
            "--download",
            "newest",
            "--output",
            "back.pt",
        )
        assert (instance.work / "back.pt").read_bytes() == content


def test_servers_on_one_postgresql_share_it(
    bucket: Bucket, postgres: PostgresServer
) -> None:
    """Saved by the node of one server, and fetched by that of another when the first is
    gone for good.
    """
    shared = {
        "GPUYARD_LEDGER__URL": postgres.ledger(),
        "GPUYARD_STORAGE__URL": bucket.url,
    }
    with make_instance(**shared) as second:
        with make_instance(**shared) as first:
            first.ok("up")
            job, checkpoint, content = saved(first, second.work)
            second.ok("up")
            for instance in (first, second):
                assert [
                    item["id"] for item in instance.json("checkpoints", job)["items"]
                ] == [checkpoint["id"]]
                instance.ok(
                    "checkpoints", job, "--download", "newest", "--output", "back.pt"
                )
                assert (instance.work / "back.pt").read_bytes() == content
            wait_until(
                lambda: len(second.json("nodes")["items"]) == 2, what="both nodes"
            )
            first.ok("cancel", job)
            assert first.wait(job).state == "cancelled"
        second.ok("resume", job, "-d")
        went_on_from(second, job, content)
        assert (
            second.json("show", job)["attempts"][1]["resumed_from"] == checkpoint["id"]
        )


def test_a_container_goes_on_from_the_bucket(bucket: Bucket, dockerd: Dockerd) -> None:
    code = """
        if [ -n "$GPUYARD_RESUME_FROM" ]; then echo from $(cat $GPUYARD_RESUME_FROM); env | grep AWS_; exit 0; fi
        echo 40 > new; mv new step-40.txt; sleep 600
        """
    with make_instance() as instance:
        configure(
            instance,
            bucket.url,
            f'[providers.docker]\nhost = "{dockerd.host}"\npoll_s = 0.2\n',
        )
        body = {
            "name": "boxed",
            "command": ["sh", "-c", code],
            "image": IMAGE,
            "workdir": str(instance.work),
            "checkpoint": {"path": "step-*.txt"},
        }
        (instance.work / "spec.json").write_text(json.dumps(body))
        job = instance.ok("submit", "spec.json").split()[-1]
        wait_until(
            lambda: instance.json("checkpoints", job)["items"], what="a checkpoint"
        )
        assert bucket.objects() == [name_of(b"40\n")]
        instance.ok("cancel", job)
        instance.wait(job)
        with bucket.away():
            instance.ok("resume", job, "-d")
            wait_until(
                lambda: "storage_unreachable" in instance.ok("show", job),
                what="an attempt without its checkpoint",
            )
        assert instance.wait(job).state == "completed"
        assert instance.ok("logs", job) == "from 40\n"
