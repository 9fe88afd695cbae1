"""Real public training scripts: fetched when they are read, and never kept here.

A row of a manifest names a script, the command that starts it, and what a person who
read it says that it needs.
"""

import json
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

from gpuyard.cli.recommend import recommendation_for
from gpuyard.domain.errors import InvalidInputError

UNKNOWN = "not known"
NO_GPU = "no GPU"
SIZES_GB = (16, 24, 48, 80)
CLASSES = (NO_GPU, *(f"{size} GB" for size in SIZES_GB), "more", UNKNOWN)
# What stands for a program that could not be read.
_REFUSED: dict[str, Any] = {
    "needs": {"gpus": None},
    "needed_gb": None,
    "parameters": None,
    "confidence": "low",
}
_USABLE = 0.95
_TEXTS = (".py", ".ipynb", ".yaml", ".yml", ".json", ".toml", ".sh")
_LONGEST = 2_000_000


@dataclass(frozen=True, slots=True)
class Script:
    """A real script. `source` is a package with its version, or a repository;
    `archive` is the form of the package, `wheel` or `sdist`; `folder` is where the command `words` is given; `half` is `development`,
    `held out`, `afterwards` or `read once`.

    `memory_gb` is the least and the most that each GPU needs; None: the script does
    not say its model, or uses no GPU. `millions` counts weights, where a person can.
    """

    source: str
    archive: str | None
    commit: str | None
    path: str
    digest: str
    folder: str
    words: tuple[str, ...]
    gpus: int
    memory_gb: tuple[float, float] | None
    millions: float | None
    half: str

    @property
    def expected(self) -> tuple[str, ...]:
        """The classes that are right, the most likely one first."""
        if self.gpus == 0:
            return (NO_GPU,)
        if self.memory_gb is None:
            return (UNKNOWN,)
        (least, most) = self.memory_gb
        likely = class_of(1, (least * most) ** 0.5)
        first, last = (CLASSES.index(class_of(1, gb)) for gb in (least, most))
        others = [each for each in CLASSES[first : last + 1] if each != likely]
        return (likely, *others)


def scripts_of(manifest: Path) -> list[Script]:
    """The rows of a manifest."""
    rows: list[dict[str, Any]] = json.loads(manifest.read_text())["scripts"]
    return [
        Script(
            source=row.get("package") or row["repository"],
            archive=row.get("archive"),
            commit=row.get("commit"),
            path=row["path"],
            digest=row["sha256"],
            folder=row["folder"],
            words=tuple(row["words"]),
            gpus=row["gpus"],
            memory_gb=tuple(row["memory_gb"]) if row["memory_gb"] else None,
            millions=row["millions"],
            half=row.get("half", "development"),
        )
        for row in rows
    ]


def class_of(gpus: int, needed_gb: float | None) -> str:
    """The class of GPU for so much memory; a part of a GPU's memory is never free."""
    if gpus == 0:
        return NO_GPU
    if needed_gb is None:
        return UNKNOWN
    for size in SIZES_GB:
        if needed_gb <= size * _USABLE:
            return f"{size} GB"
    return "more"


def read_in(script: Script, root: Path) -> dict[str, Any]:
    """What gpuyard reads off a script whose source lies in `root`."""
    path = root / script.path
    found = sha256(path.read_bytes()).hexdigest()
    assert found == script.digest, f"{script.source} has another {script.path}"
    try:
        return recommendation_for(list(script.words), root / script.folder)
    except InvalidInputError as error:
        return {**_REFUSED, "unknown": [str(error)]}


def found_class(found: dict[str, Any]) -> str:
    """The class that a recommendation says."""
    if found["needs"]["gpus"] is None:
        return UNKNOWN
    return class_of(found["needs"]["gpus"], found["needed_gb"])


def package_in(cache: Path, script: Script) -> Path:
    """The folder of a package's files, which pip downloads if they are not there."""
    folder = cache / script.source
    if not folder.exists():
        downloads = cache / "downloads" / script.source
        if not downloads.exists():
            _download(script, downloads)
        (archive,) = downloads.iterdir()
        _unpack(archive, folder)
    return folder


def _download(script: Script, folder: Path) -> None:
    """Nothing of the package is installed or run."""
    part = folder.with_name(f"{folder.name}.part")
    form = ["--no-binary", ":all:"]
    if script.archive == "wheel":
        form = ["--only-binary", ":all:", "--python-version", "3.10"]
    download = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet"]
    # It is only read.
    download.append("--ignore-requires-python")
    done = subprocess.run(
        [*download, *form, "--dest", str(part), script.source],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"pip cannot download {script.source}: {done.stderr}"
    part.rename(folder)


def _unpack(archive: Path, folder: Path) -> None:
    part = folder.with_suffix(".part")
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as opened:
            opened.extractall(part)
    else:
        with tarfile.open(archive) as opened:
            opened.extractall(part, filter="data")
        (part,) = part.iterdir()
    part.rename(folder)


def repository_in(cache: Path, clones: Path, script: Script) -> Path:
    """The folder of a repository's texts at the script's commit, from its clone
    `clones/OWNER+NAME`: a git directory, or a folder that has one.
    """
    assert script.commit is not None
    folder = cache / script.source / script.commit
    if not folder.exists():
        part = folder.with_suffix(".part")
        for path, content in _texts_of(_git_folder(clones, script), script.commit):
            (part / path).parent.mkdir(parents=True, exist_ok=True)
            (part / path).write_bytes(content)
        part.rename(folder)
    return folder


def _git_folder(clones: Path, script: Script) -> Path:
    clone = clones / script.source.replace("/", "+")
    for folder in (clone / ".git", clone / "repo" / ".git", clone / "repo", clone):
        if (folder / "HEAD").exists():
            return folder
    raise AssertionError(f"there is no clone of {script.source} in {clone}")


def _texts_of(git: Path, commit: str) -> list[tuple[str, bytes]]:
    """The paths and contents of a commit's small texts, of those that are there."""
    listed = _git(git, ["ls-tree", "-r", "-z", commit]).decode().split("\0")
    rows = [line.split("\t", 1) for line in listed if line]
    named = [(head.split()[2], path) for head, path in rows if path.endswith(_TEXTS)]
    words = "".join(f"{digest}\n" for digest, _ in named).encode()
    stream = BytesIO(_git(git, ["cat-file", "--batch"], words))
    found: list[tuple[str, bytes]] = []
    for _, path in named:
        head = stream.readline().split()
        if head[-1] == b"missing":
            continue
        content = stream.read(int(head[2]))
        stream.read(1)
        if len(content) <= _LONGEST:
            found.append((path, content))
    return found


def _git(folder: Path, words: Sequence[str], given: bytes = b"") -> bytes:
    done = subprocess.run(
        ["git", "--git-dir", str(folder), *words], input=given, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout
