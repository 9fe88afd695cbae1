"""Files that solvers send in pieces: unpacked within bounds, and read as exactly what was asked for.

Whatever an executor sends, no more than one piece is in memory while it arrives; the rest lies in a temporary file.
Answers are read key by key in the order that their canonical form prescribes, so that nothing is ever built from a
file that is not the map of these very prompts.
"""

import hashlib
import json
import tempfile
import zlib
from collections.abc import Collection, Iterable
from json.decoder import JSONDecoder
from typing import Any, cast

from gpuyard.domain.errors import quoted
from gpuyard.verification.protocol import Piece

MOST_BYTES = 64 << 20
# A token's text is hardly ever longer; the longest of today's vocabularies are runs of 128 spaces.
_BYTES_PER_TOKEN = 256
# A control character is written as six.
_BYTES_PER_CHARACTER = 6
# What zipping may add to what cannot be zipped; a stream that unpacks to nothing has no other bound.
_OVERHEAD = 1 << 16
_IN_MEMORY = 1 << 16
_BLOCK = 1 << 16
_decode_text = JSONDecoder(strict=True).raw_decode


class AnswersError(Exception):
    """A file is not what it should be. The text tells a person what is wrong, and what would be right."""


def most_bytes(prompts: Iterable[str], max_tokens: int) -> int:
    """The largest file of answers that an honest executor can send, at most 64 MiB."""
    sizes = (len(_json(prompt).encode()) + 4 + max_tokens * _BYTES_PER_TOKEN for prompt in prompts)
    return min(2 + sum(sizes), MOST_BYTES)


class Parcel:
    """A file that arrives in pieces. `sha256` is that of what has come so far, unpacked."""

    def __init__(self, limit: int = MOST_BYTES) -> None:
        self._limit = limit
        self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115  # closed by close()
        self._unzip = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        self._digest = hashlib.sha256()
        self._parts, self._of, self._received = 0, 0, 0
        self.size = 0

    @property
    def complete(self) -> bool:
        """Whether the last piece is there."""
        return 0 < self._of == self._parts

    @property
    def sha256(self) -> str:
        """In hexadecimal."""
        return self._digest.hexdigest()

    def add(self, piece: Piece) -> None:
        """The next piece. Raises `AnswersError`, after which the parcel is of no use, or `ProtocolError`."""
        if piece.part != self._parts or piece.part >= piece.of:
            raise AnswersError(f"part: {piece.part} of {piece.of} came where {self._parts} was due")
        if self._parts and piece.of != self._of:
            raise AnswersError(f"of: was {self._of} and is now {piece.of}")
        self._parts, self._of = self._parts + 1, piece.of
        self._unpack(piece.bytes())
        if self.complete and not self._unzip.eof:
            raise AnswersError("data: the gzip stream ends in its middle")

    def read(self) -> bytes:
        """The whole file, unpacked. Raises `AnswersError` where pieces are missing."""
        if not self.complete:
            raise AnswersError(f"part: only {self._parts} of {self._of or 'all'} pieces came")
        self._file.seek(0)
        return self._file.read()

    def close(self) -> None:
        """Forget it."""
        self._file.close()

    def _unpack(self, data: bytes) -> None:
        self._received += len(data)
        if self._received > self._limit + _OVERHEAD:
            raise AnswersError(f"data: zipped it has more than the {self._limit:,} bytes that can be right")
        while data:
            if self._unzip.eof:
                raise AnswersError("data: something follows the end of the gzip stream")
            try:
                block = self._unzip.decompress(data, _BLOCK)
            except zlib.error as error:
                raise AnswersError(f"data: no gzip ({error})") from error
            self.size += len(block)
            if self.size > self._limit:
                raise AnswersError(f"data: unpacked it has more than the {self._limit:,} bytes that can be right")
            self._digest.update(block)
            self._file.write(block)
            data = self._unzip.unconsumed_tail or self._unzip.unused_data


def read_answers(
    pieces: Iterable[Piece], sha256: str, prompts: Collection[str], limit: int = MOST_BYTES
) -> dict[str, str]:
    """The answers by prompt. Raises `AnswersError`, or `ProtocolError` where a piece is no base64."""
    parcel = Parcel(limit)
    try:
        for piece in pieces:
            parcel.add(piece)
        return answers_of(parcel, sha256, prompts)
    finally:
        parcel.close()


