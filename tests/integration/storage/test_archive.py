"""Archives from elsewhere: whatever is in them, nothing is written outside."""

import io
import os
import tarfile
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.storage.archive import unpack
from tests.support.examples import examples

NAMES = st.sampled_from(
    ["a", "a/b", "a/../b", "../out", "/out", "a/b/../../../out", "link", "link/out"]
)
KINDS = st.sampled_from(
    [
        tarfile.REGTYPE,
        tarfile.DIRTYPE,
        tarfile.SYMTYPE,
        tarfile.LNKTYPE,
        tarfile.FIFOTYPE,
        tarfile.CHRTYPE,
    ]
)
MEMBERS = st.lists(st.tuples(NAMES, KINDS, NAMES, st.integers(0, 0o7777)), max_size=6)


def archive_of(members: list[tuple[str, bytes, str, int]]) -> bytes:
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as archive:
        for name, kind, target, mode in members:
            item = tarfile.TarInfo(name)
            item.type = kind
            item.linkname = target
            item.mode = mode
            item.size = 4 if kind == tarfile.REGTYPE else 0
            archive.addfile(item, io.BytesIO(b"text"))
    return written.getvalue()


def unpack_in_new_folder(data: bytes) -> None:
    """Unpack `data`, and check that nothing appeared beside the folder."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "inside" / "folder"
        folder.mkdir(parents=True)
        # Refused, or cut short by what it had unpacked itself.
        with suppress(tarfile.TarError, OSError):
            unpack(io.BytesIO(data), folder)
        assert list(Path(name).iterdir()) == [folder.parent]
        assert list(folder.parent.iterdir()) == [folder]
        for path in folder.rglob("*"):
            assert path.is_symlink() or path.is_file() or path.is_dir()
            assert Path(os.path.realpath(path)).is_relative_to(folder)


def sparse_file(size: int) -> bytes:
    """An archive of a file with one hole of `size` bytes, as GNU tar writes it."""
    item = tarfile.TarInfo("holes")
    item.pax_headers = {
        "GNU.sparse.major": "0",
        "GNU.sparse.minor": "1",
        "GNU.sparse.map": f"{size},0",
        "GNU.sparse.size": str(size),
    }
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(item)
    return written.getvalue()


def lying_file(size: int) -> bytes:
    """An archive of a file that is said to have `size` bytes, and has four."""
    item = tarfile.TarInfo("short")
    item.size = size
    return item.tobuf() + b"text"


@pytest.mark.parametrize("kind", [sparse_file, lying_file])
def test_no_archive_writes_more_than_it_has(
    kind: Callable[[int], bytes], tmp_path: Path
) -> None:
    data = kind(1 << 30)
    with pytest.raises(tarfile.TarError):
        unpack(io.BytesIO(data), tmp_path)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= len(data)


@pytest.mark.parametrize("swapped", ["inside", "the folder itself"])
def test_a_folder_that_becomes_a_link_meanwhile_leads_nowhere(
    tmp_path: Path, swapped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job swaps it just after the names of the archive were checked."""
    outside = tmp_path / "outside"
    outside.mkdir()
    target = tmp_path / "target"
    target.mkdir()
    members = [
        (f"a/{name}", tarfile.REGTYPE, "", 0o644) for name in ("first", "second")
    ]
    place = target / "a" if swapped == "inside" else target
    check = tarfile.data_filter

    def check_and_swap(info: tarfile.TarInfo, folder: str) -> tarfile.TarInfo:
        checked = check(info, folder)
        if info.name == "a/second":
            place.rename(tmp_path / "moved")
            place.symlink_to(outside)
        return checked

    monkeypatch.setattr(tarfile, "data_filter", check_and_swap)
    with suppress(OSError):  # a folder inside that has become a link is refused
        unpack(io.BytesIO(archive_of(members)), target)
    assert place.is_symlink()
    assert list(outside.iterdir()) == []


@settings(max_examples=examples(1000))
@given(MEMBERS)
def test_no_archive_leaves_its_folder(
    members: list[tuple[str, bytes, str, int]],
) -> None:
    unpack_in_new_folder(archive_of(members))


@settings(max_examples=examples(1000))
@given(MEMBERS, st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255))))
def test_no_damage_to_an_archive_is_another_error(
    members: list[tuple[str, bytes, str, int]], damage: list[tuple[int, int]]
) -> None:
    data = bytearray(archive_of(members))
    for place, value in damage:
        data[place % len(data)] = value
    unpack_in_new_folder(bytes(data))
