"""A bucket's own troubles: cut connections, killed uploads, wrong settings; and URLs
for those without credentials.
"""

import hashlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import httpx
import pytest
from obstore import sign
from obstore.store import S3Store

from gpuyard.domain.errors import GpuyardError, InvalidInputError
from gpuyard.storage import unfinished_uploads
from gpuyard.storage.blobs import open_blobs
from gpuyard.storage.bucket import BucketError, BucketStore
from tests.support.programs import run_program
from tests.support.proxy import Proxy, proxied
from tests.support.s3 import SECRET, Bucket
from tests.support.wait import wait_until

PARTS = os.urandom(30_000_000)  # four parts of an upload
DIGEST = hashlib.sha256(PARTS).hexdigest()
NAME = f"deep/er/{DIGEST[:2]}/{DIGEST[2:]}"
# Stores BYTES bytes and prints its size in memory before and the largest after, both in
# KB.
CHILD = r"""
import io, re, sys
from gpuyard.storage.blobs import open_blobs
class Zeros(io.RawIOBase):
    left = int(sys.argv[2])
    def read(self, size=-1):
        size = min(size, self.left)
        self.left -= size
        return bytes(size)
peak = lambda: int(re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1])
blobs = open_blobs(sys.argv[1], {})
blobs.has("0" * 64)
before = peak()
print(blobs.put(Zeros()).size, before, peak())
"""


