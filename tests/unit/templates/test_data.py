"""The text that a model reads, from the network, the disk or Python itself, and its
tokenizers.
"""

import hashlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

PLAY = "First Citizen:\nBefore we proceed any further, hear me speak.\n" * 40


class Library(ThreadingHTTPServer):
    """Serves `content` with `status` at every path, and counts how often it was
    asked.
    """

    content = PLAY.encode()
    status = 200
    asked = 0


class _Reply(BaseHTTPRequestHandler):
    server: Library

    def do_GET(self) -> None:
        self.server.asked += 1
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.content)))
        self.end_headers()
        self.wfile.write(self.server.content)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def data(load: Callable[[str], ModuleType]) -> ModuleType:
    return load("data")


@pytest.fixture
def library(data: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Iterator[Library]:
    """A server that stands for the one that has the Shakespeare text, whose hash is the
    play's; the text beside the program is gone.
    """
    monkeypatch.setattr(data, "PACKED", Path("/nowhere"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Library(("127.0.0.1", 0), _Reply) as server:
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.01}
        )
        thread.start()
        monkeypatch.setattr(
            data, "SHAKESPEARE_URL", f"http://127.0.0.1:{server.server_port}/input.txt"
        )
        monkeypatch.setattr(
            data, "SHAKESPEARE_SHA256", hashlib.sha256(PLAY.encode()).hexdigest()
        )
        yield server
        server.shutdown()
        thread.join()


def test_shakespeare_is_fetched_once_and_kept_whole(
    data: ModuleType, library: Library, tmp_path: Path
) -> None:
    folder = tmp_path / "cache" / "datasets"
    assert data.load_text("shakespeare", folder) == (PLAY, "tiny Shakespeare")
    assert data.load_text("shakespeare", folder) == (PLAY, "tiny Shakespeare")
    assert library.asked == 1
    assert [path.read_text() for path in folder.iterdir()] == [PLAY]


def test_a_kept_text_that_went_bad_is_fetched_again(
    data: ModuleType, library: Library, tmp_path: Path
) -> None:
    (tmp_path / "tinyshakespeare.txt").write_text(PLAY[:100])
    assert data.load_text("shakespeare", tmp_path)[0] == PLAY
    assert library.asked == 1
    assert (tmp_path / "tinyshakespeare.txt").read_text() == PLAY


def test_wrong_bytes_are_told_and_not_kept(
    data: ModuleType,
    library: Library,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    library.content = b"<html>Please log in</html>"
    text, source = data.load_text("shakespeare", tmp_path)
    assert source == "the Python standard library"
    assert "def " in text
    told = capsys.readouterr().out
    assert told.count("\n") == 1
    assert hashlib.sha256(library.content).hexdigest() in told
    assert "standard library instead" in told
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_has_it_not_and_none_at_all(
    data: ModuleType,
    library: Library,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library.status = 404
    assert data.load_text("shakespeare", tmp_path)[1] == "the Python standard library"
    assert "404" in capsys.readouterr().out
    monkeypatch.setattr(data, "SHAKESPEARE_URL", "http://127.0.0.1:1/input.txt")
    assert data.load_text("shakespeare", tmp_path)[1] == "the Python standard library"
    assert capsys.readouterr().out.count("\n") == 1


def test_a_text_that_cannot_be_kept_is_used(
    data: ModuleType,
    library: Library,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").touch()
    assert data.load_text("shakespeare", tmp_path / "file" / "datasets")[0] == PLAY
    assert "not kept" in capsys.readouterr().out


def test_the_standard_library_is_always_the_same(
    data: ModuleType, tmp_path: Path
) -> None:
    text, _ = data.load_text("stdlib", tmp_path)
    assert text == data.load_text("stdlib", tmp_path)[0]
    assert 100_000 < len(text) <= data.STDLIB_CHARACTERS
    assert set(text) <= {"\n", *map(chr, range(32, 127))}


def test_own_text_and_what_is_none(data: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("Grüße\n", encoding="utf-8")
    assert data.load_text(str(tmp_path / "own.txt"), tmp_path) == (
        "Grüße\n",
        str(tmp_path / "own.txt"),
    )
    with pytest.raises(ValueError, match="nor a readable file"):
        data.load_text(str(tmp_path / "absent.txt"), tmp_path)
    with pytest.raises(ValueError, match="nor a readable file"):
        data.load_text(str(tmp_path), tmp_path)
    (tmp_path / "latin.txt").write_bytes("Grüße".encode("latin-1"))
    with pytest.raises(ValueError, match="not a UTF-8 text"):
        data.load_text(str(tmp_path / "latin.txt"), tmp_path)


def test_the_cache_is_where_the_environment_says(
    data: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUYARD_CACHE", "/elsewhere")
    assert data.cache_folder() == Path("/elsewhere")
    monkeypatch.delenv("GPUYARD_CACHE")
    assert data.cache_folder() == Path.home() / ".cache" / "gpuyard"


def test_char_tokenizer_gives_back_every_text_over_its_characters(
    data: ModuleType,
) -> None:
    @given(st.text(min_size=1))
    def gives_back(text: str) -> None:
        tokenizer = data.CharTokenizer.train(text)
        assert tokenizer.vocab_size == len(set(text))
        assert tokenizer.decode(tokenizer.encode(text)) == text
        assert (
            tokenizer.decode(data.restore_tokenizer(tokenizer.state()).encode(text))
            == text
        )

    gives_back()


def test_char_tokenizer_names_a_character_it_does_not_know(data: ModuleType) -> None:
    with pytest.raises(ValueError, match="character 'z'"):
        data.CharTokenizer.train("abc").encode("abz")


def test_bpe_tokenizer_gives_back_every_text_whatever_it_learned_from(
    data: ModuleType,
) -> None:
    @given(learned=st.text(), text=st.text())
    def gives_back(learned: str, text: str) -> None:
        tokenizer = data.BpeTokenizer.train(learned + learned)
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert all(0 <= i < tokenizer.vocab_size for i in ids)
        assert data.restore_tokenizer(tokenizer.state()).encode(text) == ids

    gives_back()


def test_bpe_tokenizer_learns_the_commonest_pairs_first(data: ModuleType) -> None:
    tokenizer = data.BpeTokenizer.train("abab abab cd", vocab_size=258)
    assert tokenizer.merges == [(ord("a"), ord("b")), (256, 256)]
    assert tokenizer.encode("ababab") == [257, 256]
    assert tokenizer.encode("aaa") == [ord("a")] * 3


def test_bpe_tokenizer_stops_when_nothing_repeats(data: ModuleType) -> None:
    assert data.BpeTokenizer.train("abc").vocab_size == 256
    assert data.BpeTokenizer.train("").vocab_size == 256


def test_bpe_tokenizer_shortens_a_text_like_the_one_it_learned(
    data: ModuleType,
) -> None:
    tokenizer = data.BpeTokenizer.train(PLAY)
    assert len(tokenizer.encode(PLAY)) < len(PLAY) / 3
    assert tokenizer.vocab_size <= data.BPE_VOCAB_SIZE


def test_bytes_that_are_no_text_are_shown_as_such(data: ModuleType) -> None:
    assert data.BpeTokenizer([]).decode([0xFF, ord("a")]) == "\ufffda"
