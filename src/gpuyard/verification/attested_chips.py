"""One attested chip behind several executors: in a batch, or shortly after another."""

from collections.abc import Callable, Sequence

from gpuyard.verification.check import Check
from gpuyard.verification.claims import attested_chips, shown_twice
from gpuyard.verification.records import Records

SHOWN_BEFORE_S = 3600.0
"""How long a chip that has vouched for one executor vouches for none elsewhere."""
_Passed = list[tuple[str, list[str]]]


def shared_chips(
    records: Records, places: Callable[[str], str], checks: Sequence[Check]
) -> dict[str, dict[str, str]]:
    """The chips of these checks that another executor has shown, too.

    Returns executor → chip → another executor. Two of a batch may not show one chip.
    Nor may one show what an executor at another place has passed with in the last hour:
    `places` tells the place of an executor by its name. Only what a chip has signed for
    a check counts, so that nobody can show the chip of another by its certificates.
    """
    shown = {check.executor.name: _chips_of(check) for check in checks}
    shared = shown_twice(shown)
    passed = _passed_before(records, checks) if any(shown.values()) else []
    for check in checks:
        name = check.executor.name
        others = {
            chip: other
            for other, chips in passed
            if other != name and places(other) != check.executor.place
            for chip in chips
            if chip in shown[name]
        }
        if others:
            shared[name] = {**others, **shared.get(name, {})}
    return shared


def _chips_of(check: Check) -> list[str]:
    root = check.expected.attestation_root
    if root is None or not check.claims:
        return []
    return attested_chips(check.claims, root, check.nonce)


def _passed_before(records: Records, checks: Sequence[Check]) -> _Passed:
    """The executors that have passed lately, each with the chips that it showed."""
    roots = (check.expected.attestation_root for check in checks)
    root = next(root for root in roots if root)
    since = min(check.created_at for check in checks) - SHOWN_BEFORE_S
    return [
        (executor, attested_chips(claims, root))
        for executor, claims in records.claims_since(since)
    ]
