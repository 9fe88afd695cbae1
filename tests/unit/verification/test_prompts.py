"""Files of prompts: what comes back, and the one error of a file that is wrong."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.domain.errors import InvalidInputError
from gpuyard.verification.prompts import (
    MAX_PROMPT_BYTES,
    chosen_prompts,
    parse_prompts,
    problem_of,
    read_prompt_file,
    split_file,
    to_file,
)

SOUND = st.text(st.characters(codec="utf-8"), min_size=1).filter(
    lambda text: problem_of(text) is None
)


@given(st.lists(SOUND, unique=True, max_size=8))
def test_sound_prompts_come_back(prompts: list[str]):
    data = to_file(prompts)
    assert parse_prompts(data, len(prompts)) == tuple(prompts)
    if prompts:
        assert split_file(data) == tuple(prompts)


@given(
    st.lists(
        st.text()
        | st.none()
        | st.integers()
        | st.sampled_from(["one", "two\n", "a\nb", " three "])
    )
)
def test_what_a_generator_made_is_used_as_far_as_it_is_sound(made: list[object]):
    try:
        chosen = chosen_prompts(made, 2)
    except ValueError as error:
        assert "different prompts that can be used, and 2 are needed" in str(error)
        return
    assert len(set(chosen)) == 2
    assert parse_prompts(to_file(chosen), 2) == chosen


def test_of_too_many_prompts_the_first_are_chosen():
    assert chosen_prompts(["b", " b ", "", "a\nb", "a", "c"], 2) == ("b", "a")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"one\ntwo\n", "holds 2 prompts, and not 3 (write one prompt a line)"),
        (b"", "holds 0 prompts, and not 3"),
        (b"one\n", "holds 1 prompt, and not 3"),
        (b"one\ntwo\nthree\nfour\n", "holds 4 prompts, and not 3"),
        (b"one\ntwo\none\n", "holds the same prompt in lines 1 and 3"),
        (b"one\n  \nthree\n", "holds a prompt in line 2 that is empty"),
        (b"one\n\nthree\n", "holds a prompt in line 2 that is empty"),
        (b"one\nt\xe9o\nthree\n", "is not UTF-8 at byte 5 (0xe9)"),
        ("one\ntwo\nthree\n".encode("utf-16"), "is not UTF-8 at byte 0 (0xff)"),
        (
            b"one\ntw\x00o\nthree\n",
            "holds a prompt in line 2 that has a control character",
        ),
        (
            "one\n\ufefftwo\nthree\n".encode(),
            "holds a prompt in line 2 that begins with a byte order mark",
        ),
        (
            b"one\ntwo\n" + b"x" * (MAX_PROMPT_BYTES + 1),
            "has 8,193 bytes, and at most 8,192",
        ),
        (b"x" * 10 * MAX_PROMPT_BYTES, "has more than 24,582 bytes"),
    ],
)
def test_a_file_that_is_wrong_gets_one_clear_error(
    tmp_path: Path, data: bytes, words: str
):
    path = tmp_path / "prompts.txt"
    path.write_bytes(data)
    with pytest.raises(InvalidInputError) as caught:
        read_prompt_file(path, 3)
    (fault,) = caught.value.faults
    assert words in str(fault)
    assert fault.field == "prompts" and str(path) in fault.fault and fault.remedy


def test_a_file_that_is_not_there(tmp_path: Path):
    with pytest.raises(InvalidInputError, match="cannot be read: No such file"):
        read_prompt_file(tmp_path / "none", 3)
    with pytest.raises(InvalidInputError, match="cannot be read: Is a directory"):
        read_prompt_file(tmp_path, 3)


def test_line_ends_and_marks_of_other_systems_do_not_count(tmp_path: Path):
    path = tmp_path / "prompts.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\nthree")
    assert read_prompt_file(path, 3) == ("one", "two", "three")


def test_a_prompt_as_long_as_may_be_is_fine():
    assert problem_of("x" * MAX_PROMPT_BYTES) is None
    assert problem_of("\ud800") == "has half a character in it"
