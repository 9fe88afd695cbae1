"""Datasets through the command: uploads that go on, versions that share chunks, and who
may use them. In a folder, and in a bucket of a real S3 server.
"""

import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gpuyard.client.connection import Address
from gpuyard.client.sync import Client
from gpuyard.domain.datasets import CHUNK_BYTES
from gpuyard.domain.errors import ForbiddenError, InvalidInputError, NotFoundError
from tests.support.instance import TestInstance, make_instance
from tests.support.refusal import refused
from tests.support.s3 import Bucket
from tests.support.tmpfs import small_disk
from tests.support.wait import wait_until


def make_files(folder: Path, chunks: int = 3) -> Path:
    """A folder with a file of so many chunks, and some small ones."""
    (folder / "sub").mkdir(parents=True)
    (folder / "big.bin").write_bytes(os.urandom(chunks * CHUNK_BYTES - 100))
    (folder / "sub/words.txt").write_text("some words\n")
    return folder


def chunks_sent(instance: TestInstance) -> list[str]:
    """The chunks that the server has taken, in order; each line of its log is one."""
    if not instance.home.audit_log.exists():
        return []
    lines = instance.home.audit_log.read_text().splitlines()
    acts = [json.loads(line) for line in lines if "/chunks/" in line]
    return [act["what"].rpartition("/")[2] for act in acts if act["outcome"] == "204"]


def test_versions_share_what_they_have_in_common(stored: TestInstance) -> None:
    folder = make_files(stored.work / "data")
    assert stored.ok("datasets", "list").startswith("No datasets.")
    added = stored.ok("datasets", "add", "corpus", "data")
    assert added == "default/corpus@1: 2 files, 25.2 MB\n"
    first = chunks_sent(stored)
    assert len(first) == 4
    assert "has not changed" in stored.ok("datasets", "add", "corpus", "data")
    assert chunks_sent(stored) == first

    (folder / "sub/words.txt").write_text("other words\n")
    (folder / "sub/more.txt").write_text("more\n")
    assert stored.json("datasets", "add", "corpus", "data")["versions"][0]["files"] == 3
    assert len(chunks_sent(stored)) <= 6, "only what is new"

    shown = stored.json("datasets", "show", "corpus@1")
    assert [file["path"] for file in shown["files"]] == ["big.bin", "sub/words.txt"]
    assert [one["number"] for one in shown["versions"]] == [2, 1]
    table = stored.ok("datasets", "versions", "corpus")
    assert [line.split()[0] for line in table.splitlines()] == ["VERSION", "2", "1"]

    stored.ok("datasets", "rm", "corpus@1")
    assert "has no version 1" in refused(stored, "datasets", "show", "corpus@1", code=3)
    (listed,) = stored.json("datasets", "list")["items"]
    assert [one["number"] for one in listed["versions"]] == [2]
    # A number is never used again, and what was removed is sent again.
    (folder / "sub/more.txt").unlink()
    (folder / "sub/words.txt").write_text("some words\n")
    again = stored.json("datasets", "add", "corpus", "data")
    assert again["versions"][0]["number"] == 3
    assert again["versions"][0]["digest"] == shown["version"]["digest"]
    stored.ok("datasets", "rm", "corpus")
    assert stored.json("datasets", "list") == {"items": [], "next": None}


def test_nothing_is_left_of_a_dataset_that_was_removed(
    bucket: Bucket, stored: TestInstance
) -> None:
    make_files(stored.work / "data", chunks=1)
    stored.ok("datasets", "add", "corpus", "data")
    stored.ok("datasets", "rm", "corpus")
    files = [path for path in stored.home.blobs.rglob("*") if path.is_file()]
    assert not files
    assert not bucket.objects()


def test_an_upload_that_is_killed_goes_on_where_it_was(stored: TestInstance) -> None:
    stored.ok("up")
    make_files(stored.work / "data", chunks=12)
    seed = int(os.environ.get("GPUYARD_UPLOAD_SEED") or random.randrange(1 << 32))
    sys.stderr.write(f"GPUYARD_UPLOAD_SEED={seed}\n")
    chance = random.Random(seed)
    taken_before: list[list[str]] = []
    for most in sorted(chance.sample(range(1, 10), 3)):
        taken_before.append(chunks_sent(stored))
        upload = stored.popen("datasets", "add", "corpus", "data")
        wait_until(
            lambda upload=upload, most=most: (
                upload.poll() is not None or len(chunks_sent(stored)) >= most
            ),
            what="some chunks",
        )
        upload.kill()
        upload.communicate()
    stored.ok("datasets", "add", "corpus", "data")
    finished = chunks_sent(stored)
    assert len(set(finished)) == 13
    # Only those that were on their way when it was killed may come twice.
    for taken in taken_before:
        twice = set(taken) & set(finished[len(taken) :])
        assert not twice, f"GPUYARD_UPLOAD_SEED={seed}"
    shown = stored.json("datasets", "show", "corpus")
    assert shown["version"]["size"] == 12 * CHUNK_BYTES - 100 + 11
    before = len(finished)
    stored.ok("datasets", "add", "corpus", "data")
    assert len(chunks_sent(stored)) == before


