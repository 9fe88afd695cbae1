"""Values are hidden wherever the output is cut."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.domain.masking import Mask, MaskedStream
from tests.support.examples import examples

# One begins with another, one ends as another begins.
VALUES = ["hf_abcabcabd", "hf_abcabcabd-more", "aaaaaaaa", "bd-more-hf_"]
TEXTS = [*VALUES, "hf_abc", "abcabd", "-mo", "re", "aaa", "words\n"]
PIECES = st.lists(st.sampled_from([text.encode() for text in TEXTS]))


@settings(max_examples=examples(150))
@given(PIECES, st.lists(st.integers(0, 60)))
def test_the_parts_of_a_stream_are_hidden_like_the_whole(
    pieces: list[bytes], cuts: list[int]
) -> None:
    whole = b"".join(pieces)
    mask = Mask(VALUES)
    stream = MaskedStream(mask)
    shown = b""
    begin = 0
    for end in [*sorted(cuts), len(whole)]:
        shown += stream.feed(whole[begin:end])
        begin = max(begin, end)
    shown += stream.finish()
    assert shown == mask.hide(whole)
    assert len(shown) == len(whole)
    assert not any(value.encode() in shown for value in VALUES)


def test_the_lines_of_a_value_and_longer_values_first() -> None:
    mask = Mask(["-----BEGIN\nsecretline\nshort\n", "password", "password-and-more"])
    assert mask.hide(b"a secretline, short") == b"a **********, short"
    assert mask.hide(b"password-and-more!") == b"*" * 17 + b"!"


def test_short_values_are_not_hidden() -> None:
    assert not Mask(["1234567", ""])
    assert Mask(["1234567"]).hide_text("line 1234567") == "line 1234567"


def test_text_is_hidden() -> None:
    assert Mask(["grüße-an-alle"]).hide_text("x grüße-an-alle y").startswith("x ***")
