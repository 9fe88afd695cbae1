"""What is left out of a snapshot is what git leaves out: compared with git itself on
generated trees.
"""

import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuyard.storage.listing import Listing
from tests.support.examples import examples
from tests.support.programs import run_program

NAMES = ["a", "b", "ab", "a.log", "b.txt", ".x", "build", "ä b", "a[1]"]
PARTS = [*NAMES, "*", "**", "*.log", "?", "a*", "[ab]", "[!a]*", "a\\[1\\]", "*.t?t"]
paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map("/".join)


@st.composite
def lines(draw: st.DrawFn) -> str:
    body = "/".join(draw(st.lists(st.sampled_from(PARTS), min_size=1, max_size=3)))
    before = draw(st.sampled_from(["", "", "/", "!", "!/"]))
    after = draw(st.sampled_from(["", "", "/", "/ ", "  "]))
    return before + body + after


noise = st.sampled_from(
    [
        "",
        "# a",
        "\\#a",
        "!",
        "/",
        "\\!a",
        "a\\ ",
        "[",
        "a\\",
        " a",
        "\ta",
        "**/",
        "/**",
        "a/**/",
    ]
)
ignored = st.lists(lines() | noise, max_size=5)


@settings(deadline=None, max_examples=examples(150))
@given(
    st.sets(paths, min_size=1, max_size=12),
    st.dictionaries(st.just("") | paths, ignored, max_size=4),
)
@example({"a/b/x.log", "b/x.log"}, {"": ["*.log"], "a": ["!b/"]})
@example({"packages/build/a", "packages/b"}, {"": ["build/", "!packages/"]})
@example({"a.txt", "a/b.txt", "a/b.log"}, {"": ["*", "!*/", "!*.log"]})
@example({"a/b", "a/c"}, {"": ["/*", "!/a", "/a/*", "!/a/b"]})
@example({"a/b/c"}, {"": ["a/"], "a": ["!b"], "a/b": ["!c"]})
def test_the_same_files_as_git(files: set[str], ignores: dict[str, list[str]]):
    with tempfile.TemporaryDirectory() as name:
        root = Path(name).resolve()
        subprocess.run(["git", "init", "-q", str(root)], check=True)
        for path in files:
            _write(root / path, path)
        for path, content in ignores.items():
            _write(root / path / ".gitignore", "\n".join(content))
        assert ours(root) == gits(root)
        for below in (
            path for path in root.iterdir() if path.is_dir() and path.name != ".git"
        ):
            kept = gits(below)
            # else git may leave it out as a whole, and who names a directory means what
            # is in it
            if kept:
                assert ours(below) == kept


def _write(path: Path, text: str) -> None:
    """Write a file unless something is in the way."""
    for above in reversed(path.parents):
        if above.is_file():
            return
        above.mkdir(exist_ok=True)
    if not path.exists():
        path.write_text(text)


def ours(root: Path) -> set[str]:
    return {
        entry.path
        for entry in Listing.of(root).entries
        if (root / entry.path).is_file()
    }


def gits(root: Path) -> set[str]:
    command = [
        "git",
        "-c",
        "core.excludesFile=",
        "ls-files",
        "-z",
        "--others",
        "--cached",
        "--exclude-standard",
    ]
    out = run_program(command, cwd=root).stdout
    return {name for name in out.split("\0") if name}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in (
        "data/big.bin",
        "data/small.csv",
        "src/a.py",
        "src/out/x",
        "notes.txt",
    ):
        _write(tmp_path / name, name)
    return tmp_path


def test_our_own_file_leaves_out_more_and_brings_back(root: Path):
    _write(root / ".gitignore", "data\nout/\n")
    _write(root / ".gpuyardignore", "!data/\n*.bin\nnotes.txt\n")
    assert ours(root) == {".gitignore", ".gpuyardignore", "data/small.csv", "src/a.py"}


def test_our_own_file_beats_a_nearer_one_of_git(root: Path):
    _write(root / "data/.gitignore", "*\n")
    _write(root / ".gpuyardignore", "!small.csv\n")
    assert "data/small.csv" in ours(root)
    assert "data/big.bin" not in ours(root)


def test_without_git_the_rules_hold_too(root: Path):
    _write(root / ".gitignore", "*.bin\r\n/notes.txt\r\n")
    assert ours(root) == {".gitignore", "data/small.csv", "src/a.py", "src/out/x"}


def test_the_rules_of_the_repository_hold_below_it(root: Path):
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    _write(root / ".gitignore", "out/\n/src/a.py\n")
    assert ours(root / "src") == set()
    _write(root / "src/b.py", "")
    assert ours(root / "src") == {"b.py"}


def test_a_directory_that_its_repository_leaves_out_is_whole_when_named(root: Path):
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    _write(root / ".gitignore", "data/\n*.csv\n")
    assert ours(root / "data") == {"big.bin", "small.csv"}


def test_what_no_job_needs_is_always_left_out(root: Path):
    for name in (
        ".git/HEAD",
        "src/.git",
        "src/__pycache__/a.pyc",
        "env/pyvenv.cfg",
        "env/bin/python",
        "src/.venv/x",
    ):
        _write(root / name, name)
    _write(root / ".gpuyardignore", "!__pycache__/\n!.git\n!env/\n")
    assert ours(root) == {
        ".gpuyardignore",
        "data/big.bin",
        "data/small.csv",
        "notes.txt",
        "src/.venv/x",
        "src/a.py",
        "src/out/x",
    }
