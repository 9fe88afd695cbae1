"""What a solver may say, and when."""

import itertools
import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.verification.protocol import (
    LONGEST_LINE,
    WORD,
    AnswersPiece,
    Claims,
    Conversation,
    Declined,
    Failed,
    Hash,
    Message,
    Piece,
    ProtocolError,
    Ready,
    SeriesPiece,
    SolverStage,
    SolverTask,
    parse,
    parse_output,
)
from gpuyard.verification.solver import messages

SHA = "0" * 64
HASH = Hash(sha256=SHA, solve_s=1.5)
ONE: dict[str, Message] = {
    "ready": Ready(),
    "declined": Declined(reason="busy"),
    "hash": HASH,
    "claims": Claims(inventory=[]),
    "answers": AnswersPiece(part=0, of=1, data="YQ=="),
    "series": SeriesPiece(part=0, of=1, data="YQ=="),
    "failed": Failed(reason="no"),
}
# What may come, in full, if the seed is released after `ready`.
COURSES = {
    SolverTask.SOLVE: [
        "declined",
        "failed",
        "ready declined",
        "ready failed",
        "ready hash failed",
        "ready hash answers",
        "ready hash claims answers",
        "ready hash claims failed",
    ],
    SolverTask.GENERATE: ["declined", "failed", "ready failed", "ready series"],
    SolverTask.PROBE: ["declined", "failed", "ready failed", "ready claims"],
}

jsons = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
    ),
)


@pytest.mark.parametrize("message", ONE.values(), ids=ONE)
def test_what_a_solver_writes_is_read_as_it_was_meant(message: Message) -> None:
    said = messages.line(message.model_dump(exclude_none=True))
    assert parse(said) == message
    assert parse_output(WORD + said.decode()) == message


