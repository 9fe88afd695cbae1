"""Workspaces: folders that outlive the jobs that use them."""

import shutil
from pathlib import Path

from tests.support.instance import TestInstance, make_instance
from tests.support.s3 import Bucket
from tests.support.wait import wait_until


def test_what_one_job_leaves_the_next_one_finds(instance: TestInstance) -> None:
    assert (
        instance.ok("workspace")
        == "No workspaces. `gpuyard run --workspace NAME` makes one.\n"
    )
    instance.ok(
        "run",
        "--workspace",
        "corpus",
        "--",
        "sh",
        "-c",
        "echo words > $GPUYARD_WORKSPACE/text",
    )
    assert (
        instance.ok(
            "run",
            "--workspace",
            "corpus",
            "--",
            "sh",
            "-c",
            "cat $GPUYARD_WORKSPACE/text",
        )
        == "words\n"
    )
    other = ["--project", "other", "--workspace", "corpus"]
    assert instance.ok("run", *other, "--", "sh", "-c", "ls $GPUYARD_WORKSPACE") == ""
    assert (
        instance.ok("run", "--", "sh", "-c", "echo ${GPUYARD_WORKSPACE-none}")
        == "none\n"
    )
    first, second = instance.json("workspace")["items"]
    assert (first["project"], first["name"], first["files"], first["size"]) == (
        "default",
        "corpus",
        1,
        6,
    )
    assert first["path"] == str(instance.home.workspaces / "default" / "corpus")
    assert (second["project"], second["files"]) == ("other", 0)


def test_one_in_a_bucket_outlives_this_host_and_jobs_do_not_see_the_key(
    bucket: Bucket,
) -> None:
    with make_instance(GPUYARD_WORKSPACES__URL=bucket.url) as instance:
        code = "env | grep AWS_; echo words > $GPUYARD_WORKSPACE/text"
        words = ("run", "--workspace", "corpus", "--", "sh", "-c")
        assert instance.ok(*words, code) == ""
        name = "deep/er/default/corpus/text"
        wait_until(lambda: name in bucket.objects(), what="the file in the bucket")
        shutil.rmtree(instance.home.workspaces)
        (found,) = instance.json("workspace")["items"]
        assert (found["name"], found["size"]) == ("corpus", 6)
        assert instance.ok(*words, "cat $GPUYARD_WORKSPACE/text") == "words\n"


def test_its_name_never_leads_out_of_its_place(instance: TestInstance) -> None:
    name = "../../../../outside"
    shown = instance.ok(
        "run", "--workspace", name, "--", "sh", "-c", "echo $GPUYARD_WORKSPACE"
    ).strip()
    assert (
        Path(shown).resolve().parent == instance.home.workspaces.resolve() / "default"
    )
    assert instance.json("workspace")["items"][0]["name"] == name
