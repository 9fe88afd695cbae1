"""Public data sets are fetched from a real HTTP server, and go on where they were."""

import hashlib
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from gpuyard.client.dataset_catalogue import CatalogueEntry, entry_of, read_catalogue
from gpuyard.client.dataset_download import Download
from gpuyard.domain.errors import (
    InvalidInputError,
    NotFoundError,
    RefusedError,
    UnreachableError,
)

CONTENT = bytes(range(256)) * 4000


@dataclass
class Publisher:
    """What the server publishes; it breaks off after `most` bytes of an answer."""

    url: str = ""
    content: bytes = CONTENT
    most: int | None = None
    takes_ranges: bool = True
    asked: list[str | None] = field(default_factory=list[str | None])


@pytest.fixture
def publisher() -> Iterator[Publisher]:
    made = Publisher()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            made.asked.append(asked)
            begin = re.fullmatch(r"bytes=(\d+)-", asked or "")
            first = int(begin[1]) if begin and made.takes_ranges else 0
            if first >= len(made.content):
                self.send_error(416)
                return
            body = made.content[first:]
            self.send_response(206 if first else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: made.most])

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        made.url = f"http://127.0.0.1:{server.server_port}/files/data.bin?raw=1"
        yield made
        server.shutdown()
        thread.join()


def entry(publisher: Publisher, *, known: bool) -> CatalogueEntry:
    sha256 = hashlib.sha256(CONTENT).hexdigest() if known else None
    return CatalogueEntry(name="data", url=publisher.url, sha256=sha256)


def test_what_was_broken_off_goes_on(publisher: Publisher, tmp_path: Path) -> None:
    download = Download(entry(publisher, known=True), tmp_path)
    told: list[tuple[int, int | None]] = []
    publisher.most = 600_000
    with pytest.raises(UnreachableError, match="could not be fetched"):
        download.fetch(lambda *known: told.append(known))
    publisher.most = None
    download.fetch(lambda *known: told.append(known))
    assert publisher.asked == [None, "bytes=600000-"]
    assert download.path.name == "data.bin"
    assert download.path.read_bytes() == CONTENT
    assert told[-1] == (len(CONTENT), len(CONTENT))
    download.remove()
    assert not list(tmp_path.rglob("data.bin*"))


def test_a_server_that_knows_no_ranges_sends_all_again(
    publisher: Publisher, tmp_path: Path
) -> None:
    download = Download(entry(publisher, known=True), tmp_path)
    publisher.most = 1000
    with pytest.raises(UnreachableError):
        download.fetch(lambda *_: None)
    publisher.most = None
    publisher.takes_ranges = False
    download.fetch(lambda *_: None)
    assert download.path.read_bytes() == CONTENT


def test_another_content_than_the_known_one_is_refused(
    publisher: Publisher, tmp_path: Path
) -> None:
    publisher.content = b"something else"
    download = Download(entry(publisher, known=True), tmp_path)
    assert not download.is_first
    with pytest.raises(RefusedError, match="the one of the catalogue is"):
        download.fetch(lambda *_: None)
    assert not list(tmp_path.rglob("data.bin*")), "it is not taken for a beginning"


def test_without_a_known_hash_that_of_the_first_fetch_counts(
    publisher: Publisher, tmp_path: Path
) -> None:
    download = Download(entry(publisher, known=False), tmp_path)
    assert download.is_first
    assert download.fetch(lambda *_: None) == hashlib.sha256(CONTENT).hexdigest()
    assert not download.is_first
    publisher.content = b"changed"
    with pytest.raises(RefusedError, match="the one that was seen first is"):
        download.fetch(lambda *_: None)


def test_our_catalogue_names_hashes_and_licences() -> None:
    catalogue = read_catalogue()
    texts = {"tiny-shakespeare", "openwebtext", "wikitext-103", "imdb"}
    assert {"mnist", "cifar-10", "cifar-100"} | texts <= set(catalogue)
    # Nothing that is fetched is believed unseen.
    unknown = {"", "unknown"}
    for one in catalogue.values():
        assert one.sha256, one.name
        assert one.size, one.name
        assert one.title, one.name
        assert one.license not in unknown, one.name
    with pytest.raises(NotFoundError, match="The catalogue has no nonsense"):
        entry_of(catalogue, "nonsense")


def test_tiny_shakespeare_is_in_the_package(tmp_path: Path) -> None:
    known = read_catalogue()["tiny-shakespeare"]
    nowhere = known.model_copy(update={"url": "http://127.0.0.1:1/input.txt"})
    download = Download(nowhere, tmp_path)
    assert download.fetch(lambda *_: None) == known.sha256
    assert download.path.name == "input.txt"
    assert download.path.stat().st_size == known.size


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("[x]\nurl = 'ftp://x/y'", "x.url"),
        ("[x]\nurl = 'https://x/y'\nsha256 = 'ab'", "x.sha256"),
        ("[x]\nurl = 'https://x/y'\ncolour = 1", "x.colour"),
        ("[x]\nurl = 'https://x/y'\npackaged = '../../z'", "x.packaged"),
        ("x = 1", "x"),
        ("[x", "--catalogue"),
    ],
)
def test_a_bad_catalogue_is_refused_with_the_field(
    tmp_path: Path, text: str, field: str
) -> None:
    (tmp_path / "own.toml").write_text(text)
    with pytest.raises(InvalidInputError) as refused:
        read_catalogue(tmp_path / "own.toml")
    assert refused.value.faults[0].field == field
