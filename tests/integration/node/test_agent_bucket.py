"""An agent whose checkpoints are in a bucket: kept there, fetched from there, and tried
again while it is away.
"""

import hashlib
import socket
from collections.abc import Iterator
from dataclasses import replace

import psutil
import pytest

from gpuyard.domain.artifacts import ArtifactOrder, ArtifactsSaved
from gpuyard.domain.attempt_order import order_from_config
from gpuyard.domain.jobconfig import GpuSpec
from gpuyard.domain.jobspec import CheckpointSpec
from tests.support.node import Node, make_node, wait_for
from tests.support.s3 import SECRET, Bucket

SAVES = """
import os, pathlib, time
pathlib.Path("draft").write_bytes(b"weights")
os.rename("draft", "a.pt")
while not pathlib.Path("go").exists():
    time.sleep(0.01)
"""
RESUMES = (
    "import os, pathlib;"
    " print(pathlib.Path(os.environ['GPUYARD_RESUME_FROM']).read_text(), end='')"
)
WEIGHTS = hashlib.sha256(b"weights").hexdigest()
NAME = f"deep/er/{WEIGHTS[:2]}/{WEIGHTS[2:]}"


@pytest.fixture
def node(bucket: Bucket) -> Iterator[Node]:
    with make_node({"GPUYARD_STORAGE__URL": bucket.url}) as made:
        yield made


def save(node: Node) -> str:
    """A job that saves a checkpoint and waits for `go`."""
    return node.start(SAVES, checkpoint=CheckpointSpec(path="*.pt"))


def resume(node: Node, sha256: str = WEIGHTS) -> str:
    return node.start(RESUMES, resume_sha256=sha256, resume_name="a.pt")


def test_it_is_kept_there_and_fetched_from_there(node: Node, bucket: Bucket):
    job = save(node)
    saved = node.checkpoint(job, "a.pt")
    assert (saved.sha256, saved.size) == (WEIGHTS, 7)
    assert bucket.objects() == [NAME]
    assert bucket.content(NAME) == b"weights"
    assert not any(node.home.blobs.iterdir()), "nothing is left in the home"
    (node.work / "go").touch()
    assert node.ended(job).exit_code == 0
    again = resume(node)
    assert node.ended(again).exit_code == 0
    assert node.output(again) == "weights"


def test_the_agents_key_is_not_its_jobs(node: Node):
    code = (
        "import os; print({name: value for name, value in os.environ.items() if"
        " name.startswith('AWS_')})"
    )
    bare = node.start(code)
    given = node.start(code, environment={"AWS_REGION": "mars"})
    for job, said in ((bare, "{}\n"), (given, "{'AWS_REGION': 'mars'}\n")):
        assert node.ended(job).exit_code == 0
        assert node.output(job) == said
    assert SECRET not in (node.home.logs / "node.log").read_text()


def test_while_the_bucket_is_away_a_job_runs_on_and_its_checkpoint_is_kept_later(
    node: Node, bucket: Bucket
):
    with bucket.away():
        job = save(node)
        wait_for(
            lambda: (
                "a checkpoint could not be kept"
                in (node.home.logs / "node.log").read_text()
            ),
            "the warning",
        )
        assert not node.checkpoints(job)
    assert node.checkpoint(job, "a.pt").sha256 == WEIGHTS
    assert bucket.objects() == [NAME]
    (node.work / "go").touch()
    assert node.ended(job).exit_code == 0


def test_who_ends_a_job_does_not_wait_until_its_artifacts_are_saved(
    node: Node, bucket: Bucket
):
    code = "import pathlib; pathlib.Path('left.txt').write_text('left')"
    order = order_from_config(node.config(code))
    order = replace(order, artifacts=ArtifactOrder(["*.txt"]))
    job = order.attempt_id
    node.attempts.append(job)
    with bucket.away():
        node.loop.run(node.provider.submit_attempt(order))
        wait_for(
            lambda: (
                "an artifact cannot be saved"
                in (node.home.logs / "node.log").read_text()
            ),
            "the warning",
        )
        node.stop(job)
        assert node.ended(job).exit_code == 0
    (told,) = node.sink.of(ArtifactsSaved, job)
    assert "left.txt could not be saved" in told.problems[0]


def test_a_bucket_that_hangs_holds_up_nobody_else(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
):
    """More jobs save at once than the event loop has threads, and none of them gets an
    answer.
    """
    with socket.create_server(("127.0.0.1", 0)) as mute:
        monkeypatch.setenv(
            "AWS_ENDPOINT_URL", f"http://127.0.0.1:{mute.getsockname()[1]}"
        )
        with make_node({"GPUYARD_STORAGE__URL": bucket.url}) as node:
            for number in range(8):
                (node.work / str(number)).mkdir()
                options = {
                    "workdir": str(node.work / str(number)),
                    "checkpoint": CheckpointSpec(path="*.pt"),
                }
                node.started(node.start(SAVES, **options))
            wait_for(lambda: connections(mute) >= 8, "all of them to ask the bucket")
            other = node.start(
                "print('here')", gpu_spec=GpuSpec(gpu_count=0, vcpus=1.0)
            )
            assert node.ended(other).exit_code == 0


def connections(listener: socket.socket) -> int:
    """How many have been made to it, accepted or not."""
    port = listener.getsockname()[1]
    return sum(
        item.status == "ESTABLISHED" and item.raddr.port == port
        for item in psutil.net_connections("tcp")
        if item.raddr
    )


def test_what_cannot_be_fetched_now_is_told_from_what_is_gone(
    node: Node, bucket: Bucket
):
    job = save(node)
    node.checkpoint(job, "a.pt")
    (node.work / "go").touch()
    node.ended(job)
    with bucket.away():
        away = node.ended(resume(node))
    assert (away.reason, away.exit_code) == ("storage_unreachable", None)
    assert "There is no bucket for" in away.message
    gone = node.ended(resume(node, "0" * 64))
    assert (gone.reason, gone.exit_code) == ("bad_resume", None)
    assert f"there is no blob {'0' * 64} in {bucket.url}" in gone.message
    bucket.s3.client.put_object(Bucket=bucket.name, Key=NAME, Body=b"damaged")
    damaged = node.ended(resume(node))
    assert (damaged.reason, "is damaged" in damaged.message) == ("bad_resume", True)