def answers_of(parcel: Parcel, sha256: str, prompts: Collection[str]) -> dict[str, str]:
    """The answers in a complete parcel, if its hash was announced as `sha256`. Raises `AnswersError`."""
    data = parcel.read()
    if parcel.sha256 != sha256:
        raise AnswersError(f"sha256: the file has {parcel.sha256}, but {sha256} was announced")
    return parse_answers(data, prompts)


def parse_answers(data: bytes, prompts: Collection[str]) -> dict[str, str]:
    """An answer file, which is the canonical JSON of a map from these prompts to texts. Raises `AnswersError`."""
    text = _text(data)
    if not text.startswith("{"):
        kind = {"[": "a list", '"': "a text"}.get(text[:1], "something else")
        raise AnswersError(f"answers: must be a JSON object that maps each prompt to its answer, not {kind}")
    answers: dict[str, str] = {}
    place = 1
    for prompt in sorted(prompts):
        place = _past_key(text, place, prompt, prompts, answers)
        answer, place = _string(text, place, f"the answer to {quoted(prompt)}")
        answers[prompt] = answer
    if text[place:] != "}":
        if text.startswith(",", place):
            raise AnswersError(f"answers: has the key {_shown_key(text, place + 1)} that nobody asked for")
        raise AnswersError(f"answers: must end after {len(answers)} answers, but {_around(text, place)}")
    return answers


def read_series(parcel: Parcel, count: int, prompts: int) -> list[list[str]]:
    """`count` series of exactly `prompts` different prompts, as the trusted executor made them.

    Raises `AnswersError`.
    """
    text = _text(parcel.read())
    try:
        said: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AnswersError(f"series: no JSON ({error})") from error
    if not isinstance(said, list) or len(cast("list[Any]", said)) != count:
        raise AnswersError(f"series: must be a list of {count} series")
    return [_one_series(one, f"series.{number}", prompts) for number, one in enumerate(cast("list[Any]", said))]


def _one_series(said: Any, where: str, prompts: int) -> list[str]:
    if not isinstance(said, list):
        raise AnswersError(f"{where}: must be a list of prompts")
    found: list[str] = []
    for prompt in cast("list[Any]", said):
        if not isinstance(prompt, str) or not prompt:
            raise AnswersError(f"{where}: prompts must be texts that are not empty, not {quoted(prompt)}")
        _utf8(prompt, where)
        found.append(prompt)
    different = len(set(found))
    if len(found) != prompts or different != prompts:
        raise AnswersError(f"{where}: has {len(found)} prompts, {different} of them different; must be {prompts}")
    return found


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise AnswersError(f"data: no UTF-8 (byte {error.start})") from error


def _past_key(text: str, place: int, prompt: str, prompts: Collection[str], answers: dict[str, str]) -> int:
    """The place after `"prompt":` and the comma before it."""
    due = ("," if answers else "") + _json(prompt) + ":"
    if text.startswith(due, place):
        return place + len(due)
    if text.startswith("}", place):
        raise AnswersError(f"answers: has {len(answers)} of {len(prompts)}; the first that lacks is {quoted(prompt)}")
    start = place + (1 if answers else 0)
    if (answers and not text.startswith(",", place)) or not text.startswith('"', start):
        raise AnswersError(f"answers: must be canonical JSON without spaces, but {_around(text, place)}")
    key, _ = _string(text, start, "a key")
    if key in answers:
        raise AnswersError(f"answers: has the key {quoted(key)} twice")
    if key not in prompts:
        raise AnswersError(f"answers: has the key {quoted(key)} that nobody asked for")
    raise AnswersError(f"answers: lacks {quoted(prompt)}, or its keys are not sorted")


def _string(text: str, place: int, what: str) -> tuple[str, int]:
    """A JSON text and the place after it."""
    if not text.startswith('"', place):
        raise AnswersError(f"answers: {what} must be a text, but {_around(text, place)}")
    try:
        value, end = _decode_text(text, place)
    except ValueError as error:
        raise AnswersError(f"answers: {what} is no JSON text ({error})") from error
    _utf8(value, f"answers: {what}")
    return value, end


def _utf8(text: str, what: str) -> None:
    """Raises `AnswersError` for half a surrogate pair, which no file can hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise AnswersError(f"{what}: cannot be written as UTF-8 ({quoted(text)})") from error


def _shown_key(text: str, place: int) -> str:
    return quoted(_string(text, place, "a key")[0])


def _around(text: str, place: int) -> str:
    return f"at character {place} comes {quoted(text[place : place + 30])}"


def _json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
