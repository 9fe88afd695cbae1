"""An S3 server, with a bucket of its own for each test that asks: moto's, or the one
that GPUYARD_S3 names. `nanio` keeps objects on the disk and checks each signature.
"""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.environments import make_python
from tests.support.ports import free_port
from tests.support.wait import wait_until

KEY = "AKIAIOSFODNN7EXAMPLE"
SECRET = "wJalrXUtnFEMI-this-is-nobodys-key"


@dataclass(frozen=True)
class S3:
    """Where it listens, and a client of another make to look at what we did. `folder`:
    where it keeps its buckets, if it is not moto's.
    """

    port: int
    client: Any
    folder: Path | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def needs_moto(self, otherwise: str) -> None:
        """Skip the test on another server, which is like that."""
        if self.folder:
            pytest.skip(f"nanio {otherwise}")

    def service(self, name: str) -> Any:
        """A client of another service of moto's server."""
        self.needs_moto("knows S3 only")
        return _client(self.port, name)


@dataclass(frozen=True)
class Bucket:
    """A bucket that a test has to itself."""

    s3: S3
    name: str

    @property
    def url(self) -> str:
        return f"s3://{self.name}/deep/er"

    @property
    def environment(self) -> dict[str, str]:
        """What leads to it, and to nothing real."""
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_ENDPOINT_URL": self.s3.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_METADATA_ENDPOINT": "http://127.0.0.1:9",
        }

    def objects(self) -> list[str]:
        """The names of all objects."""
        return [
            item["Key"]
            for item in self.s3.client.list_objects_v2(Bucket=self.name).get(
                "Contents", []
            )
        ]

    def content(self, name: str) -> bytes:
        """What an object holds."""
        return self.s3.client.get_object(Bucket=self.name, Key=name)["Body"].read()

    @contextmanager
    def away(self) -> Iterator[None]:
        """For a while the bucket is not there; then it is again, with all that was in
        it.
        """
        if self.s3.folder:
            hidden = self.s3.folder.parent / self.name
            (self.s3.folder / self.name).rename(hidden)
            yield
            hidden.rename(self.s3.folder / self.name)
            return
        away = f"{self.s3.endpoint}/away/{self.name}"
        httpx.put(away).raise_for_status()
        yield
        httpx.delete(away).raise_for_status()

    def unfinished(self) -> list[str]:
        """The names under which an upload was begun and not ended."""
        return [
            item["Key"]
            for item in self.s3.client.list_multipart_uploads(Bucket=self.name).get(
                "Uploads", []
            )
        ]


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    port = free_port()
    root = tmp_path_factory.mktemp("s3")
    module = [sys.executable, "-m", "tests.support.s3_server"]
    server = [*module, "-H", "127.0.0.1", "-p", str(port)]
    folder = None
    if os.environ.get("GPUYARD_S3") == "nanio":
        folder = root / "buckets"
        folder.mkdir()
        server = [str(make_python("nanio", ["nanio==0.1.7"])), "-m", "nanio", "serve"]
        server += ["--host", "127.0.0.1", "--port", str(port)]
        server += ["--data-dir", str(folder), "--no-access-log"]
    keys = {"NANIO_ACCESS_KEY": KEY, "NANIO_SECRET_KEY": SECRET}
    with (root / "log").open("wb") as log:
        process = subprocess.Popen(
            server,
            cwd=Path(__file__).parents[2],
            env=os.environ | keys,
            stdout=log,
            stderr=log,
        )
    try:
        wait_until(
            lambda: process.poll() is not None or _listens(port), what="the S3 server"
        )
        yield S3(port, _client(port), folder)
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def bucket(s3: S3, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """An empty bucket, and an environment that leads to it."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    made = Bucket(s3, f"test-{uuid.uuid4()}")
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    s3.client.create_bucket(Bucket=made.name)
    return made


def _client(port: int, service: str = "s3") -> Any:
    import boto3  # it takes a while to import, and most tests need none

    return boto3.client(
        service,
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name="us-east-1",
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
    )


def _listens(port: int) -> bool:
    try:
        httpx.get(f"http://127.0.0.1:{port}/", timeout=1)
    except httpx.HTTPError:
        return False
    return True
