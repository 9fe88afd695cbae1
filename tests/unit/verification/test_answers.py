"""Files of answers and series: the right ones are read, all others refused, and none
takes memory.
"""

import base64
import gzip
import hashlib
import json
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.verification.answers import (
    AnswersError,
    IncomingFile,
    most_bytes,
    parse_answers,
    read_series,
)
from gpuyard.verification.protocol import (
    AnswersPiece,
    Piece,
    ProtocolError,
    SeriesPiece,
    parse,
)
from gpuyard.verification.solver import messages
from tests.support.verification import read_answers

PROMPTS = ["What is 2 + 2?", 'Say "hi"\\', "Où est la gare ?", "一", "tab\there"]
ANSWERS = {prompt: f"{number}\n{prompt}\u0007" for number, prompt in enumerate(PROMPTS)}

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sent(data: bytes, size: int = 40) -> list[Piece]:
    """The pieces as a solver sends them."""
    found: list[Piece] = []
    for message in messages.pieces("answers", data, size):
        piece = parse(messages.line(message))
        assert isinstance(piece, AnswersPiece)
        found.append(piece)
    return found


def raw(data: bytes, *more: bytes) -> list[Piece]:
    """Pieces of these very bytes."""
    parts = [data, *more]
    return [
        Piece(part=number, of=len(parts), data=base64.b64encode(part).decode())
        for number, part in enumerate(parts)
    ]


@given(st.dictionaries(texts.filter(bool), texts), st.integers(1, 200))
def test_what_a_solver_sends_is_read_back(answers: dict[str, str], size: int) -> None:
    data = messages.canonical(answers)
    assert read_answers(sent(data, size), sha256(data), list(answers)) == answers


@given(
    st.dictionaries(texts.filter(bool), texts, max_size=4),
    st.lists(texts.filter(bool), max_size=4, unique=True),
)
def test_answers_to_other_prompts_are_refused(
    answers: dict[str, str], prompts: list[str]
) -> None:
    data = messages.canonical(answers)
    if set(answers) == set(prompts):
        assert parse_answers(data, prompts) == answers
    else:
        with pytest.raises(AnswersError):
            parse_answers(data, prompts)


@given(st.data())
def test_a_damaged_file_is_refused_or_another_map(data: st.DataObject) -> None:
    whole = bytearray(messages.canonical(ANSWERS))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] = data.draw(st.integers(0, 255))
    try:
        found = parse_answers(bytes(whole), PROMPTS)
    except AnswersError:
        return
    assert found == json.loads(whole)
    assert set(found) == set(PROMPTS)


def canonical(**changes: Any) -> bytes:
    return messages.canonical({**ANSWERS, **changes})


