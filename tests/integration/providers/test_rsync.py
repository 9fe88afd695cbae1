"""Workspaces that are copied and come back, by a real rsync between two folders of this
host.
"""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
import uvloop

from gpuyard.domain.errors import ProviderError
from gpuyard.providers.rsync import RsyncHost, WorkspaceSync

THEN = 1_700_000_000


class Places:
    """A workspace here and its copy there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.here = root / "here"
        self.there = root / "there"
        self.there.mkdir()
        self.here.mkdir()
        self.workspaces = WorkspaceSync(RsyncHost("test"), root / "notes")

    def write(self, place: Path, name: str, text: str, at: float = THEN) -> None:
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, (at, at))

    def read(self, place: Path) -> dict[str, str]:
        return {
            str(path.relative_to(place)): path.read_text()
            for path in place.rglob("*")
            if path.is_file()
        }

    def send(self, attempt: str = "one") -> None:
        asyncio.run(self.workspaces.send(attempt, self.here, self.there))

    def bring_back(self, attempt: str = "one") -> None:
        # A server that was killed and came again has nothing but the notes.
        asyncio.run(
            WorkspaceSync(RsyncHost("test"), self.root / "notes").bring_back(attempt)
        )


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


def test_what_is_new_on_either_side_is_on_both_in_the_end(places: Places) -> None:
    places.write(places.here, "corpus/a", "a")
    places.send()
    assert places.read(places.there) == {"corpus/a": "a"}
    places.write(places.there, "made/there", "1")
    places.write(places.here, "made here", "2")
    places.bring_back()
    assert places.read(places.here) == {
        "corpus/a": "a",
        "made/there": "1",
        "made here": "2",
    }


@pytest.mark.parametrize("later", [0.0, 1e-6, 0.5, -60.0])
def test_a_change_comes_back_whatever_the_clocks_say(
    places: Places, later: float
) -> None:
    """In the same second and as long as before, or on a cluster whose clock is a minute
    behind.
    """
    places.write(places.here, "count", "1")
    places.send()
    if later:
        places.write(places.there, "count", "2", THEN + later)
    else:
        places.write(places.there, "count", "22")
    places.bring_back()
    assert places.read(places.here) == {"count": "2" if later else "22"}


def test_of_what_both_have_changed_the_newer_one_stays(places: Places) -> None:
    for name in ("ours", "theirs"):
        places.write(places.here, name, "old")
    places.send()
    places.write(places.here, "ours", "new here", THEN + 20)
    places.write(places.there, "ours", "new there", THEN + 10)
    places.write(places.here, "theirs", "new here", THEN + 10)
    places.write(places.there, "theirs", "new there", THEN + 20)
    places.bring_back()
    assert places.read(places.here) == {"ours": "new here", "theirs": "new there"}


def test_what_was_changed_here_is_not_undone_by_what_was_sent(places: Places) -> None:
    places.write(places.here, "state", "old", THEN + 10)
    places.send()
    places.write(places.here, "state", "restored from a backup", THEN)
    places.bring_back()
    assert places.read(places.here) == {"state": "old"}, (
        "the newer one of two that differ"
    )
    places.write(places.here, "state", "next", THEN + 20)
    places.bring_back()
    assert places.read(places.here) == {"state": "next"}


@pytest.mark.parametrize(
    "name",
    [
        "a*b",
        "a?b",
        "[ab]",
        "back\\slash",
        "star*and\\slash",
        " space ",
        "-rf",
        "#no comment",
        "; rm",
        "line\nbreak",
        "née",
        "a:b",
    ],
)
def test_names_mean_themselves(places: Places, name: str) -> None:
    for one in (name, "ab", "other"):
        places.write(places.here, one, "old")
    places.send()
    places.write(places.here, name, "new here", THEN + 20)
    places.write(places.there, name, "old there", THEN + 10)
    for one in ("ab", "other"):
        places.write(places.there, one, "new there", THEN - 10)
    places.bring_back()
    assert places.read(places.here) == {
        name: "new here",
        "ab": "new there",
        "other": "new there",
    }


def test_a_file_that_goes_meanwhile_is_no_fault(places: Places) -> None:
    """rsync says 24 then: it listed a file and found it gone."""
    program = places.root / "bin" / "rsync"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\n/usr/bin/rsync "$@"\nexit 24\n')
    program.chmod(0o755)
    places.write(places.here, "a", "a")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        places.send()
    assert places.read(places.there) == {"a": "a"}


def test_what_cannot_be_brought_is_said(places: Places) -> None:
    with pytest.raises(
        ProviderError, match=r"rsync to .*: .*[Nn]o such file"
    ) as caught:
        asyncio.run(RsyncHost("test").copy(f"{places.root}/none/", f"{places.there}/"))
    assert caught.value.error_code == "SPOOL"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", "/nowhere")
        with pytest.raises(ProviderError, match="Install it"):
            places.send()


def test_one_that_uses_none_has_nothing_to_bring_back(places: Places) -> None:
    places.bring_back("unknown")
    places.send("one")
    asyncio.run(places.workspaces.forget("one"))
    places.write(places.there, "late", "x")
    places.bring_back("one")
    assert places.read(places.here) == {}


def test_many_that_use_one_at_once_find_it_there(places: Places) -> None:
    places.write(places.here, "large", "x" * 1_000_000)

    async def all_at_once() -> None:
        await asyncio.gather(
            *(
                places.workspaces.send(f"n{n}", places.here, places.there)
                for n in range(8)
            )
        )

    asyncio.run(all_at_once())
    assert places.read(places.there) == places.read(places.here)
    for n in range(8):
        places.bring_back(f"n{n}")


def test_one_that_ends_before_its_input_is_written_is_no_fault(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's loop refuses to write to a program that has ended."""
    create = asyncio.create_subprocess_exec

    async def create_slowly(*words: str, **more: Any) -> asyncio.subprocess.Process:
        process = await create(*words, **more)
        await process.wait()
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", create_slowly)
    places.write(places.here, "corpus/a", "a")
    uvloop.run(RsyncHost("test").copy(f"{places.here}/", str(places.there)))
    assert places.read(places.there) == {"corpus/a": "a"}
