"""The cases of the conformance suite for a further way to one provider, or for one that
others resemble: every day those that may break there alone, in `make soak` all
(`GPUYARD_EVERY_CASE=1`).
"""

import os

from gpuyard.providers.conformance import CASES, Case

_EVERY_CASE = "GPUYARD_EVERY_CASE" in os.environ
_NAMES = {case.name for case in CASES}


def only(names: set[str]) -> list[Case]:
    """The cases with these names."""
    assert names <= _NAMES, names - _NAMES
    return [case for case in CASES if _EVERY_CASE or case.name in names]


def all_but(names: set[str]) -> list[Case]:
    """The cases with other names."""
    return only(_NAMES - names)
