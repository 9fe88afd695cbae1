"""Code that a process of root reads and builds as an account: real accounts of this
machine.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gpuyard.config.accounts import Account
from gpuyard.domain.errors import InvalidInputError
from gpuyard.storage import account_work
from gpuyard.storage.account_process import AccountWorkError, FolderAnswer
from gpuyard.storage.code_snapshots import CodeLimits
from gpuyard.storage.code_store import CodeStore
from gpuyard.storage.code_tree import CodeEntry, CodeTree
from gpuyard.storage.contents import folder_stores
from tests.support.accounts import real_account

LIMITS = CodeLimits(files=10, bytes=1000)


@pytest.fixture(scope="module")
def ann() -> Iterator[Account]:
    with real_account() as account:
        yield account


@pytest.fixture(scope="module")
def bob() -> Iterator[Account]:
    with real_account() as account:
        yield account


@pytest.fixture
def store(tmp_path: Path) -> CodeStore:
    return CodeStore(folder_stores(tmp_path / "store"))


@pytest.fixture
def project(ann: Account) -> Iterator[Path]:
    """A folder in ann's home that only she may enter."""
    with tempfile.TemporaryDirectory(dir=ann.home) as name:
        folder = Path(name)
        (folder / "train.py").write_text("print(1)")
        (folder / "data.bin").write_text("data")
        given_to(ann, folder)
        yield folder


def given_to(account: Account, folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        os.chown(path, account.uid, account.gid, follow_symlinks=False)


def take(store: CodeStore, account: Account, folder: Path) -> str:
    return account_work.take_code(store, account, folder, LIMITS, Path("/nowhere"))


def test_what_the_account_may_read_is_stored_for_it(
    store: CodeStore, ann: Account, project: Path
) -> None:
    git = ["git", "-C", str(project), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    as_ann = {"user": ann.uid, "group": ann.gid, "extra_groups": []}
    variables = {**os.environ, "HOME": ann.home}
    for words in (["init", "-q"], ["add", "data.bin"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True, env=variables, **as_ann)
    (project / ".gitignore").write_text("generated.py\n")
    (project / "generated.py").touch()
    tree = store.get(take(store, ann, project))
    assert [entry.path for entry in tree.entries] == ["data.bin", "train.py"]
    assert store.file(tree.entries[1].sha256) == b"print(1)"
    assert (tree.account, len(tree.commit)) == (ann.name, 40)
    assert account_work.changes(ann, tree, project) == []
    (project / "train.py").write_text("print(2)")
    assert account_work.changes(ann, tree, project) == ["train.py"]


def test_nothing_is_read_that_the_account_may_not_read(
    store: CodeStore, ann: Account, bob: Account, project: Path
) -> None:
    with pytest.raises(OSError, match="Permission denied"):
        take(store, bob, project)
    tree = store.get(take(store, ann, project))
    # Not even whether it is the same as what somebody knows.
    assert account_work.changes(bob, tree, project) is None
    (project / "of_bob.py").write_text("secret")
    (project / "of_bob.py").chmod(0o600)
    with pytest.raises(InvalidInputError, match=r"of_bob.py' cannot be read"):
        take(store, ann, project)
    (project / "of_bob.py").unlink()
    (project / "link.py").symlink_to(Path(bob.home) / "secret.py")
    tree = store.get(take(store, ann, project))
    assert [entry.path for entry in tree.entries] == ["train.py"]


def test_a_home_directory_and_too_much_code_are_refused(
    store: CodeStore, ann: Account, project: Path
) -> None:
    with pytest.raises(InvalidInputError, match="holds the home directory"):
        take(store, ann, Path(ann.home))
    (project / "large.py").write_text("#" * 2000)
    with pytest.raises(InvalidInputError, match="2 files of code"):
        take(store, ann, project)


def test_a_folder_is_built_with_the_accounts_own_rights(
    store: CodeStore, ann: Account, project: Path
) -> None:
    tree = store.get(take(store, ann, project))
    fresh = project.parent / f"{project.name}-fresh"
    fresh.mkdir(mode=0o700)
    with pytest.raises(AccountWorkError, match="Permission denied"):
        account_work.build(ann, 0o077, tree, store, project, fresh)
    given_to(ann, fresh)
    account_work.build(ann, 0o077, tree, store, project, fresh)
    status = (fresh / "train.py").stat()
    assert (status.st_uid, status.st_mode & 0o777) == (ann.uid, 0o600)
    assert (fresh / "data.bin").readlink() == project / "data.bin"


def test_a_link_in_the_folder_is_not_followed_by_root(
    store: CodeStore, ann: Account, project: Path, tmp_path: Path
) -> None:
    """A process of the account has put it there before the code comes."""
    (project / "package").mkdir()
    (project / "package/model.py").write_text("1")
    given_to(ann, project)
    tree = store.get(take(store, ann, project))
    fresh = project.parent / f"{project.name}-fresh"
    fresh.mkdir(mode=0o700)
    (fresh / "package").symlink_to(tmp_path)
    given_to(ann, fresh)
    tmp_path.chmod(0o755)
    with pytest.raises(AccountWorkError, match="Permission denied"):
        account_work.build(ann, 0o077, tree, store, project, fresh)
    assert not (tmp_path / "model.py").exists()


@pytest.mark.parametrize(
    "entry",
    [
        CodeEntry("other.py", sha256="0" * 64),
        CodeEntry("../other.py", link="train.py"),
        CodeEntry("/etc/other.py", link="train.py"),
    ],
)
def test_an_answer_names_only_files_that_came_with_it(
    store: CodeStore,
    ann: Account,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    entry: CodeEntry,
) -> None:
    answer = msgspec.msgpack.encode(FolderAnswer(CodeTree([entry])))
    answers(monkeypatch, f"import sys; sys.stdout.buffer.write({answer!r})")
    with pytest.raises(AccountWorkError, match=r"other.py"):
        take(store, ann, tmp_path)


def test_a_process_that_never_answers_is_ended(
    store: CodeStore, ann: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(monkeypatch, "import time; time.sleep(600)")
    monkeypatch.setattr(account_work, "_TIMEOUT_S", 0.1)
    with pytest.raises(AccountWorkError, match=r"took more than 0.1 s"):
        take(store, ann, tmp_path)


def test_a_folder_that_would_take_all_memory_is_refused(
    store: CodeStore, ann: Account, project: Path
) -> None:
    with (project / ".gitignore").open("wb") as file:
        file.truncate(4 << 30)
    with pytest.raises(AccountWorkError, match="more than 1 GB of memory"):
        take(store, ann, project)


def answers(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let another program answer."""
    program = (sys.executable, "-c", code)
    monkeypatch.setattr(account_work, "_PROGRAM", program)
