"""A commit of a git repository, as `gpuyard run --git URL@REF` and `gpuyard new` take
it: fetched by git on this machine, with the keys and settings of who calls.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuyard.domain.errors import InvalidInputError, quoted

_FIELD = "--git"
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://")
_CREDENTIALS = re.compile(r"(?<=://)[^/]*@")
_LFS = b"version https://git-lfs.github.com/spec/"
_LFS_MOST_BYTES = 1024
_LONGEST_LABEL = 200
# With these of the shell, as in a hook of git, git would use another repository than
# ours, or make one of another sort.
_OTHER_PLACES = frozenset(
    {
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_COMMON_DIR",
        "GIT_DEFAULT_HASH",
        "GIT_DIR",
        "GIT_GRAFT_FILE",
        "GIT_IMPLICIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_NAMESPACE",
        "GIT_OBJECT_DIRECTORY",
        "GIT_PREFIX",
        "GIT_QUARANTINE_PATH",
        "GIT_REPLACE_REF_BASE",
        "GIT_SHALLOW_FILE",
        "GIT_WORK_TREE",
    }
)


@dataclass(frozen=True, slots=True)
class GitSource:
    """A repository, and the branch, tag or commit that is meant; empty for its HEAD."""

    url: str
    ref: str

    @classmethod
    def parse(cls, text: str) -> "GitSource":
        """`URL@REF` or `URL`; an @ that belongs to the URL stays there.
        InvalidInputError.
        """
        (url, found, ref) = text.rpartition("@")
        path = _SCHEME.sub("", url)
        is_ref = found and ":" not in ref and ("/" in path or ":" in path)
        source = cls(_address(url), ref) if is_ref else cls(_address(text), "")
        if not source.url or source.url.startswith("-") or source.ref.startswith("-"):
            remedy = "write URL@REF, such as https://example.org/lab/code.git@v1.2"
            raise InvalidInputError.of(_FIELD, f"is {quoted(text)}", remedy)
        return source

    @property
    def name(self) -> str:
        """What the repository is called."""
        last = re.split(r"[/:]", self.url.rstrip("/"))[-1].removesuffix(".git")
        return re.sub(r"[^\w.-]", "-", last) or "repository"

    def label(self, commit: str) -> str:
        """The commit in words, without a password that the URL may hold."""
        url = _CREDENTIALS.sub("", self.url)
        return f"{url}@{commit[:12]}"[-_LONGEST_LABEL:]


def _address(url: str) -> str:
    """The URL as git takes it in any folder."""
    is_folder = bool(url) and not url.startswith("-") and Path(url).is_dir()
    return str(Path(url).absolute()) if is_folder else url


def names_repository(text: str) -> bool:
    """Whether a word means a git repository and not a template."""
    is_address = _SCHEME.match(text) is not None or re.match(r"[\w.-]+@[\w.-]+:", text)
    path = Path(GitSource.parse(text).url) if text and text[0] != "-" else Path()
    return bool(is_address) or ("/" in text and path.is_dir())


def check_out(source: GitSource, folder: Path) -> str:
    """Fetch the commit into a new folder; its id. InvalidInputError, and then the
    folder is not there.
    """
    folder.mkdir(parents=True)
    try:
        _git(folder, "init", "--quiet")
        _fetch(source, folder)
        _git(folder, "checkout", "--quiet", "--detach", "FETCH_HEAD")
        return _git(folder, "rev-parse", "HEAD").strip()
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _fetch(source: GitSource, folder: Path) -> None:
    """Only the commit, or, from servers that do not give single commits, all."""
    ref = source.ref or "HEAD"
    try:
        _git(folder, "fetch", "--quiet", "--depth", "1", "--", source.url, ref)
        return
    except InvalidInputError:
        if not re.fullmatch(r"[0-9a-f]{7,64}", ref):
            raise
    everything = "+refs/*:refs/remotes/origin/*"
    _git(folder, "fetch", "--quiet", "--", source.url, everything)
    commit = _git(folder, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
    (folder / ".git" / "FETCH_HEAD").write_text(commit)


def _git(folder: Path, *words: str) -> str:
    """What git prints; InvalidInputError with its own last words."""
    environment = {
        name: value for name, value in os.environ.items() if name not in _OTHER_PLACES
    }
    if not sys.stdin.isatty():
        environment["GIT_TERMINAL_PROMPT"] = "0"
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            text=True,
            errors="replace",
            env=environment,
            check=False,
        )
    except FileNotFoundError:
        remedy = "install git (apt install git)"
        raise InvalidInputError.of(
            _FIELD, "needs git, which is not here", remedy
        ) from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["git failed"]
        said = next((line for line in lines if "fatal:" in line), lines[-1])
        remedy = "check the address, the branch, tag or commit, and your access"
        raise InvalidInputError.of(_FIELD, f"cannot be fetched: {said}", remedy)
    return done.stdout


def notes_of(folder: Path) -> Iterator[str]:
    """What is missing of the commit, a line each: submodules, and files of Git LFS."""
    modules = folder / ".gitmodules"
    if modules.is_file():
        text = modules.read_text(errors="replace")
        paths = re.findall(r"^\s*path\s*=\s*(.+?)\s*$", text, re.MULTILINE)
        yield f"submodules are not fetched: {', '.join(paths[:5])}"
    attributes = folder / ".gitattributes"
    if attributes.is_file() and "filter=lfs" in attributes.read_text(errors="replace"):
        pointers = [path for path in _small_files(folder) if _is_pointer(path)]
        if pointers:
            names = ", ".join(str(path.relative_to(folder)) for path in pointers[:5])
            more = "" if len(pointers) <= 5 else f" and {len(pointers) - 5} more"
            yield f"of files in Git LFS there is only the pointer: {names}{more}"


def _small_files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        is_own = ".git" in path.relative_to(folder).parts or path.is_symlink()
        if not is_own and path.is_file() and path.stat().st_size < _LFS_MOST_BYTES:
            yield path


def _is_pointer(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_LFS)) == _LFS


def new_folder(name: str) -> Path:
    """The path of a folder under the home that does not exist yet."""
    from gpuyard.config.paths import Home

    stamp = time.strftime("%Y%m%d-%H%M%S")
    folder = Home.find().runs / f"{name}-{stamp}"
    number = 1
    while folder.exists():
        number += 1
        folder = folder.with_name(f"{name}-{stamp}-{number}")
    return folder


def inside(folder: Path, path: Path | None) -> Path:
    """A folder of the repository; InvalidInputError for one that it has not."""
    if path is None:
        return folder
    found = (folder / path).resolve()
    if not found.is_relative_to(folder.resolve()) or not found.is_dir():
        remedy = "name a folder of the repository, relative to its top"
        raise InvalidInputError.of("--workdir", f"is {path}, not in it", remedy)
    return found
