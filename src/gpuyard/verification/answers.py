"""Files that solvers send in parts: assembled within limits, and parsed strictly.

Only one part is in memory while a file arrives; the rest is in a temporary file.
Answers are parsed key by key, in the order of canonical JSON. So nothing is built in
memory from a file that is not the map of exactly these prompts.
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
# The text of a token is hardly ever longer; the longest are runs of 128 spaces.
_BYTES_PER_TOKEN = 256
# How much zipping may add. This also limits a stream that unzips to nothing.
_OVERHEAD = 1 << 16
_IN_MEMORY = 1 << 16
_BLOCK = 1 << 16
_decode_text = JSONDecoder(strict=True).raw_decode


class AnswersError(Exception):
    """A file is not what it should be.

    The text says what is wrong and what would be right.
    """


def most_bytes(prompts: Iterable[str], max_tokens: int) -> int:
    """The largest answer file that an honest executor can send, at most 64 MiB."""
    sizes = (
        len(_json(prompt).encode()) + 4 + max_tokens * _BYTES_PER_TOKEN
        for prompt in prompts
    )
    return min(2 + sum(sizes), MOST_BYTES)


class IncomingFile:
    """A zipped file that arrives in parts.

    `sha256` is the hash of the unzipped content so far.
    """

    def __init__(self, limit: int = MOST_BYTES) -> None:
        self._limit = limit
        self._file = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115  # close() closes it  # closed by close()
        self._unzip = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        self._digest = hashlib.sha256()
        self._parts = 0
        self._of = 0
        self._received = 0
        self.size = 0

    @property
    def complete(self) -> bool:
        """Whether the last part has arrived."""
        return 0 < self._of == self._parts

    @property
    def sha256(self) -> str:
        """The hash in hexadecimal."""
        return self._digest.hexdigest()

    def add(self, piece: Piece) -> None:
        """Add the next part.

        Raises ProtocolError, or AnswersError, after which the file is unusable.
        """
        if piece.part != self._parts or piece.part >= piece.of:
            raise AnswersError(
                f"part: {piece.part} of {piece.of} came where {self._parts} was due"
            )
        if self._parts and piece.of != self._of:
            raise AnswersError(f"of: was {self._of} and is now {piece.of}")
        self._parts = self._parts + 1
        self._of = piece.of
        self._unpack(piece.bytes())
        if self.complete and not self._unzip.eof:
            raise AnswersError("data: the gzip stream ends in its middle")

    def read(self) -> bytes:
        """The whole unzipped file; AnswersError when parts are missing."""
        if not self.complete:
            raise AnswersError(
                f"part: only {self._parts} of {self._of or 'all'} pieces came"
            )
        self._file.seek(0)
        return self._file.read()

    def close(self) -> None:
        """Delete it."""
        self._file.close()

    def _unpack(self, data: bytes) -> None:
        self._received += len(data)
        if self._received > self._limit + _OVERHEAD:
            raise AnswersError(
                f"data: zipped it has more than the {self._limit:,} bytes that can be"
                " right"
            )
        while data:
            if self._unzip.eof:
                raise AnswersError("data: something follows the end of the gzip stream")
            try:
                block = self._unzip.decompress(data, _BLOCK)
            except zlib.error as error:
                raise AnswersError(f"data: no gzip ({error})") from error
            self.size += len(block)
            if self.size > self._limit:
                raise AnswersError(
                    f"data: unpacked it has more than the {self._limit:,} bytes that"
                    " can be right"
                )
            self._digest.update(block)
            self._file.write(block)
            data = self._unzip.unconsumed_tail or self._unzip.unused_data


def answers_of(
    parcel: IncomingFile, sha256: str, prompts: Collection[str]
) -> dict[str, str]:
    """The answers in a complete file whose hash was announced as `sha256`.

    Raises AnswersError.
    """
    data = parcel.read()
    if parcel.sha256 != sha256:
        raise AnswersError(
            f"sha256: the file has {parcel.sha256}, but {sha256} was announced"
        )
    return parse_answers(data, prompts)


def parse_answers(data: bytes, prompts: Collection[str]) -> dict[str, str]:
    """Parse an answer file: canonical JSON that maps exactly these prompts to texts.

    Raises AnswersError.
    """
    text = _text(data)
    if not text.startswith("{"):
        kind = {"[": "a list", '"': "a text"}.get(text[:1], "something else")
        raise AnswersError(
            "answers: must be a JSON object that maps each prompt to its answer, not"
            f" {kind}"
        )
    answers: dict[str, str] = {}
    place = 1
    for prompt in sorted(prompts):
        place = _past_key(text, place, prompt, prompts, answers)
        answer, place = _string(text, place, f"the answer to {quoted(prompt)}")
        answers[prompt] = answer
    if text[place:] != "}":
        if text.startswith(",", place):
            raise AnswersError(
                f"answers: has the key {_shown_key(text, place + 1)} that was not"
                " asked for"
            )
        raise AnswersError(
            f"answers: must end after {len(answers)} answers, but"
            f" {_around(text, place)}"
        )
    return answers


def read_series(parcel: IncomingFile, count: int, prompts: int) -> list[list[str]]:
    """Parse `count` series of exactly `prompts` different prompts each.

    They come from the trusted executor. Raises AnswersError.
    """
    text = _text(parcel.read())
    try:
        said: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise AnswersError(f"series: no JSON ({error})") from error
    if not isinstance(said, list) or len(cast("list[Any]", said)) != count:
        raise AnswersError(f"series: must be a list of {count} series")
    return [
        _one_series(one, f"series.{number}", prompts)
        for number, one in enumerate(cast("list[Any]", said))
    ]


def _one_series(said: Any, where: str, prompts: int) -> list[str]:
    if not isinstance(said, list):
        raise AnswersError(f"{where}: must be a list of prompts")
    found: list[str] = []
    for prompt in cast("list[Any]", said):
        if not isinstance(prompt, str) or not prompt:
            raise AnswersError(
                f"{where}: prompts must be texts that are not empty, not"
                f" {quoted(prompt)}"
            )
        _utf8(prompt, where)
        found.append(prompt)
    different = len(set(found))
    if len(found) != prompts or different != prompts:
        raise AnswersError(
            f"{where}: has {len(found)} prompts, {different} of them different; must be"
            f" {prompts}"
        )
    return found


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise AnswersError(f"data: no UTF-8 (byte {error.start})") from error


def _past_key(
    text: str,
    place: int,
    prompt: str,
    prompts: Collection[str],
    answers: dict[str, str],
) -> int:
    """The position after `"prompt":` and the comma before it."""
    due = ("," if answers else "") + _json(prompt) + ":"
    if text.startswith(due, place):
        return place + len(due)
    if text.startswith("}", place):
        raise AnswersError(
            f"answers: has {len(answers)} of {len(prompts)}; the first that lacks is"
            f" {quoted(prompt)}"
        )
    start = place + (1 if answers else 0)
    if (answers and not text.startswith(",", place)) or not text.startswith('"', start):
        raise AnswersError(
            "answers: must be canonical JSON without spaces, but"
            f" {_around(text, place)}"
        )
    key, _ = _string(text, start, "a key")
    if key in answers:
        raise AnswersError(f"answers: has the key {quoted(key)} twice")
    if key not in prompts:
        raise AnswersError(f"answers: has the key {quoted(key)} that was not asked for")
    raise AnswersError(f"answers: lacks {quoted(prompt)}, or its keys are not sorted")


def _string(text: str, place: int, what: str) -> tuple[str, int]:
    """A JSON string and the position after it."""
    if not text.startswith('"', place):
        raise AnswersError(
            f"answers: {what} must be a text, but {_around(text, place)}"
        )
    try:
        value, end = _decode_text(text, place)
    except ValueError as error:
        raise AnswersError(f"answers: {what} is no JSON text ({error})") from error
    _utf8(value, f"answers: {what}")
    return value, end


def _utf8(text: str, what: str) -> None:
    """Raise AnswersError for half a surrogate pair, which UTF-8 cannot represent."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise AnswersError(
            f"{what}: cannot be written as UTF-8 ({quoted(text)})"
        ) from error


def _shown_key(text: str, place: int) -> str:
    return quoted(_string(text, place, "a key")[0])


def _around(text: str, place: int) -> str:
    return f"at character {place} comes {quoted(text[place : place + 30])}"


def _json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
