"""A node fetches from its server what jobs took along from their submission."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpuyard.config.paths import Home
from gpuyard.domain import wire
from gpuyard.domain.carried_environment import CarriedEnvironment
from gpuyard.domain.contents import PART_BYTES, ContentKind, Contents
from gpuyard.domain.reasons import Reason
from gpuyard.node import fetching
from gpuyard.node.fetching import Fetching, sweep_fetched
from gpuyard.node.journal import AttemptJournal
from gpuyard.node.launcher import LaunchError
from gpuyard.storage.code_snapshots import CodeLimits, CodeReader
from gpuyard.storage.code_store import CodeStore
from gpuyard.storage.contents import FolderContents, folder_stores
from gpuyard.storage.environments import Environments
from tests.support.node import Node, make_node

SHOW = """
    import os, pathlib
    print(pathlib.Path("train.py").read_text(), os.environ.get("LEARNING_RATE"))
    print(len(pathlib.Path("large.py").read_text()))
"""
DAY_S = 86400.0


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with make_node() as made:
        yield made


@pytest.fixture
def stores(node: Node, tmp_path: Path) -> Callable[[ContentKind], FolderContents]:
    """Where the server stores: not in the home of the node."""
    made = folder_stores(tmp_path / "of the server")
    node.provider.hand_out(made)
    return made


def take(stores: Callable[[ContentKind], Contents], node: Node, word: str) -> str:
    """Store code of the node's work folder, which then changes; its digest."""
    program = node.work / "train.py"
    program.write_text(f"'{word}'")
    (node.work / "large.py").write_text(f"#{word:>{2 * PART_BYTES}}")
    digest = CodeReader(CodeStore(stores)).take(node.work, CodeLimits(9, 10**7))
    program.write_text("'changed'")
    return digest


def test_a_job_has_its_code_and_environment_as_submitted(
    node: Node, stores: Callable[[ContentKind], FolderContents]
) -> None:
    carried = CarriedEnvironment({"LEARNING_RATE": "0.1"})
    environment = Environments(stores).put(carried)
    code = take(stores, node, "first")
    for _ in range(2):
        attempt = node.start(SHOW, carried_environment=environment, code=code)
        assert node.ended(attempt).exit_code == 0
        assert node.output(attempt) == f"'first' 0.1\n{2 * PART_BYTES + 1}\n"
        # The next one needs no server.
        node.provider.hand_out(folder_stores(node.work / "nothing"))
    fetched = folder_stores(node.home.fetched)
    assert environment in fetched(ContentKind.ENVIRONMENT).stored_before(1e11)
    sweep_fetched(node.home.root, time.time() + 6 * DAY_S)
    assert code in fetched(ContentKind.TREE).stored_before(1e11)
    sweep_fetched(node.home.root, time.time() + 8 * DAY_S)
    assert not [path for path in node.home.fetched.rglob("*") if path.is_file()]


def test_what_the_server_has_no_more_is_told(
    node: Node, stores: Callable[[ContentKind], FolderContents]
) -> None:
    code = take(stores, node, "second")
    CodeStore(stores, clock=lambda: time.time() + 2 * DAY_S).remove([code])
    for fields in ({"code": code}, {"carried_environment": "0" * 64}):
        ended = node.ended(node.start(SHOW, **fields))
        (kind,) = fields
        wanted = "code_missing" if kind == "code" else "environment_missing"
        assert ended.reason == wanted
        assert "no longer stored" in ended.message


class Failing(FolderContents):
    """It cannot be read at first; then another content comes than was asked for."""

    faults = 2

    def parts(self, digest: str) -> Iterator[bytes]:
        self.faults = max(self.faults - 1, -1)
        if self.faults == 1:
            raise OSError("the disk is away")
        yield from super().parts(digest)
        if self.faults == 0:
            yield b"# and more"


def test_a_fetch_is_tried_again_and_takes_only_what_was_asked_for(
    node: Node, stores: Callable[[ContentKind], FolderContents]
) -> None:
    code = take(stores, node, "third")
    failing = {kind: Failing(stores(kind).folder) for kind in ContentKind}
    node.provider.hand_out(failing.__getitem__)
    attempt = node.start(SHOW, code=code)
    assert node.ended(attempt).exit_code == 0
    assert node.output(attempt).startswith("'third' None\n")
    assert [failing[kind].faults for kind in ContentKind] == [2, -1, -1, 2, 2]


@pytest.mark.anyio
async def test_where_no_server_answers_the_attempt_ends_without_a_fault_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "_GIVE_UP_S", 0.0)
    monkeypatch.setattr(fetching, "_PAUSE_S", 0.0)
    home = Home(tmp_path)
    home.create()
    alone = Fetching(home.root, AttemptJournal(home.node / "attempts"), lambda: None)
    start = wire.StartAttempt("a", 1, 1, "job", ["true"], {})
    with pytest.raises(LaunchError, match="no server is connected") as caught:
        await alone.fetch(replace(start, code="0" * 64), tmp_path)
    assert caught.value.reason == Reason.STORAGE_UNREACHABLE
    await alone.fetch(start, tmp_path)
