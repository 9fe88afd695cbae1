"""Workspaces in a bucket, and what two hosts with copies of them see."""

import os
import time
from pathlib import Path

import pytest

from gpuyard.storage.store import BucketError
from gpuyard.storage.workspace_bucket import WorkspaceBucket
from tests.support.s3 import Bucket

KEY = "default/corpus"


class Host:
    """A host with copies of the workspaces."""

    def __init__(self, bucket: Bucket, root: Path) -> None:
        self.remote = WorkspaceBucket(bucket.url, {}, root)
        self.root = root
        self.folder = root / KEY

    def write(self, **contents: str) -> None:
        for name, content in contents.items():
            path = self.folder / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
            # Later than what the bucket has: its times are whole seconds.
            later = time.time() + 5
            os.utime(path, (later, later))

    def push(self) -> None:
        self.remote.push(KEY)

    def pull(self) -> dict[str, str]:
        """What the copy holds then."""
        self.remote.pull(KEY)
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        return {
            path.relative_to(self.folder).as_posix(): path.read_text() for path in files
        }


@pytest.fixture
def hosts(bucket: Bucket, tmp_path: Path) -> tuple[Host, Host]:
    return Host(bucket, tmp_path / "a"), Host(bucket, tmp_path / "b")


def sent(bucket: Bucket) -> list[str]:
    prefix = f"deep/er/{KEY}/"
    return sorted(name.removeprefix(prefix) for name in bucket.objects())


def test_what_one_host_leaves_another_finds(
    bucket: Bucket, hosts: tuple[Host, Host]
) -> None:
    one, other = hosts
    assert one.pull() == {}
    one.write(play="to be", deep__er__act="or not", **{"odd % #?": "names"})
    one.push()
    assert sent(bucket) == ["deep/er/act", "odd % #?", "play"]
    assert other.pull() == one.pull() != {}
    (found,) = other.remote.listing()
    assert (found.project, found.name, found.files) == ("default", "corpus", 3)
    assert found.size == len("to beor notnames")
    other.write(play="to be again", new="more")
    (other.folder / "deep/er/act").unlink()
    other.push()
    assert one.pull() == {"play": "to be again", "new": "more", "odd % #?": "names"}


def test_the_newer_of_two_changes_stays(hosts: tuple[Host, Host]) -> None:
    one, other = hosts
    one.write(play="first")
    one.push()
    other.pull()
    one.write(play="from one")
    os.utime(one.folder / "play", (1, 1))
    other.write(play="from the other")
    other.push()
    one.push()
    assert one.pull() == {"play": "from the other"}
    one.write(play="kept")
    one.push()
    other.write(play="newer here")
    assert other.pull() == {"play": "newer here"}
    other.push()
    assert one.pull() == {"play": "newer here"}


def test_a_side_that_is_gone_takes_nothing_away_from_the_other(
    bucket: Bucket, hosts: tuple[Host, Host]
) -> None:
    one, _ = hosts
    one.write(play="to be")
    one.push()
    (one.folder / "play").unlink()
    one.folder.rmdir()
    one.push()
    assert one.pull() == {"play": "to be"}
    one.remote.remove(KEY)
    assert sent(bucket) == []
    assert one.pull() == {"play": "to be"}
    one.push()
    assert sent(bucket) == ["play"]


def test_links_and_what_is_not_complete_stay_here(
    bucket: Bucket, hosts: tuple[Host, Host], tmp_path: Path
) -> None:
    one, _ = hosts
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("of somebody else")
    one.write(play="to be", **{".gpuyard-1": "a half"})
    (one.folder / "key").symlink_to(secret / "key")
    (one.folder / "folder").symlink_to(secret)
    os.mkfifo(one.folder / "pipe")
    one.push()
    assert sent(bucket) == ["play"]
    one.folder.rename(tmp_path / "away")
    one.folder.symlink_to(secret)
    one.push()
    assert sent(bucket) == ["play"], "a link in place of the workspace counts as none"
    assert [path.name for path in secret.iterdir()] == ["key"]


def test_a_bucket_that_is_away_changes_nothing_here(
    bucket: Bucket, hosts: tuple[Host, Host]
) -> None:
    one, _ = hosts
    one.write(play="to be")
    one.push()
    with bucket.away():
        with pytest.raises(BucketError, match="There is no bucket"):
            one.remote.pull(KEY)
        with pytest.raises(BucketError):
            one.push()
    assert one.pull() == {"play": "to be"}