WRONG: dict[str, tuple[bytes, str]] = {
    "no-json": (b"hello", "Invalid JSON"),
    "empty": (b"\n", "Invalid JSON"),
    "list": (b"[1]", "should be an object"),
    "no-type": (b"{}", "type"),
    "unknown": (b'{"type": "seed", "seed": 1}', "seed"),
    "another-check": (
        b'{"type": "ready", "check": "chk_other"}',
        "ready.check: Extra inputs",
    ),
    "short-hash": (b'{"type": "hash", "sha256": "00", "solve_s": 1}', "hash.sha256"),
    "negative": (
        b'{"type": "hash", "sha256": "%s", "solve_s": -1}' % SHA.encode(),
        "hash.solve_s",
    ),
    "nan": (
        b'{"type": "hash", "sha256": "%s", "solve_s": NaN}' % SHA.encode(),
        "hash.solve_s",
    ),
    "text-for-a-number": (
        b'{"type": "hash", "sha256": "%s", "solve_s": "1"}' % SHA.encode(),
        "hash.solve_s",
    ),
    "no-piece": (
        b'{"type": "answers", "part": 0, "of": 0, "data": "YQ=="}',
        "answers.of",
    ),
    "too-many-pieces": (
        b'{"type": "answers", "part": 0, "of": 1000000000, "data": "YQ=="}',
        "answers.of",
    ),
    "empty-piece": (
        b'{"type": "answers", "part": 0, "of": 1, "data": ""}',
        "answers.data",
    ),
    "not-utf8": (b'{"type": "failed", "reason": "\xff\xfe"}', "JSON"),
    "deep": (
        b'{"type": "claims", "vram": ' + b'{"a":' * 50000 + b"1" + b"}" * 50000 + b"}",
        "recursion limit",
    ),
    "no-number": (b'{"type": "claims", "vram": {"gigabytes": NaN}}', "claims.vram"),
    "infinite": (
        b'{"type": "claims", "inventory": [{"memory_mb": 1e999}]}',
        "claims.inventory.0",
    ),
    "long-field": (b'{"type": "ready", "' + b"a" * 100_000 + b'": 1}', "ready.aaa"),
    "long-type": (b'{"type": "' + b"a" * 100_000 + b'"}', "aaa"),
    "too-long": (
        b'{"type": "failed", "reason": "' + b"a" * LONGEST_LINE + b'"}',
        "more than 1048576 bytes",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_line_is_refused_with_its_field(name: str) -> None:
    line, told = WRONG[name]
    with pytest.raises(
        ProtocolError, match="(?s)" + told.replace(".", r"\.")
    ) as caught:
        parse(line)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "line",
    [
        b'{"type": "\\u0000\\n"}',
        b'{"type": "ready", "\\u0000\\n": 1}',
        b'{"type": "claims", "vram": "\\u001b[2J"}',
        b'{"type": "hash", "sha256": "\\r\\u2028", "solve_s": 1}',
    ],
)
def test_an_error_is_one_line_whatever_the_solver_wrote(line: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        parse(line)
    assert str(caught.value).isprintable()


def test_a_solvers_words_are_one_line() -> None:
    message = parse(
        b'{"type": "failed", "reason": "CUDA error:\\n\\u0000\\u001b[2Jout of memory"}'
    )
    assert message == Failed(reason="CUDA error:   [2Jout of memory")


def test_claims_that_grow_when_they_are_written_down_are_refused() -> None:
    """Evidence has room for as much as fits a line, and no more."""
    line = b'{"type": "claims", "speed": {"x": [%s]}}'
    assert parse(line % b",".join([b"1e9"] * 1000)).type == "claims"
    with pytest.raises(ProtocolError, match="claims are longer than 1048576 bytes"):
        parse(line % b",".join([b"1e15"] * 100_000))


def test_a_piece_that_is_no_base64_is_refused() -> None:
    with pytest.raises(ProtocolError, match="part 3 is no base64"):
        Piece(part=3, of=4, data="a*b").bytes()


def test_other_output_is_no_message() -> None:
    assert parse_output("Loading weights: 100 %") is None
    assert parse_output("") is None
    assert parse_output(WORD + "words that an engine prints") is None
    with pytest.raises(ProtocolError):
        parse_output(WORD + "{ready")


@given(st.binary(max_size=200) | jsons.map(lambda value: json.dumps(value).encode()))
def test_any_line_is_a_message_or_refused(line: bytes) -> None:
    with suppress(ProtocolError):
        parse(line)


@given(
    st.sampled_from(list(ONE)),
    st.dictionaries(st.sampled_from(["sha256", "part", "of", "data", "x"]), jsons),
)
def test_any_object_is_a_message_or_refused(kind: str, fields: dict[str, Any]) -> None:
    line = json.dumps({"type": kind, **fields}).encode()
    try:
        message = parse(line)
    except ProtocolError:
        return
    assert message.type == kind


def play(task: SolverTask, names: list[str], seeded: bool = False) -> str:
    """The stage after these messages, or what was wrong; the seed goes out as soon as
    it may.
    """
    conversation = Conversation(task, seeded=seeded)
    for name in names:
        try:
            conversation.take(ONE[name])
        except ProtocolError as error:
            assert conversation.stage is SolverStage.OVER
            return str(error)
        if (
            task is SolverTask.SOLVE
            and not seeded
            and conversation.stage is SolverStage.READY
            and "hash" in names[:3]
        ):
            conversation.release()
    return conversation.stage


@pytest.mark.parametrize("task", SolverTask)
def test_exactly_the_right_courses_of_messages_are_allowed(task: SolverTask) -> None:
    for count in range(1, 5):
        for names in map(list, itertools.product(ONE, repeat=count)):
            told = play(task, names)
            right = any(
                f"{course} ".startswith(" ".join(names) + " ")
                for course in COURSES[task]
            )
            assert (told in set(SolverStage)) == right, (names, told)
            if right:
                assert (told == SolverStage.OVER) == (" ".join(names) in COURSES[task])


def test_with_the_seed_in_its_order_a_solver_begins_at_once() -> None:
    assert (
        play(SolverTask.SOLVE, ["ready", "hash", "answers"], seeded=True)
        == SolverStage.OVER
    )


def test_an_answer_before_its_hash_is_told_what_would_be_right() -> None:
    told = play(SolverTask.SOLVE, ["ready", "answers"], seeded=True)
    assert told == "answers: not to be sent at the stage solving, but hash or failed"


def test_a_hash_before_the_seed_is_refused() -> None:
    conversation = Conversation()
    conversation.take(Ready())
    with pytest.raises(ProtocolError, match="hash: not to be sent at the stage ready"):
        conversation.take(HASH)


def test_no_seed_goes_to_a_solver_that_is_not_ready() -> None:
    with pytest.raises(ProtocolError, match="at starting"):
        Conversation().release()


def test_a_file_in_pieces_is_over_with_its_last() -> None:
    conversation = Conversation(seeded=True)
    for message in (
        Ready(),
        HASH,
        *(AnswersPiece(part=part, of=3, data="YQ==") for part in range(3)),
    ):
        assert conversation.stage is not SolverStage.OVER
        conversation.take(message)
    assert conversation.stage is SolverStage.OVER
    with pytest.raises(ProtocolError, match="but nothing more"):
        conversation.take(HASH)