@pytest.fixture
def proxy(bucket: Bucket, monkeypatch: pytest.MonkeyPatch):
    with proxied("127.0.0.1", bucket.s3.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
        yield proxy


def test_an_upload_that_is_cut_goes_on(bucket: Bucket, proxy: Proxy):
    proxy.cut_at(b"PARTNUMBER=3", delivered=False)
    open_blobs(bucket.url, {}).put(io.BytesIO(PARTS))
    assert proxy.cuts == 1
    assert bucket.objects() == [NAME]
    assert bucket.unfinished() == []


@pytest.mark.parametrize("word", [b"?UPLOADS", b"PARTNUMBER=1", b"PARTNUMBER=3"])
def test_an_upload_that_breaks_off_leaves_nothing_under_the_name(
    bucket: Bucket, proxy: Proxy, word: bytes
):
    blobs = BucketStore(bucket.url, retries=0)
    proxy.cut_at(word, delivered=False)
    with pytest.raises(
        BucketError,
        match=(
            r"does not answer as it should .* Check AWS_ENDPOINT_URL and AWS_REGION\."
        ),
    ):
        blobs.put(io.BytesIO(PARTS))
    assert proxy.cuts == 1
    assert not blobs.has(DIGEST)
    assert bucket.objects() == []
    blobs.put(io.BytesIO(PARTS))
    assert bucket.objects() == [NAME]


def test_a_lost_answer_to_the_last_request_does_no_harm(bucket: Bucket, proxy: Proxy):
    blobs = open_blobs(bucket.url, {})
    proxy.cut_at(b"<COMPLETEMULTIPARTUPLOAD", delivered=True)
    blobs.put(io.BytesIO(PARTS))
    assert proxy.cuts == 1
    assert bucket.objects() == [NAME]


def test_a_download_that_is_cut_is_whole_or_an_oserror(
    bucket: Bucket, proxy: Proxy, tmp_path: Path
):
    blobs = open_blobs(bucket.url, {})
    blobs.put(io.BytesIO(PARTS))
    with blobs.open(DIGEST) as file:
        start = file.read(1_000_000)
        proxy.cut()
        try:
            assert start + file.read() == PARTS
        except OSError as error:
            assert isinstance(error, BucketError)
    blobs.restore(DIGEST, tmp_path / "back", directory=False)
    assert (tmp_path / "back").read_bytes() == PARTS


def test_old_uploads_that_nobody_ended_are_aborted_and_others_stay(bucket: Bucket):
    begin = bucket.s3.client.create_multipart_upload
    foreign = "deep/er/somebody/elses"
    for key in (NAME, f"other/{NAME}", foreign):
        begin(Bucket=bucket.name, Key=key)
    blobs = open_blobs(bucket.url, {})
    # To moto, all were begun in November 2010.
    begun = datetime(2010, 11, 10, tzinfo=UTC).timestamp()
    if bucket.s3.folder:
        begun = time.time()
    assert blobs.abort_unfinished(begun - 86_400) == 0
    assert len(bucket.unfinished()) == 3
    assert blobs.abort_unfinished(begun + 86_400) == 1
    assert sorted(bucket.unfinished()) == [foreign, f"other/{NAME}"]


def test_without_a_key_in_the_environment_no_upload_is_aborted(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
):
    blobs = open_blobs(bucket.url, {})
    bucket.s3.client.create_multipart_upload(Bucket=bucket.name, Key=NAME)
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert blobs.abort_unfinished(time.time() + 3600) == 0
    assert bucket.unfinished() == [NAME]


def test_requests_are_signed_as_the_library_signs_them(bucket: Bucket):
    """moto looks at no signature."""
    key = "a b/ü+~.pt"
    store = S3Store.from_url(bucket.url, client_options={"allow_http": True})
    for _ in range(100):  # until both are of one second
        access = unfinished_uploads._Access.of(store)
        assert access
        theirs = sign(store, "DELETE", key, timedelta(minutes=1))
        if access.signature["X-Amz-Date"] in theirs:
            break
    ours = access.url("DELETE", f"deep/er/{key}", {})
    assert unquote(urlsplit(ours).path) == unquote(urlsplit(theirs).path)
    signatures = [parse_qs(urlsplit(url).query) for url in (ours, theirs)]
    assert signatures[0] == signatures[1]


def test_killed_in_the_middle_and_again(bucket: Bucket, tmp_path: Path):
    assert bucket.unfinished() == []
    command = [sys.executable, "-c", CHILD, bucket.url, "200000000"]
    child = subprocess.Popen(command, env={**os.environ, "TMPDIR": str(tmp_path)})
    wait_until(
        lambda: bucket.unfinished() or child.poll() is not None, what="an upload"
    )
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert bucket.objects() == []
    assert list(tmp_path.iterdir()) == []
    done = run_program(command, env={**os.environ, "TMPDIR": str(tmp_path)})
    size, before, after = map(int, done.stdout.split())
    assert size == 200_000_000
    assert len(bucket.objects()) == 1
    assert after - before < 100_000, "KB: most of it was in memory"


def test_what_is_there_is_not_sent_again(bucket: Bucket, proxy: Proxy):
    blobs = open_blobs(bucket.url, {})
    blobs.put(io.BytesIO(PARTS))
    proxy.cut_at(b"UPLOADS", delivered=False)
    blobs.put(io.BytesIO(PARTS))
    assert proxy.armed


def calls(blobs: BucketStore):
    yield lambda: blobs.has(DIGEST)
    yield lambda: blobs.open(DIGEST)
    yield lambda: blobs.put(io.BytesIO(b"x"))
    yield lambda: blobs.put(io.BytesIO(PARTS))
    yield lambda: blobs.delete(DIGEST)


def refusals(blobs: BucketStore) -> set[str]:
    """What each call says, which has to be a BucketError without secrets."""
    said = set()
    for call in calls(blobs):
        with pytest.raises(BucketError) as caught:
            call()
        assert isinstance(caught.value, OSError)
        assert isinstance(caught.value, GpuyardError)
        assert not isinstance(caught.value, FileNotFoundError)
        assert caught.value.__cause__ is None
        said.add(str(caught.value))
    assert not any(SECRET in text or "\n" in text for text in said)
    return said


def test_when_it_was_stored_last_counts_the_times_when_nothing_was_sent(
    bucket: Bucket,
):
    store = BucketStore(bucket.url)
    blob = store.put(io.BytesIO(b"weights"))
    first = store.stored_at(blob.sha256)
    assert first is not None
    (name,) = bucket.objects()
    store.put(io.BytesIO(b"weights"))
    assert bucket.objects() == [name, f"{name}.again"]
    again = store.stored_at(blob.sha256)
    assert again is not None
    assert again >= first
    store.delete(blob.sha256)
    assert bucket.objects() == []
    assert store.stored_at(blob.sha256) is None


def test_no_such_bucket(bucket: Bucket):
    assert refusals(BucketStore("s3://nobodys-bucket/deep")) == {
        "There is no bucket for s3://nobodys-bucket/deep (404 Not Found, NoSuchBucket)."
        " Create it, or check its URL and AWS_ENDPOINT_URL and AWS_REGION."
    }


def test_a_bucket_that_goes_is_not_a_missing_blob(bucket: Bucket):
    blobs = BucketStore(bucket.url)
    assert not blobs.has(DIGEST)
    bucket.s3.client.delete_bucket(Bucket=bucket.name)
    with pytest.raises(BucketError, match="There is no bucket"):
        blobs.put(io.BytesIO(b"x"))
    with pytest.raises(BucketError, match="There is no bucket"):
        blobs.open(DIGEST)


def test_wrong_credentials(bucket: Bucket, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with enforced(bucket):
        said = refusals(BucketStore(bucket.url))
    for text in said:
        assert text.startswith(f"{bucket.url} refuses the credentials (403 Forbidden")
        assert text.endswith(
            "Check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and that they may list,"
            " read, write and delete there."
        )


def test_no_credentials(bucket: Bucket, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert refusals(BucketStore(bucket.url, retries=0)) == {
        f"There are no credentials for {bucket.url}. Set AWS_ACCESS_KEY_ID and"
        " AWS_SECRET_ACCESS_KEY."
    }


@pytest.mark.parametrize(
    ("endpoint", "why"),
    [
        ("http://127.0.0.1:9", "Connection refused"),
        ("http://nowhere.invalid", "failed to lookup address information"),
    ],
)
def test_an_endpoint_that_is_not_there(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, endpoint: str, why: str
):
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    for text in refusals(BucketStore(bucket.url, retries=1)):
        assert text.startswith(f"{bucket.url} does not answer as it should ({why}")
        assert text.endswith("Check AWS_ENDPOINT_URL and AWS_REGION.")


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [
        (
            "s3://bucket/x",
            {"secret_access_key": SECRET},
            "the option 'secret_access_key' is a secret",
        ),
        (
            "s3://bucket/x",
            {"AWS_SESSION_TOKEN": SECRET},
            "the option 'AWS_SESSION_TOKEN' is a secret",
        ),
        ("s3://bucket/x", {"nonsense": "1"}, "'nonsense' is not valid"),
        (
            "s3://bucket/x",
            {"virtual_hosted_style_request": "maybe"},
            'failed to parse "maybe" as boolean',
        ),
        (
            f"s3://x:{SECRET}@bucket/deep",
            {},
            "the URL of s3://bucket/deep holds a secret",
        ),
        (
            "s3://bucket/x",
            {"timeout": "long"},
            'failed to parse "long" as Duration',
        ),
        (
            "s3://bucket/x",
            {"proxy_url": f"http://x:{SECRET}@proxy:3128"},
            "the option 'proxy_url' holds a password",
        ),
        ("s3:///deep", {}, "cannot be used"),
        ("s3://[x", {}, "cannot be used"),
    ],
)
def test_options_that_cannot_be(
    bucket: Bucket, url: str, options: dict[str, str], said: str
):
    with pytest.raises(InvalidInputError, match=f"^storage: .*{said}") as caught:
        open_blobs(url, options)
    assert SECRET not in str(caught.value)


def test_an_option_beats_the_environment(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    place = {"endpoint": bucket.s3.endpoint, "region": "us-east-1"}
    connection = {"allow_http": "true", "AWS_CONNECT_TIMEOUT": "60s"}
    blobs = open_blobs(bucket.url, {**place, **connection})
    assert not blobs.has(DIGEST)


def test_what_leads_to_it_begins_so(bucket: Bucket):
    """What the variables are called that no job is to inherit."""
    assert BucketStore(bucket.url).variables == ("AWS_",)
    assert BucketStore(
        "gs://bucket/deep", {"google_skip_signature": "true"}
    ).variables == ("GOOGLE_",)
    assert BucketStore(
        "az://bucket/deep", {"azure_storage_account_name": "x"}
    ).variables == ("AZURE_",)


def test_a_check_says_what_is_wrong_and_leaves_nothing(bucket: Bucket):
    blobs = BucketStore(bucket.url)
    blobs.check()
    assert bucket.objects() == []
    with bucket.away(), pytest.raises(BucketError, match="There is no bucket"):
        blobs.check()


def policy() -> dict:
    """The rights that the guide tells people to give, for the bucket of the guide."""
    guide = Path(__file__).parents[3] / "docs/guides/storage.md"
    (text,) = re.findall(r"```json\n(.*?)```", guide.read_text(), re.DOTALL)
    return json.loads(text)


@pytest.mark.parametrize(
    "lacking",
    [None, "s3:ListBucket", "s3:GetObject", "s3:PutObject", "s3:DeleteObject"],
)
def test_the_rights_in_the_guide_are_enough_and_none_too_many(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, lacking: str | None
):
    rights = policy()
    rights["Statement"] = [
        {**one, "Action": actions}
        for one in rights["Statement"]
        if (actions := [action for action in one["Action"] if action != lacking])
    ]
    text = (
        json.dumps(rights)
        .replace("example-models", bucket.name)
        .replace("gpuyard/*", "deep/er/*")
    )
    name = f"user-{bucket.name}"
    iam = bucket.s3.service("iam")
    iam.create_user(UserName=name)
    iam.put_user_policy(UserName=name, PolicyName="gpuyard", PolicyDocument=text)
    key = iam.create_access_key(UserName=name)["AccessKey"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
    blobs = BucketStore(bucket.url)
    with enforced(bucket):
        if lacking:
            with pytest.raises(BucketError):
                check_all(blobs)
        else:
            check_all(blobs)


def check_all(blobs: BucketStore) -> None:
    """Everything that is ever done with a store."""
    assert not blobs.has(DIGEST)
    blobs.put(io.BytesIO(PARTS))
    with blobs.open(DIGEST, (1, 3)) as file:
        assert file.read() == PARTS[1:3]
    blobs.delete(DIGEST)


@contextmanager
def enforced(bucket: Bucket) -> Iterator[None]:
    """The server looks at signatures and rights: moto's does not by itself."""
    if bucket.s3.folder:
        yield
        return
    httpx.post(
        f"{bucket.s3.endpoint}/moto-api/reset-auth", content=b"0"
    ).raise_for_status()
    try:
        yield
    finally:
        httpx.post(
            f"{bucket.s3.endpoint}/moto-api/reset-auth", content=b"inf"
        ).raise_for_status()


def test_a_bucket_of_its_own_has_no_prefix(bucket: Bucket):
    BucketStore(f"s3://{bucket.name}").put(io.BytesIO(PARTS))
    assert bucket.objects() == [NAME.removeprefix("deep/er/")]


def test_temporary_files_lie_where_they_are_told_to(bucket: Bucket, tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="scratch"):
        open_blobs(bucket.url, {}, scratch=tmp_path / "scratch").put(io.BytesIO(b"x"))
