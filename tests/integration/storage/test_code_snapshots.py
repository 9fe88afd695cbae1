"""The code of a working folder: what belongs to it, and what has changed since."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from gpuyard.config.jobs import JobSettings
from gpuyard.config.paths import Home
from gpuyard.controller.submissions import Submissions
from gpuyard.domain.errors import InvalidInputError
from gpuyard.storage.code_snapshots import CodeLimits, CodeReader
from gpuyard.storage.code_store import CodeMissingError, CodeStore
from gpuyard.storage.contents import folder_stores
from tests.support.open_folder import open_folder

LIMITS = CodeLimits(files=10, bytes=1000)
DAY_S = 86400.0


@pytest.fixture
def store(tmp_path: Path) -> CodeStore:
    return CodeStore(folder_stores(tmp_path))


@pytest.fixture
def reader(store: CodeStore) -> CodeReader:
    return CodeReader(store)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    (made / "package").mkdir(parents=True)
    (made / "package/model.py").write_text("layers = 1")
    (made / "train.sh").write_text("python3 -m package.model")
    (made / "train.sh").chmod(0o755)
    (made / "main.py").symlink_to("package/model.py")
    (made / "losses.csv").write_text("0.1")
    (made / "generated.py").write_text("")
    (made / ".gpuyardignore").write_text("generated.py\n")
    return made


def paths(store: CodeStore, digest: str) -> list[str]:
    return [entry.path for entry in store.get(digest).entries]


def test_programs_are_code_and_data_and_ignored_files_are_not(
    store: CodeStore, reader: CodeReader, folder: Path
) -> None:
    digest = reader.take(folder, LIMITS)
    assert paths(store, digest) == ["main.py", "package/model.py", "train.sh"]
    assert store.get(digest).commit == ""
    apart = reader.take(folder, LIMITS, folder / "package")
    assert paths(store, apart) == ["main.py", "train.sh"]


def test_what_git_tracks_is_code_whatever_its_name(
    store: CodeStore, reader: CodeReader, folder: Path
) -> None:
    git = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "losses.csv"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    clean = store.get(reader.take(folder, LIMITS))
    assert "losses.csv" in [entry.path for entry in clean.entries]
    assert (len(clean.commit), clean.dirty) == (40, False)
    (folder / "losses.csv").write_text("0.2")
    assert store.get(reader.take(folder, LIMITS)).dirty


def test_how_code_differs_from_git_tells_nothing_of_what_is_not_stored(
    store: CodeStore, reader: CodeReader, folder: Path
) -> None:
    git = ["git", "-C", str(folder.parent), "-c", "user.name=a", "-c", "user.email=a"]
    (folder / "removed.py").write_text("hidden")
    for words in (["init", "-q"], ["add", "project"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    (folder / "removed.py").unlink()
    (folder / "losses.csv").write_text("0.2")
    (folder / "generated.py").write_text("hidden")
    tree = store.get(reader.take(folder, LIMITS))
    assert tree.dirty
    assert "+0.2" in tree.diff
    assert "hidden" not in tree.diff


def test_only_another_content_mode_or_target_is_a_change(
    store: CodeStore, reader: CodeReader, folder: Path
) -> None:
    tree = store.get(reader.take(folder, LIMITS))
    (folder / "package/model.py").write_text("layers = 1")
    (folder / "losses.csv").write_text("0.05")
    (folder / "new.py").touch()
    assert reader.changes(tree, folder) == []
    (folder / "package/model.py").write_text("layers = 2")
    (folder / "train.sh").chmod(0o644)
    (folder / "main.py").unlink()
    everything = ["main.py", "package/model.py", "train.sh"]
    assert reader.changes(tree, folder) == everything


def test_an_edit_under_the_same_size_and_time_is_noticed(
    store: CodeStore, folder: Path
) -> None:
    # Ten seconds later, the files have changed long enough ago to be remembered.
    reader = CodeReader(store, lambda: time.time_ns() + 10 * 10**9)
    tree = store.get(reader.take(folder, LIMITS))
    file = folder / "package/model.py"
    status = file.stat()
    file.write_text("layers = 9")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert reader.changes(tree, folder) == ["package/model.py"]


def test_too_much_code_and_the_home_directory_are_refused(
    reader: CodeReader, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidInputError, match="3 files of code"):
        reader.take(folder, CodeLimits(files=2, bytes=1000))
    with pytest.raises(InvalidInputError, match="the most are 10 files and 0 MB"):
        reader.take(folder, CodeLimits(files=10, bytes=5))
    with pytest.raises(InvalidInputError, match="is in gpuyard's own folder"):
        reader.take(folder / "package", LIMITS, folder)
    monkeypatch.setenv("HOME", str(folder / "package"))
    with pytest.raises(InvalidInputError, match="holds the home directory"):
        reader.take(folder, LIMITS)


def test_files_go_with_the_last_tree_that_has_them(
    tmp_path: Path, folder: Path
) -> None:
    store = CodeStore(folder_stores(tmp_path), clock=lambda: time.time() + 2 * DAY_S)
    reader = CodeReader(store)
    first = reader.take(folder, LIMITS)
    (folder / "package/model.py").write_text("layers = 2")
    second = reader.take(folder, LIMITS)
    assert store.not_stored_lately() == {first, second}
    gone = store.get(first).entries[1].sha256
    kept = store.get(second).entries[-1].sha256
    store.remove([first])
    with pytest.raises(CodeMissingError):
        store.file(gone)
    assert store.file(kept) == b"python3 -m package.model"
    with pytest.raises(CodeMissingError, match="is no longer stored"):
        store.get(first)


def test_a_users_code_is_only_what_everybody_on_the_host_may_read(
    store: CodeStore, tmp_path: Path
) -> None:
    submissions = Submissions(Home(tmp_path), JobSettings(), folder_stores(tmp_path))
    with open_folder() as folder:
        of_owner = submissions.take_code(folder)
        assert paths(store, of_owner) == [".env.py", "keys/id.py", "train.py"]
        of_user = submissions.take_code(folder, user="mia")
        assert paths(store, of_user) == ["train.py"]
        with pytest.raises(InvalidInputError, match=r"everybody.*may read"):
            submissions.take_code(folder / "keys", user="mia")