WRONG: dict[str, tuple[bytes, str]] = {
    "list": (
        messages.canonical([[prompt, answer] for prompt, answer in ANSWERS.items()]),
        "not a list",
    ),
    "text": (b'"hello"', "not a text"),
    "null": (b"null", "not something else"),
    "empty": (b"", "not something else"),
    "extra-first": (canonical(**{"!": "x"}), "has the key '!' that was not asked for"),
    "extra-last": (canonical(**{"\uffff": "x"}), "that was not asked for"),
    "number": (canonical(一=7), "the answer to '一' must be a text"),
    "map": (canonical(一={"a": "b"}), "the answer to '一' must be a text"),
    "missing": (
        messages.canonical({key: ANSWERS[key] for key in PROMPTS[:4]}),
        "lacks 'tab",
    ),
    "missing-last": (
        messages.canonical({key: ANSWERS[key] for key in PROMPTS if key != "一"}),
        "has 4 of 5",
    ),
    "nothing": (b"{}", "has 0 of 5"),
    "spaces": (
        json.dumps(ANSWERS, sort_keys=True, ensure_ascii=False).encode(),
        "must be a text, but at character",
    ),
    "unsorted": (
        json.dumps(
            dict(sorted(ANSWERS.items(), reverse=True)),
            separators=(",", ":"),
            ensure_ascii=False,
        ).encode(),
        "lacks .* or its keys are not sorted",
    ),
    "twice": (canonical().replace(b'"tab', b'"Say \\"hi\\"\\\\":"x","tab'), "twice"),
    "more-behind": (canonical() + b"{}", "must end after 5 answers"),
    "cut": (canonical()[:-3], "no JSON text"),
    "latin-1": (canonical().replace("Où".encode(), b"O\xf9"), "no UTF-8"),
    "half-a-pair": (
        canonical().replace(b"\\u0007", b"\\ud800", 1),
        "cannot be written as UTF-8",
    ),
    "control": (canonical().replace(b"\\u0007", b"\x07", 1), "no JSON text"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_refused_and_told_why(name: str) -> None:
    data, told = WRONG[name]
    with pytest.raises(AnswersError, match=told) as caught:
        read_answers(sent(data), sha256(data), PROMPTS)
    assert len(str(caught.value)) < 300


def test_the_hash_of_something_else_is_refused() -> None:
    with pytest.raises(AnswersError, match="but 0000"):
        read_answers(sent(canonical()), "0" * 64, PROMPTS)
    zipped = gzip.compress(canonical())
    with pytest.raises(AnswersError, match="but "):
        read_answers(sent(canonical()), sha256(zipped), PROMPTS)


def middle_out(pieces: list[Piece]) -> list[Piece]:
    return pieces[:1] + pieces[2:]


PIECES: dict[str, tuple[list[Piece], str]] = {
    "second-first": (sent(canonical())[1:], "part: 1 of .* came where 0 was due"),
    "one-left-out": (
        middle_out(sent(canonical())),
        "part: 2 of .* came where 1 was due",
    ),
    "one-twice": (sent(canonical())[:1] * 2, "part: 0 of .* came where 1 was due"),
    "another-count": (
        [sent(canonical())[0], Piece(part=1, of=99, data="YQ==")],
        "and is now 99",
    ),
    "past-the-end": (
        [Piece(part=0, of=1, data="YQ==").model_copy(update={"of": 0})],
        "part: 0 of 0",
    ),
    "not-all": (sent(canonical())[:-1], "pieces came"),
    "none": ([], "only 0 of all pieces came"),
    "no-gzip": (raw(b"hello"), "no gzip"),
    "zlib": (raw(zlib.compress(canonical())), "no gzip"),
    "cut": (raw(gzip.compress(canonical())[:-9]), "ends in its middle"),
    "bad-sum": (raw(gzip.compress(canonical())[:-8] + b"12345678"), "no gzip"),
    "more-behind": (raw(gzip.compress(canonical()) + b"more"), "something follows"),
    "two-files": (
        raw(gzip.compress(canonical()), gzip.compress(canonical())),
        "something follows",
    ),
}


@pytest.mark.parametrize("name", PIECES)
def test_wrong_pieces_are_refused(name: str) -> None:
    pieces, told = PIECES[name]
    with pytest.raises(AnswersError, match=told):
        read_answers(pieces, sha256(canonical()), PROMPTS)


def test_a_piece_that_is_no_base64_is_refused() -> None:
    with pytest.raises(ProtocolError, match="no base64"):
        read_answers([Piece(part=0, of=1, data="%%%")], sha256(canonical()), PROMPTS)


def test_pieces_of_one_byte_are_put_together() -> None:
    """The trailer of gzip arrives apart from what it ends."""
    data = canonical()
    pieces = raw(*(bytes([byte]) for byte in gzip.compress(data)))
    assert read_answers(pieces, sha256(data), PROMPTS) == ANSWERS


def test_the_limit_suits_every_honest_executor_and_no_other() -> None:
    """A token of 128 line feeds is the worst that a model can say."""
    worst = dict.fromkeys(PROMPTS, "\n" * 128 * 256)
    data = messages.canonical(worst)
    limit = most_bytes(PROMPTS, 256)
    assert len(data) <= limit < 2 * len(data)
    assert read_answers(sent(data), sha256(data), PROMPTS, limit) == worst
    with pytest.raises(AnswersError, match="more than the"):
        read_answers(
            sent(messages.canonical({**worst, "x": "a" * limit})),
            sha256(data),
            PROMPTS,
            limit,
        )
    assert most_bytes(PROMPTS * 10000, 256) == 64 << 20


def test_a_stream_that_goes_on_and_unpacks_to_nothing_is_refused() -> None:
    """Empty blocks of five bytes, as a flush leaves them; they never end and never
    yield a byte.
    """
    zipper = zlib.compressobj(wbits=31)
    start = zipper.compress(b"") + zipper.flush(zlib.Z_FULL_FLUSH)
    empty = b"\0\0\0\xff\xff"
    assert zlib.decompressobj(wbits=31).decompress(start + empty * 9) == b""
    pieces = raw(start, *[empty * 10000] * 10)
    with pytest.raises(AnswersError, match="zipped it has more than the 1,000 bytes"):
        read_answers(pieces, sha256(b""), PROMPTS, 1000)


def parcel(document: Any) -> IncomingFile:
    found = IncomingFile()
    for piece in sent(messages.canonical(document)):
        found.add(piece)
    return found


def test_series_are_read() -> None:
    series = [["one", "two"], ["three", "four"]]
    assert read_series(parcel(series), 2, 2) == series
    message = parse(
        messages.line(next(messages.pieces("series", messages.canonical(series), 1000)))
    )
    assert isinstance(message, SeriesPiece)


SERIES_FAULTS: list[tuple[Any, str]] = [
    ({"one": "two"}, "must be a list of 2 series"),
    ([["one", "two"]], "must be a list of 2 series"),
    ([["one", "two"], ["three"]], "series.1: has 1 prompts"),
    ([["one", "two"], ["three", "three"]], "1 of them different; must be 2"),
    (
        [["one", "two"], ["three", ""]],
        "series.1: prompts must be texts that are not empty",
    ),
    ([["one", "two"], ["three", 4]], "must be texts that are not empty, not 4"),
    ([["one", "two"], "ab"], "series.1: must be a list"),
]


@pytest.mark.parametrize(("document", "told"), SERIES_FAULTS)
def test_wrong_series_are_refused(document: Any, told: str) -> None:
    with pytest.raises(AnswersError, match=told):
        read_series(parcel(document), 2, 2)


def test_series_that_are_no_text_are_refused() -> None:
    for data, told in (
        (b"[", "no JSON"),
        (b"\xff", "no UTF-8"),
        (b"[" * 100000, "no JSON"),
        (b'[["\\ud800"]]', "cannot be written as UTF-8"),
    ):
        found = IncomingFile()
        for piece in sent(data):
            found.add(piece)
        with pytest.raises(AnswersError, match=told):
            read_series(found, 1, 1)
