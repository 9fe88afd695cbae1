"""The folder in which a job finds the code that it was submitted with."""

from pathlib import Path

import pytest

from gpuyard.node.code_folder import CodeFolders
from gpuyard.storage.code_snapshots import CodeLimits, CodeReader
from gpuyard.storage.code_store import CodeStore
from gpuyard.storage.contents import folder_stores

LIMITS = CodeLimits(files=10, bytes=1000)


@pytest.fixture
def store(tmp_path: Path) -> CodeStore:
    return CodeStore(folder_stores(tmp_path))


@pytest.fixture
def live(tmp_path: Path) -> Path:
    made = tmp_path / "live"
    (made / "package" / "__pycache__").mkdir(parents=True)
    (made / "data").mkdir()
    (made / "package/model.py").write_text("1")
    (made / "package/weights.bin").write_text("data")
    (made / "run.sh").write_text("true")
    (made / "run.sh").chmod(0o755)
    return made


def test_code_is_as_submitted_and_everything_else_is_linked(
    store: CodeStore, live: Path, tmp_path: Path
) -> None:
    digest = CodeReader(store).take(live, LIMITS)
    folders = CodeFolders(store)
    private = tmp_path / "attempt"
    assert folders.prepare(digest, live, private) == live
    (live / "package/model.py").write_text("2")
    (live / "run.sh").unlink()
    folder = folders.prepare(digest, live, private)
    assert (folder / "package/model.py").read_text() == "1"
    assert (folder / "run.sh").stat().st_mode & 0o100
    links = {
        path.name: path.readlink() for path in folder.rglob("*") if path.is_symlink()
    }
    assert links == {
        "data": live / "data",
        "weights.bin": live / "package/weights.bin",
    }
    assert not (folder / "package/__pycache__").exists()


def test_an_attempt_keeps_its_folder_after_its_agent_was_killed(
    store: CodeStore, live: Path, tmp_path: Path
) -> None:
    digest = CodeReader(store).take(live, LIMITS)
    private = tmp_path / "attempt"
    (live / "run.sh").write_text("false")
    folder = CodeFolders(store).prepare(digest, live, private)
    (folder / "output").write_text("mine")
    (live / "run.sh").write_text("true")
    assert CodeFolders(store).prepare(digest, live, private) == folder
    assert (folder / "output").read_text() == "mine"
