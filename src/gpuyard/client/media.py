"""From a folder, a glob, a manifest or an archive to the items of a batch, with how
long their media play.

A manifest has an item a line: a path, relative to the manifest, or an object such as
{"path": …, "args": {…}}.
"""

import glob
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from gpuyard.domain.errors import InvalidInputError

MEDIA = frozenset(
    {
        ".webm",
        ".mp4",
        ".mkv",
        ".mov",
        ".avi",
        ".m4v",
        ".mpg",
        ".mpeg",
        ".ts",
        ".flv",
        ".wmv",
        ".ogv",
        ".mp3",
        ".wav",
        ".flac",
        ".ogg",
        ".opus",
        ".m4a",
        ".aac",
    }
)
TEXT = frozenset({".txt", ".md", ".rst", ".html", ".htm", ".json", ".csv"})
# What a script takes of a folder; any other script takes every file.
_TAKES = {
    "whisper_transcribe": MEDIA,
    "transcribe": MEDIA,
    "extract_keyframes": MEDIA,
    "embed_768": TEXT,
    "embed_1536": TEXT,
    "embed": TEXT,
}
_MANIFESTS = frozenset({".jsonl", ".manifest"})
Item = dict[str, Any]
Progress = Callable[[int, int], None]


def expand(script: str, source: str, most: int | None = None) -> list[Item]:
    """The items of `source` in order, at most so many; InvalidInputError when there are
    none.
    """
    path = Path(source)
    takes = _TAKES.get(script)
    if path.suffix == ".zim":
        found = _archive(path, takes)
    elif path.is_dir():
        found = _files(sorted(path.rglob("*")), takes)
    elif path.suffix in _MANIFESTS or (path.suffix == ".txt" and takes is MEDIA):
        found = _manifest(path)
    elif path.is_file():
        found = iter([{"path": str(path.absolute())}])
    elif glob.has_magic(source):
        found = _files(map(Path, sorted(glob.glob(source, recursive=True))), takes)  # noqa: PTH207  it may be absolute
    else:
        raise InvalidInputError.of(
            "PATH",
            f"there is no {source}",
            "give a folder, a glob, a manifest or a .zim",
        )
    items = [item for item, _ in zip(found, range(most or 10**9), strict=False)]
    if not items:
        kinds = f" ({', '.join(sorted(takes))})" if takes else ""
        raise InvalidInputError.of(
            "PATH", f"{source} has nothing for {script}{kinds}", "look at what is in it"
        )
    return items


def _files(paths: Iterable[Path], takes: frozenset[str] | None) -> Iterator[Item]:
    for path in paths:
        if path.is_file() and (takes is None or path.suffix.lower() in takes):
            yield {"path": str(path.absolute())}


def _manifest(path: Path) -> Iterator[Item]:
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError.of(
            "PATH", f"{path} cannot be read: {error}", "give a text file"
        ) from None
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        item: Any = {"path": line.strip()}
        if line.lstrip().startswith("{"):
            with suppress(ValueError):
                item = json.loads(line)
        if not isinstance(item.get("path"), str):
            raise InvalidInputError.of(
                f"{path}:{number}", "names no path", 'write a path, or {"path": …}'
            )
        yield {**item, "path": str(path.parent.absolute() / item["path"])}


# --- archives ---


def _open_archive(path: Path) -> Any:
    try:
        from libzim.reader import Archive
    except ImportError:
        raise InvalidInputError.of(
            "PATH", "is a ZIM archive", "pip install 'gpuyard[zim]' to read it"
        ) from None
    try:
        return Archive(path.absolute())
    except RuntimeError as error:
        raise InvalidInputError.of(
            "PATH", f"{path} is no whole ZIM archive: {error}", "fetch it anew"
        ) from None


def _archive(path: Path, takes: frozenset[str] | None) -> Iterator[Item]:
    """Its entries that the script takes, told by their ending, or by their type where
    they have none.
    """
    if not path.is_file():
        raise InvalidInputError.of(
            "PATH", f"there is no {path}", "give a folder, a glob, a manifest or a .zim"
        )
    archive = _open_archive(path)
    media = takes is MEDIA
    try:
        for number in range(archive.entry_count):
            entry = archive._get_entry_by_id(number)  # pyright: ignore  (there is no other way to list entries)
            if entry.is_redirect:
                continue
            suffix = Path(entry.path).suffix.lower()
            kind = entry.get_item().mimetype.split("/")[0]
            if (
                takes is None
                or suffix in takes
                or (media and not suffix and kind in ("video", "audio"))
            ):
                yield {"path": str(path.absolute()), "entry": entry.path}
    except RuntimeError as error:
        raise InvalidInputError.of(
            "PATH", f"{path} is no whole ZIM archive: {error}", "fetch it anew"
        ) from None


class _Bytes:
    """An entry's content as a file, of which nothing is copied but what is read."""

    def __init__(self, content: memoryview) -> None:
        self._content = content
        self._at = 0

    def read(self, size: int = -1) -> bytes:
        """The next bytes."""
        end = len(self._content) if size < 0 else self._at + size
        part = bytes(self._content[self._at : end])
        self._at += len(part)
        return part

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go there."""
        self._at = max((0, self._at, len(self._content))[whence] + offset, 0)
        return self._at

    def tell(self) -> int:
        """Where it is."""
        return self._at


# --- durations ---


def probe(items: list[Item], seen: Progress = lambda _n, _of: None) -> bool:
    """Fill in `seconds` where an item is media that can be read; False when nothing
    here can read media.
    """
    try:
        import av
        from av.error import FFmpegError
    except ImportError:
        return False
    archives: dict[str, Any] = {}
    for number, item in enumerate(items, 1):
        with suppress(FFmpegError, OSError, RuntimeError, KeyError):
            media: Any = av.open(_readable(item, archives))
            if media.duration:
                item["seconds"] = media.duration / 1e6
            media.close()
        seen(number, len(items))
    return True


def _readable(item: Item, archives: dict[str, Any]) -> Any:
    if "entry" not in item:
        return item["path"]
    path = item["path"]
    archive = archives.get(path) or archives.setdefault(path, _open_archive(Path(path)))
    return _Bytes(archive.get_entry_by_path(item["entry"]).get_item().content)


def is_media(script: str) -> bool:
    """Whether the script's items are media, whose length tells how long they take."""
    return _TAKES.get(script, MEDIA) is MEDIA
