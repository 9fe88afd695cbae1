"""What the server fetches of git repositories for who submits from a browser: from a real
git server over TLS.
"""

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gpuyard.config.git import GitSettings
from gpuyard.domain.errors import InvalidInputError
from gpuyard.server.remote_git import RemoteCommit, fetch
from tests.support.git_server import GitServer, git_server

PROGRAM = b"print('trained')\n"
_AUTHOR = ["-c", "user.name=ann", "-c", "user.email=ann@example.org"]


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *_AUTHOR, *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`repositories/lab.git`, with a tag, a large file on a branch, a link and a
    submodule.
    """
    top = tmp_path_factory.mktemp("git")
    work = top / "work"
    (work / "examples").mkdir(parents=True)
    git(work, "init", "-q", "--initial-branch", "main")
    (work / "train.py").write_bytes(PROGRAM)
    (work / "examples/bytes.bin").write_bytes(b"\xff\x00\n")
    (work / "weights").write_text("version https://git-lfs.github.com/spec/v1\n")
    (work / "link").symlink_to("/etc/passwd")
    git(work, "add", ".")
    module = f"160000,{'1' * 40},vendor"
    git(work, "update-index", "--add", "--cacheinfo", module)
    git(work, "commit", "-qm", "First")
    git(work, "tag", "v1")
    git(work, "checkout", "-q", "-b", "large")
    (work / "data.txt").write_bytes(os.urandom(1_000_000))
    git(work, "add", "data.txt")
    git(work, "commit", "-qm", "Large")
    (top / "repositories").mkdir()
    git(top, "clone", "-q", "--bare", str(work), "repositories/lab.git")
    git(top / "repositories/lab.git", "symbolic-ref", "HEAD", "refs/heads/main")
    return top


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[GitServer]:
    with git_server(folder / "repositories", folder) as served:
        yield served


@pytest.fixture
def settings(server: GitServer) -> GitSettings:
    return GitSettings(internal_hosts=("127.0.0.1",), ca_file=server.ca_file)


def test_a_tag_a_folder_and_a_commit_are_fetched(
    folder: Path, server: GitServer, settings: GitSettings
) -> None:
    commit = git(folder / "repositories/lab.git", "rev-parse", "v1")
    whole = fetch(RemoteCommit(f"{server.url}/lab.git", "v1"), settings)
    assert whole.commit == commit
    assert whole.files["train.py"] == PROGRAM
    assert whole.files["examples/bytes.bin"] == b"\xff\x00\n"
    assert whole.notes == [
        "submodules are not fetched: vendor",
        "symbolic links are left out: link",
        "of files in Git LFS there is only the pointer: weights",
    ]
    part = fetch(RemoteCommit(f"{server.url}/lab.git", commit, "examples"), settings)
    assert part.files == {"bytes.bin": b"\xff\x00\n"}


@pytest.mark.parametrize(
    ("name", "ref", "part", "says"),
    [
        ("none.git", "", "", "cannot be fetched"),
        ("lab.git", "none", "", "couldn't find remote ref none"),
        ("lab.git", "large", "", "name a folder of it"),
        ("lab.git", "", "train.py", "not in it"),
    ],
)
def test_what_is_not_there_or_too_large_is_told(
    server: GitServer,
    settings: GitSettings,
    name: str,
    ref: str,
    part: str,
    says: str,
) -> None:
    with pytest.raises(InvalidInputError, match=says):
        fetch(RemoteCommit(f"{server.url}/{name}", ref, part), settings)


def test_no_server_sends_us_elsewhere_or_makes_us_wait(
    server: GitServer, settings: GitSettings
) -> None:
    place = server.url.removesuffix("/git")
    with pytest.raises(InvalidInputError, match="it has moved"):
        fetch(RemoteCommit(f"{place}/moved/lab.git"), settings)
    with pytest.raises(InvalidInputError, match="not fetched in time"):
        fetch(RemoteCommit(f"{place}/silent/lab.git"), settings, within_s=1)


def test_a_name_means_what_it_meant_when_it_was_looked_up(
    server: GitServer, settings: GitSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = urlsplit(server.url).port
    here = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_1, **_2: [here])
    named = settings.model_copy(update={"internal_hosts": ("lab.invalid",)})
    source = RemoteCommit(f"https://lab.invalid:{port}/git/lab.git")
    # Git itself would not find it; the server there has no certificate of this name.
    with pytest.raises(InvalidInputError, match="certificate"):
        fetch(source, named)


def test_only_named_hosts_may_be_inside(server: GitServer) -> None:
    port = urlsplit(server.url).port
    for host in ("127.0.0.1", "localhost", "[::1]", "[::ffff:10.0.0.1]", "169.254.1.1"):
        source = RemoteCommit(f"https://{host}:{port}/git/lab.git")
        with pytest.raises(InvalidInputError, match="no address of the public"):
            fetch(source, GitSettings())


@pytest.mark.parametrize(
    ("url", "ref", "part", "field"),
    [
        ("http://example.org/code.git", "", "", "url"),
        ("file:///etc", "", "", "url"),
        ("ext::sh -c id", "", "", "url"),
        ("--upload-pack=id", "", "", "url"),
        ("https://ann:secret@example.org/code", "", "", "url"),
        ("https://example.org:443,1.1.1.1/code", "", "", "url"),
        ("https://example.org/code\n", "", "", "url"),
        ("https://example.org:99999/code", "", "", "url"),
        ("https://[::1::]/code", "", "", "url"),
        ("https://example.org/code?to=1", "", "", "url"),
        ("https://example.org/code", "--exec=id", "", "ref"),
        ("https://example.org/code", "a..b", "", "ref"),
        ("https://example.org/code", "+a:b", "", "ref"),
        ("https://example.org/code", "", "../etc", "folder"),
        ("https://example.org/code", "", "a/.git", "folder"),
    ],
)
def test_only_plain_addresses_go_to_git(
    url: str, ref: str, part: str, field: str
) -> None:
    with pytest.raises(InvalidInputError) as refused:
        RemoteCommit(url, ref, part)
    assert [fault.field for fault in refused.value.faults] == [field]