def test_a_full_disk_loses_nothing_that_was_sent(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "40m") as disk, make_instance() as instance:
        instance.home.create()
        instance.home.settings.write_text(f'[storage]\nurl = "{disk}"\n')
        make_files(instance.work / "data", chunks=6)
        told = refused(instance, "datasets", "add", "corpus", "data", code=4)
        assert "the disk is full" in told
        assert "goes on there" in told
        begun = chunks_sent(instance)
        assert begun
        assert instance.json("datasets", "list")["items"] == []
        grow = ["mount", "-o", "remount,size=100m", str(disk)]
        subprocess.run(grow, check=True)
        instance.ok("datasets", "add", "corpus", "data")
        sent = chunks_sent(instance)
        assert len(sent) == len(set(sent)) == 7


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["add", "../x", "data"], 2, "names no dataset"),
        (["add", "a b", "data"], 2, "is no name of a dataset"),
        (["add", "corpus@2", "data"], 2, "names a version"),
        (["add", "corpus", "nothing"], 2, "cannot be read"),
        (["add", "corpus", "links"], 2, "a link that leads out of the folder"),
        (["add", "corpus", "empty"], 2, "has no files"),
        (["add", "a/corpus", "data", "--project", "b"], 2, "is of another"),
        (["show", "corpus"], 3, "There is no dataset default/corpus."),
        (["versions", "other/corpus"], 3, "There is no dataset other/corpus."),
        (["rm", "corpus@1"], 3, "There is no dataset default/corpus."),
        (["share", "corpus", "other"], 3, "There is no dataset default/corpus."),
    ],
)
def test_bad_input_gets_one_error(
    shared: TestInstance, words: list[str], code: int, told: str
) -> None:
    assert told in refused(shared, "datasets", *words, code=code)


@pytest.fixture(scope="module")
def shared() -> Iterator[TestInstance]:
    with make_instance() as instance:
        (instance.work / "data").mkdir()
        (instance.work / "data/file").write_text("content")
        (instance.work / "links").mkdir()
        (instance.work / "links/passwd").symlink_to("/etc/passwd")
        (instance.work / "empty").mkdir()
        instance.ok("up")
        yield instance


# --- the datasets of jobs ---

CAT = ["sh", "-c", "cat $GPUYARD_DATASET_CORPUS/words"]


def words(instance: TestInstance, text: str) -> None:
    """Make `text` the newest version of corpus."""
    (instance.work / "words").write_text(text)
    instance.ok("datasets", "add", "corpus", "words")


def test_a_job_reads_the_version_of_its_submission(stored: TestInstance) -> None:
    words(stored, "first")
    waiting = stored.ok(
        "run", "--detach", "--hold", "--dataset", "corpus", "--", *CAT
    ).strip()
    words(stored, "second")
    assert stored.ok("run", "--dataset", "corpus", "--", *CAT) == "second"
    assert stored.ok("run", "--dataset", "default/corpus@1", "--", *CAT) == "first"
    stored.ok("release", waiting)
    assert stored.wait(waiting).state == "completed"
    assert stored.ok("logs", waiting).strip() == "first"
    # Both have one copy, which later jobs use, too.
    assert len(list((stored.home.node / "datasets").iterdir())) == 2


def test_a_job_whose_dataset_was_removed_says_so(instance: TestInstance) -> None:
    words(instance, "first")
    held = ("--detach", "--hold", "--dataset", "corpus")
    waiting = instance.ok("run", *held, "--", *CAT).strip()
    instance.ok("datasets", "rm", "corpus")
    instance.ok("release", waiting)
    job = instance.wait(waiting)
    assert (job.state, job.reason) == ("failed", "dataset_missing")
    told = refused(instance, "run", "--dataset", "corpus", "--", *CAT, code=125)
    assert "There is no dataset default/corpus" in told
    words(instance, "again")
    told = refused(instance, "run", "--dataset", "corpus@9", "--", *CAT, code=125)
    assert "has no version 9" in told
    two = ("--dataset", "corpus", "--dataset", "corpus@3")
    told = refused(instance, "run", *two, "--", *CAT, code=125)
    assert "GPUYARD_DATASET_CORPUS" in told


def test_a_copy_that_a_job_has_changed_is_made_again(instance: TestInstance) -> None:
    words(instance, "first")
    spoil = "cd $GPUYARD_DATASET_CORPUS; chmod u+w words; echo no > words"
    instance.ok("run", "--dataset", "corpus", "--", "sh", "-c", spoil)
    assert instance.ok("run", "--dataset", "corpus", "--", *CAT) == "first"


