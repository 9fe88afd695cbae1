"""The exact comparison of the outputs of two runs: studies compare layouts with it,
verification compares machines.
"""

from collections.abc import Sequence
from itertools import zip_longest

_END = object()


def first_divergence(
    reference: Sequence[object], candidate: Sequence[object]
) -> int | None:
    """The first position (from 0) at which two outputs differ; None when they are
    equal.

    If one is the beginning of the other, they differ at its end. Works for tokens,
    words, characters and bytes.
    """
    if reference == candidate:
        return None
    pairs = zip_longest(reference, candidate, fillvalue=_END)
    for position, (one, other) in enumerate(pairs):
        if one != other:
            return position
    return None
