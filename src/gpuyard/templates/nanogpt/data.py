"""What a model reads: a text, found by name or by path, and the tokenizers that turn it
into numbers and back.

Pure Python, so that text can be prepared where torch is not installed.
"""

import gzip
import hashlib
import http.client
import os
import re
import sysconfig
import tempfile
import urllib.request
import zlib
from collections import Counter, defaultdict
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, Self

SHAKESPEARE_URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
PACKED = Path(__file__).with_name("tinyshakespeare.txt.gz")
DOWNLOAD_TIMEOUT_S = 5.0
STDLIB_CHARACTERS = 1_100_000  # about the length of the Shakespeare text

BPE_VOCAB_SIZE = 1024
# A word with the space before it, a run of punctuation likewise, or white space: no
# character falls between them.
PIECE = re.compile(r" ?\w+| ?[^\w\s]+|\s+")


def cache_folder() -> Path:
    """Where things are kept for the next run: `$GPUYARD_CACHE`, by default
    `~/.cache/gpuyard`.
    """
    return Path(os.environ.get("GPUYARD_CACHE") or Path.home() / ".cache" / "gpuyard")


def load_text(name: str, folder: Path) -> tuple[str, str]:
    """The text called `name` and a line saying where it came from.

    `name` is `shakespeare` (the file beside this one; where that is gone, it is
    downloaded and kept in `folder`, and where that fails, a line says why and the
    standard library is read instead), `stdlib`, or the path of a UTF-8
    file. ValueError where there is no such text.
    """
    if name == "stdlib":
        return _stdlib_text(), "the Python standard library"
    if name == "shakespeare":
        try:
            return _shakespeare(folder), "tiny Shakespeare"
        except (OSError, http.client.HTTPException, ValueError) as error:
            print(
                f"cannot fetch tiny Shakespeare ({error}): taking the Python standard"
                " library instead",
                flush=True,
            )
            return _stdlib_text(), "the Python standard library"
    try:
        return Path(name).read_text(encoding="utf-8"), name
    except OSError as error:
        raise ValueError(
            f"{name} is neither shakespeare, nor stdlib, nor a readable file"
            f" ({error.strerror})"
        ) from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is not a UTF-8 text (byte {error.start})") from error


def _shakespeare(folder: Path) -> str:
    """Tiny Shakespeare from beside this file, from `folder` or from the network;
    OSError or ValueError where none has the right bytes.
    """
    if _sha256(content := _packed()) == SHAKESPEARE_SHA256:
        return content.decode()
    kept = folder / "tinyshakespeare.txt"
    if kept.is_file() and _sha256(content := kept.read_bytes()) == SHAKESPEARE_SHA256:
        return content.decode()
    with urllib.request.urlopen(
        SHAKESPEARE_URL, timeout=DOWNLOAD_TIMEOUT_S
    ) as response:
        content = response.read()
    if _sha256(content) != SHAKESPEARE_SHA256:
        raise ValueError(
            f"{SHAKESPEARE_URL} gave other bytes: sha256 {_sha256(content)}, not"
            f" {SHAKESPEARE_SHA256}"
        )
    try:
        _write_whole(kept, content)
    except OSError as error:
        print(f"the text is not kept for the next run: {error}", flush=True)
    return content.decode()