def test_who_does_not_see_a_dataset_cannot_read_it_in_a_job(
    instance: TestInstance,
) -> None:
    instance.ok("up")
    instance.ok("project", "add", "hush", "--private")
    (instance.work / "words").write_text("secret")
    instance.ok("datasets", "add", "hush/corpus", "words")
    stranger = user(instance, "stranger")
    for name in ("hush/corpus", "hush/corpus@1", "corpus"):
        with pytest.raises(InvalidInputError, match="There is no dataset"):
            stranger.run(CAT, datasets=[name])
    told = refused(instance, "run", "--dataset", "corpus", "--", *CAT, code=125)
    assert "Say which is meant: hush/corpus" in told
    hush = ("--project", "hush", "--dataset", "corpus")
    assert instance.ok("run", *hush, "--", *CAT) == "secret"


# --- who may use them ---


def user(instance: TestInstance, name: str, role: str = "member") -> Client:
    """The SDK as a new user."""
    added = instance.json("user", "add", name, "--role", role)
    return Client(Address(instance.address().url, str(added["token"])))


def test_a_private_project_shares_its_datasets_with_whom_it_likes(
    instance: TestInstance,
) -> None:
    (instance.work / "data").write_text("content")
    instance.ok("up")
    for project in ("hush", "friends"):
        instance.ok("project", "add", project, "--private")
    people = {
        name: user(instance, name) for name in ("worker", "friend", "stranger", "peer")
    }
    for project, name in (("hush", "worker"), ("hush", "peer"), ("friends", "friend")):
        instance.ok("project", "member", "add", project, name)
    worker = people["worker"]
    worker.add_dataset("corpus", instance.work / "data", project="hush")
    assert [one.owner for one in worker.datasets()] == ["worker"]
    for name in ("friend", "stranger"):
        assert people[name].datasets() == []
        with pytest.raises(NotFoundError, match="There is no dataset hush/corpus"):
            people[name].dataset("corpus", "hush")
        with pytest.raises(NotFoundError, match="no project 'hush'"):
            path = instance.work / "data"
            people[name].add_dataset("corpus", path, project="hush")
    with pytest.raises(NotFoundError, match="no project 'friends'"):
        worker.share_dataset("corpus", "friends", "hush")
    instance.ok("datasets", "share", "hush/corpus", "friends")

    friend = people["friend"]
    assert friend.dataset("corpus", "hush").versions[0].files == 1
    with pytest.raises(ForbiddenError, match="was submitted by worker"):
        friend.remove_dataset("corpus", project="hush")
    with pytest.raises(ForbiddenError, match="was submitted by worker"):
        people["peer"].remove_dataset("corpus", project="hush")
    with pytest.raises(NotFoundError, match="There is no dataset hush/corpus"):
        people["stranger"].dataset("corpus", "hush")
    assert worker.dataset("corpus", "hush").shared_with == [], "it does not see friends"

    instance.ok("datasets", "share", "hush/corpus", "friends", "--stop")
    with pytest.raises(NotFoundError):
        friend.dataset("corpus", "hush")
    worker.remove_dataset("corpus", project="hush")


def test_a_viewer_only_looks(instance: TestInstance) -> None:
    (instance.work / "data").write_text("content")
    instance.ok("up")
    instance.ok("datasets", "add", "corpus", "data")
    looker = user(instance, "looker", "viewer")
    assert looker.dataset("corpus").name == "corpus"
    tries: list[Any] = [
        lambda: looker.add_dataset("corpus", instance.work / "data"),
        lambda: looker.remove_dataset("corpus"),
        lambda: looker.share_dataset("corpus", "other"),
    ]
    for each in tries:
        with pytest.raises(ForbiddenError):
            each()


def test_a_data_set_of_a_catalogue_is_fetched_and_added(
    shared_instance: TestInstance, tmp_path: Path
) -> None:
    instance = shared_instance
    published = tmp_path / "published"
    published.mkdir()
    (published / "verse.txt").write_text("to be or not to be")
    with published_over_http(published) as url:
        own = tmp_path / "own.toml"
        own.write_text(f'[verse]\nurl = "{url}/verse.txt"\nlicense = "CC0"\n')
        done = instance.run("datasets", "add", "verse", "--catalogue", str(own))
    assert done.stdout == "default/verse@1: 1 file, 18 B\n"
    assert "verse: licence: CC0" in done.stderr
    assert "verse: first seen with the SHA-256" in done.stderr
    shown = instance.json("datasets", "show", "verse")
    assert [file["path"] for file in shown["files"]] == ["verse.txt"]
    told = refused(instance, "datasets", "add", "no-such-set", code=3)
    assert "The catalogue has no no-such-set" in told


@contextmanager
def published_over_http(folder: Path) -> Iterator[str]:
    """A server of the files of a folder; its address."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
