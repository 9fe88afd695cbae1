"""Fetches the file of a public data set, goes on where it was broken off, and checks
its hash. What is part of this package is unpacked instead.
"""

import gzip
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import IO, Any

import httpx

from gpuyard.client.dataset_catalogue import CatalogueEntry
from gpuyard.domain.errors import RefusedError, UnreachableError

_PARTIAL_CONTENT = 206
_NOT_SATISFIABLE = 416
_TIMEOUT_S = 60.0
Tell = Callable[[int, int | None], object]
"""Is told how many bytes are here, and of how many, if that is known."""


def downloads() -> Path:
    """The folder of downloads: in `$GPUYARD_CACHE`, by default `~/.cache/gpuyard`."""
    cache = os.environ.get("GPUYARD_CACHE")
    return (Path(cache) if cache else Path.home() / ".cache/gpuyard") / "downloads"


class Download:
    """The file of one entry, on its way into a folder of its own below `folder`."""

    def __init__(self, entry: CatalogueEntry, folder: Path) -> None:
        self._entry = entry
        key = hashlib.sha256(entry.url.encode()).hexdigest()[:16]
        self._own = folder / f"{entry.name}-{key}"
        self._seen = folder / "first-seen.json"
        self.path = self._own / entry.file
        self._partial = self._own / f"{entry.file}.partial"

    def fetch(self, tell: Tell) -> str:
        """Fetch it; its SHA-256. RefusedError if that is not the known one, or not the
        one that was seen first; UnreachableError if it is broken off: then the next
        call goes on.
        """
        self._own.mkdir(parents=True, exist_ok=True)
        if self._entry.packaged is None:
            self._download(tell)
        else:
            self._unpack(self._entry.packaged)
        found = _sha256_of(self._partial)
        self._check(found)
        self._partial.replace(self.path)
        return found

    def _unpack(self, packaged: str) -> None:
        with (
            files("gpuyard").joinpath(packaged).open("rb") as packed,
            gzip.open(packed) as content,
            self._partial.open("wb") as target,
        ):
            shutil.copyfileobj(content, target)

    def _download(self, tell: Tell) -> None:
        try:
            with httpx.Client(follow_redirects=True, timeout=_TIMEOUT_S) as client:
                self._receive(client, tell)
        except httpx.HTTPError as error:
            raise UnreachableError(
                f"{self._entry.url} could not be fetched: {error or type(error)}.",
                "The same command goes on where it was.",
            ) from None

    @property
    def is_first(self) -> bool:
        """Whether nobody knows its hash yet: neither the catalogue nor this cache."""
        return self._entry.sha256 is None and self._entry.url not in self._first_seen()

    def remove(self) -> None:
        """Remove what was fetched."""
        self.path.unlink(missing_ok=True)
        self._partial.unlink(missing_ok=True)

    def _receive(self, client: httpx.Client, tell: Tell) -> None:
        have = self._partial.stat().st_size if self._partial.exists() else 0
        headers = {"Range": f"bytes={have}-"} if have else {}
        headers["Accept-Encoding"] = "identity"
        with client.stream("GET", self._entry.url, headers=headers) as answer:
            if answer.status_code == _NOT_SATISFIABLE and have:
                return  # all of it is here; its hash will tell
            answer.raise_for_status()
            goes_on = answer.status_code == _PARTIAL_CONTENT
            have = have if goes_on else 0
            length = answer.headers.get("Content-Length")
            total = have + int(length) if length else self._entry.size
            with self._partial.open("ab" if goes_on else "wb") as file:
                _copy(answer, file, have, total, tell)

    def _check(self, found: str) -> None:
        known = self._entry.sha256 or self._first_seen().get(self._entry.url)
        if known is None:
            seen = {**self._first_seen(), self._entry.url: found}
            self._seen.write_text(json.dumps(seen, indent=1))
        elif found != known:
            self._partial.unlink()
            which = "of the catalogue" if self._entry.sha256 else "that was seen first"
            raise RefusedError(
                f"{self._entry.url} has another content than it should: its SHA-256 is"
                f" {found}, and the one {which} is {known}.",
                "Try again; if it stays so, its publisher has changed it: to trust it"
                " all the same, fetch it yourself and name its path.",
            )

    def _first_seen(self) -> dict[str, str]:
        try:
            found: Any = json.loads(self._seen.read_text())
        except (OSError, ValueError):
            return {}
        return found


def _copy(
    answer: httpx.Response, file: IO[bytes], have: int, total: int | None, tell: Tell
) -> None:
    # As it comes: a larger part would be lost when the connection ends.
    for part in answer.iter_raw():
        file.write(part)
        have += len(part)
        tell(have, total)


def _sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