def _packed() -> bytes:
    """The text beside this file; empty where it is gone or damaged."""
    try:
        return gzip.decompress(PACKED.read_bytes())
    except (OSError, EOFError, zlib.error):
        return b""


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _write_whole(path: Path, content: bytes) -> None:
    """Write all of `content` to `path` or nothing: another run may be reading it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink()
        raise


def _stdlib_text() -> str:
    """The first 1.1 million characters of the standard library's top modules, by name.

    Modules with anything but printable ASCII are passed over, so that every Python
    gives the same 96 characters and a checkpoint can be resumed on a machine with
    another one.
    """
    text = ""
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        source = path.read_text(encoding="utf-8", errors="replace")
        if re.fullmatch(r"[\n -~]*", source):
            text += source
        if len(text) >= STDLIB_CHARACTERS:
            break
    if not text:
        raise ValueError(
            "this Python keeps no source of its standard library: pass --data FILE"
        )
    return text[:STDLIB_CHARACTERS]


class Tokenizer(Protocol):
    """Text to token ids and back; `state` holds plain values, from which
    `restore_tokenizer` makes it again.
    """

    @property
    def vocab_size(self) -> int: ...
    def encode(self, text: str) -> list[int]: ...
    def decode(self, ids: list[int]) -> str: ...
    def state(self) -> dict[str, Any]: ...


class CharTokenizer:
    """One token per character of the text it was made for."""

    def __init__(self, characters: str) -> None:
        self.characters = characters
        self._ids = {character: i for i, character in enumerate(characters)}

    @classmethod
    def train(cls, text: str) -> Self:
        return cls("".join(sorted(set(text))))

    @property
    def vocab_size(self) -> int:
        return len(self.characters)

    def encode(self, text: str) -> list[int]:
        """ValueError for a character that the tokenizer was not made for."""
        try:
            return [self._ids[character] for character in text]
        except KeyError as error:
            raise ValueError(
                f"the text has the character {error}, which this tokenizer does not"
                " know"
            ) from error

    def decode(self, ids: list[int]) -> str:
        return "".join(self.characters[i] for i in ids)

    def state(self) -> dict[str, Any]:
        return {"kind": "char", "characters": self.characters}


class BpeTokenizer:
    """Byte-level byte-pair encoding: 256 bytes, then one token per merge, in the order
    they were learned.

    Any text can be encoded, since any text is bytes. Merges stay within the pieces that
    `PIECE` cuts.
    """

    def __init__(self, merges: list[tuple[int, int]]) -> None:
        self.merges = merges
        self._ids = {pair: 256 + i for i, pair in enumerate(merges)}
        self._bytes = [bytes([i]) for i in range(256)]
        for left, right in merges:
            self._bytes.append(self._bytes[left] + self._bytes[right])
        self._pieces: dict[str, list[int]] = {}

    @classmethod
    def train(cls, text: str, vocab_size: int = BPE_VOCAB_SIZE) -> Self:
        """Merge the commonest pair of neighbours again and again, until `vocab_size` or
        until none comes twice.
        """
        counted = Counter(PIECE.findall(text))
        words = [list(piece.encode()) for piece in counted]
        times = list(counted.values())
        pairs: Counter[tuple[int, int]] = Counter()
        homes: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
        for i, word in enumerate(words):
            for pair in pairwise(word):
                pairs[pair] += times[i]
                homes[pair].add(i)
        merges: list[tuple[int, int]] = []
        while pairs and 256 + len(merges) < vocab_size:
            best = max(pairs, key=pairs.__getitem__)
            if pairs[best] < 2:
                break
            for i in homes.pop(best):
                for pair in pairwise(words[i]):
                    pairs[pair] -= times[i]
                words[i] = _merge(words[i], best, 256 + len(merges))
                for pair in pairwise(words[i]):
                    pairs[pair] += times[i]
                    homes[pair].add(i)
            merges.append(best)
        return cls(merges)

    @property
    def vocab_size(self) -> int:
        return len(self._bytes)

    def encode(self, text: str) -> list[int]:
        return [i for piece in PIECE.findall(text) for i in self._encode_piece(piece)]

    def _encode_piece(self, piece: str) -> list[int]:
        """The earliest learned merge first, as in training; remembered, since a text
        repeats its words.
        """
        known = self._pieces.get(piece)
        if known is not None:
            return known
        ids = list(piece.encode())
        while len(ids) > 1:
            best = min(
                pairwise(ids), key=lambda pair: self._ids.get(pair, self.vocab_size)
            )
            if best not in self._ids:
                break
            ids = _merge(ids, best, self._ids[best])
        self._pieces[piece] = ids
        return ids

    def decode(self, ids: list[int]) -> str:
        """The text; bytes that are no UTF-8, as a model may make them up, become
        U+FFFD.
        """
        return b"".join(self._bytes[i] for i in ids).decode(errors="replace")

    def state(self) -> dict[str, Any]:
        return {"kind": "bpe", "merges": self.merges}


class Gpt2Tokenizer:
    """GPT-2's own byte-pair encoding, 50257 tokens, from tiktoken, which downloads the
    table once.
    """

    def __init__(self) -> None:
        """ImportError without tiktoken, OSError where its table cannot be
        downloaded.
        """
        import tiktoken

        self._encoding = tiktoken.get_encoding("gpt2")

    @property
    def vocab_size(self) -> int:
        return self._encoding.n_vocab

    def encode(self, text: str) -> list[int]:
        return self._encoding.encode_ordinary(text)

    def decode(self, ids: list[int]) -> str:
        return self._encoding.decode(ids)

    def state(self) -> dict[str, Any]:
        return {"kind": "gpt2"}


def make_tokenizer(kind: str, text: str) -> Tokenizer:
    """A `char` or `bpe` tokenizer for `text`; `bpe` is GPT-2's where tiktoken has it,
    else learned from the text.
    """
    if kind == "char":
        return CharTokenizer.train(text)
    if find_spec("tiktoken"):
        try:
            return Gpt2Tokenizer()
        except OSError as error:
            print(
                f"tiktoken cannot download GPT-2's tokens ({error}): learning tokens"
                " from the text",
                flush=True,
            )
    return BpeTokenizer.train(text)


def restore_tokenizer(state: dict[str, Any]) -> Tokenizer:
    """The tokenizer that gave `state`; ImportError or OSError where it is GPT-2's and
    tiktoken has not got it.
    """
    match state["kind"]:
        case "char":
            return CharTokenizer(state["characters"])
        case "bpe":
            return BpeTokenizer(state["merges"])
        case _:
            return Gpt2Tokenizer()


def _merge(ids: list[int], pair: tuple[int, int], new: int) -> list[int]:
    """`ids` with each `pair` of neighbours, from the left, replaced by `new`."""
    merged: list[int] = []
    for i in ids:
        if merged and (merged[-1], i) == pair:
            merged[-1] = new
        else:
            merged.append(i)
    return merged
