"""A commit of a git repository: what is meant, what is fetched, and what is missing."""

from pathlib import Path

import pytest

from gpuyard.cli.git_source import (
    GitSource,
    check_out,
    inside,
    names_repository,
    notes_of,
)
from gpuyard.domain.errors import InvalidInputError
from tests.support.programs import run_program


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=ann", "-c", "user.email=ann@example.org"]
    return run_program(["git", "-C", str(folder), *who, *words]).stdout.strip()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the tag v1, a submodule, and a file of Git LFS."""
    folder = tmp_path_factory.mktemp("git") / "code.git"
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch", "main")
    (folder / "train.py").write_text("print('first')\n")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "First")
    git(folder, "tag", "v1")
    (folder / "train.py").write_text("print('second')\n")
    (folder / ".gitmodules").write_text('[submodule "lib"]\n\tpath = lib\n\turl = x\n')
    (folder / ".gitattributes").write_text("*.bin filter=lfs\n")
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    (folder / "weights.bin").write_text(pointer)
    (folder / "sub").mkdir()
    (folder / "sub" / "file").touch()
    git(folder, "-c", "filter.lfs.required=false", "add", ".")
    git(folder, "commit", "--quiet", "-m", "Second")
    return folder


@pytest.mark.parametrize(
    ("text", "url", "ref", "name"),
    [
        ("https://h.org/lab/code.git@v1", "https://h.org/lab/code.git", "v1", "code"),
        ("https://h.org/lab/code", "https://h.org/lab/code", "", "code"),
        ("https://me@h.org/code", "https://me@h.org/code", "", "code"),
        ("https://me@h.org/code@a/b", "https://me@h.org/code", "a/b", "code"),
        ("git@h.org:lab/code.git", "git@h.org:lab/code.git", "", "code"),
        ("git@h.org:lab/code.git@main", "git@h.org:lab/code.git", "main", "code"),
        ("git@h.org:code", "git@h.org:code", "", "code"),
        ("ssh://git@h.org/code", "ssh://git@h.org/code", "", "code"),
        ("./my code@v1", "./my code", "v1", "my-code"),
    ],
)
def test_what_is_meant(text: str, url: str, ref: str, name: str) -> None:
    source = GitSource.parse(text)
    assert (source.url, source.ref, source.name) == (url, ref, name)


@pytest.mark.parametrize("text", ["", "--upload-pack=x", "./code@--x"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(InvalidInputError, match="write URL@REF"):
        GitSource.parse(text)


def test_a_password_in_the_address_is_not_shown() -> None:
    source = GitSource.parse("https://me:sec@ret@h.org/code@v1")
    assert source.label("0123456789abcdef") == "https://h.org/code@0123456789ab"


def test_which_words_mean_a_repository(repository: Path) -> None:
    assert names_repository("https://h.org/lab/code@v1")
    assert names_repository("git@h.org:lab/code.git")
    assert names_repository(f"{repository}@v1")
    assert not names_repository("nanogpt")
    assert not names_repository("-x")
    assert not names_repository("")


def test_a_branch_a_tag_and_a_commit_are_fetched(
    repository: Path, tmp_path: Path
) -> None:
    first = git(repository, "rev-parse", "v1")
    for ref, text in (("", "second"), ("main", "second"), ("v1", "first")):
        folder = tmp_path / (ref or "head")
        check_out(GitSource(str(repository), ref), folder)
        assert text in (folder / "train.py").read_text()
    for number, ref in enumerate((first, first[:10])):
        folder = tmp_path / str(number)
        assert check_out(GitSource(str(repository), ref), folder) == first
        assert "first" in (folder / "train.py").read_text()


@pytest.mark.parametrize("ref", ["no-such", "0123456789"])
def test_a_wrong_reference_is_one_error(
    repository: Path, tmp_path: Path, ref: str
) -> None:
    folder = tmp_path / "new"
    with pytest.raises(InvalidInputError, match="--git: cannot be fetched: "):
        check_out(GitSource(str(repository), ref), folder)
    assert not folder.exists()


def test_what_is_not_fetched_is_told(repository: Path) -> None:
    assert list(notes_of(repository)) == [
        "submodules are not fetched: lib",
        "of files in Git LFS there is only the pointer: weights.bin",
    ]


def test_a_folder_must_be_in_the_repository(repository: Path) -> None:
    assert inside(repository, None) == repository
    assert inside(repository, Path("sub")) == repository / "sub"
    for path in ("no-such", "..", "train.py", "/"):
        with pytest.raises(InvalidInputError, match="--workdir: is"):
            inside(repository, Path(path))


def test_where_git_is_in_the_shell_changes_nothing(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git(other, "init", "--quiet")
    names = {
        "GIT_DIR": other / ".git",
        "GIT_WORK_TREE": other,
        "GIT_INDEX_FILE": other / "index",
        "GIT_OBJECT_DIRECTORY": other / "objects",
        "GIT_COMMON_DIR": other / ".git",
        "GIT_NAMESPACE": "elsewhere",
    }
    for name, value in names.items():
        monkeypatch.setenv(name, str(value))
    folder = tmp_path / "code"
    check_out(GitSource(str(repository), "v1"), folder)
    assert (folder / "train.py").read_text() == "print('first')\n"
    assert sorted(path.name for path in other.iterdir()) == [".git"]
