"""Counts that chance explains, for few and for many of anything.

Chernoff's bound: of `of` independent events, each of which happens with the chance
`share`, at least `count` happen with a chance of at most e to the minus `surprise`.
"""

import math

_STEPS = 60


def surprise(count: float, of: float, share: float) -> float:
    """How much a count speaks against a share, in nats.

    It is 0 for a count that is no more than expected, and infinite for one that cannot
    be.
    """
    if count <= share * of:
        return 0.0
    if share <= 0:
        return math.inf
    part = count / of
    nats = part * math.log(part / share)
    if part < 1:
        nats += (1 - part) * math.log((1 - part) / (1 - share))
    return of * nats


def least_share(count: float, of: float, most: float) -> float:
    """The least share against which a count speaks by no more than `most` nats.

    One of one says little, so it gives a small share; fifty of a hundred say much.
    """
    if count <= 0:
        return 0.0
    low = 0.0
    high = count / of
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if surprise(count, of, middle) > most:
            low = middle
        else:
            high = middle
    return high
