"""Which texts every match of an expression has."""

import re
from typing import Any

import pytest
import re2
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.domain.log_query import Choice, LogQuery
from gpuyard.insight import log_search
from gpuyard.insight.log_search import find_lines
from gpuyard.insight.required_texts import required_texts
from gpuyard.storage import packed_log
from gpuyard.storage.log_times import LogTimes
from gpuyard.storage.packed_log import pack, stored_log
from tests.support.examples import examples


@pytest.mark.parametrize(
    ("expression", "texts"),
    [
        ("the ne+dle is", ["the ne", "edle is"]),
        (r"loss=\d+\.\d{2} (nan)?", ["loss=", ".", " "]),
        ("(?:error): (?P<what>disk) full", ["error", ": ", "disk", " full"]),
        ("ab{0,3}c|^$", []),
        ("[[:alpha:]]x]", ["x]"]),
        (r"[]a\]]b", ["b"]),
        ("a{,3}b", ["a{,3}b"]),
        ("(?i)error", []),
        (r"\Qerror", []),
        ("é+.", ["é", "é"]),
        ("(" * 60 + "deep" + ")" * 60, []),
    ],
)
def test_texts_of_an_expression(expression: str, texts: list[str]) -> None:
    found = required_texts(expression)
    assert [part.decode() for ((part,),) in found] == texts


def test_alternatives_are_a_choice() -> None:
    assert required_texts("x(CUDA error|out of (host|GPU) memory)") == [
        ((b"x",),),
        ((b"CUDA error",), (b"out of ", b" memory")),
    ]
    # These letters have other cases that are not ASCII.
    assert required_texts("disk", ignore_case=True) == [((b"di",),)]


# Pieces of expressions, and lines of the same letters.
_LETTER = st.sampled_from("abcABC|()[]*+?.^$\\{},1: dw-")
_LINES = st.lists(st.text("abcABC1: {},]", max_size=12), max_size=6)


def _compiled(expression: str, ignore_case: bool) -> Any:
    """The expression as RE2 reads it; None if it is none."""
    module: Any = re2
    options = module.Options()
    options.log_errors = False
    options.case_sensitive = not ignore_case
    try:
        return module.compile(f"(?m){expression}", options)
    except module.error:
        return None


@given(st.lists(_LETTER, max_size=12).map("".join), _LINES, st.booleans())
@settings(max_examples=examples(150))
def test_every_match_has_the_texts(
    expression: str, lines: list[str], ignore_case: bool
) -> None:
    pattern = _compiled(expression, ignore_case)
    if pattern is None:
        return
    choices = required_texts(expression, ignore_case=ignore_case)
    for line in lines:
        if pattern.search(line):
            assert _has(line, choices, ignore_case), (expression, line)


def _has(line: str, choices: list[Choice], ignore_case: bool) -> bool:
    data = line.lower().encode() if ignore_case else line.encode()
    return all(
        any(
            all((text.lower() if ignore_case else text) in data for text in texts)
            for texts in choice
        )
        for choice in choices
    )


_WORDS = st.sampled_from(["step", "Error", "loss", "nan", "CUDA", "12"])
_EXPRESSIONS = (
    "err",
    "Err.r",
    "(nan|CUDA)+",
    "loss.*nan",
    "CUDA .*Err",
    "ste+p( 12)?$",
    "^12 s",
)


@given(
    lines=st.lists(st.lists(_WORDS, max_size=8).map(" ".join), max_size=40),
    asked=st.sampled_from(_EXPRESSIONS),
    ignore_case=st.booleans(),
    search=st.sampled_from(["", "Error"]),
)
@settings(max_examples=examples(150))
def test_a_compressed_log_answers_as_a_look_at_each_line_does(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[str],
    asked: str,
    ignore_case: bool,
    search: str,
) -> None:
    flags = re.IGNORECASE if ignore_case else 0
    wanted = [
        line
        for line in lines
        if re.search(asked, line, flags) and re.search(search, line, flags)
    ]
    log = tmp_path_factory.mktemp("log") / "attempt_1.log"
    log.write_text("".join(f"{line}\n" for line in lines))
    query = LogQuery(regex=asked, search=search, ignore_case=ignore_case)
    with pytest.MonkeyPatch.context() as patched:
        # Segments and blocks end within lines.
        patched.setattr(packed_log, "SEGMENT", 64)
        patched.setattr(packed_log, "_AROUND", 16)
        patched.setattr(log_search, "_BLOCK", 256)
        patched.setattr(log_search, "_AROUND", 128)
        pack(log)
        times = LogTimes(log, 0.0)
        page = find_lines(stored_log(log), times, query, is_complete=True, within_s=60)
    assert [line.text for line in page.lines] == wanted
