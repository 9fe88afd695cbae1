"""The one exact comparison of what two runs put out: studies compare layouts with it, verification machines."""

from collections.abc import Sequence
from itertools import zip_longest

_END = object()


def first_divergence(reference: Sequence[object], candidate: Sequence[object]) -> int | None:
    """The first position (from 0) at which two outputs differ; None where they are the same.

    Where one is the beginning of the other they differ at its end. Tokens, words, characters and bytes will all do.
    """
    if reference == candidate:
        return None
    pairs = enumerate(zip_longest(reference, candidate, fillvalue=_END))
    return next((place for place, (one, other) in pairs if one != other), None)
