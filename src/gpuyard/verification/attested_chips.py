"""One attested chip behind several executors: in a batch, or shortly after another."""

from collections.abc import Callable, Sequence

from gpuyard.verification.check import Check
from gpuyard.verification.claims import attested_chips, shown_twice
from gpuyard.verification.clock import steady_now
from gpuyard.verification.records import Records

SHOWN_BEFORE_S = 3600.0
"""How long after it has vouched for one executor a chip vouches for none elsewhere."""
_Passed = list[tuple[str, list[str]]]


def shared_chips(checks: Sequence[Check]) -> dict[str, dict[str, str]]:
    """The chips of these checks that another executor of the batch has shown, too.

    Returns executor → chip → another executor. Only what a chip has signed for a check
    counts, so that nobody can show the chip of another by its certificates.
    """
    return shown_twice({check.executor.name: _chips_of(check) for check in checks})


def earlier_chips(
    records: Records, places: Callable[[str], str], checks: Sequence[Check]
) -> dict[str, dict[str, str]]:
    """The chips of these checks with which another executor has passed shortly before.

    Returns executor → chip → another executor, at another place: `places` tells that of
    an executor by its name. That shows nothing against either. Who has rented the GPU
    for an hour can let its chip sign, and pass with it first.
    """
    shown = {check.executor.name: _chips_of(check) for check in checks}
    passed = _passed_before(records, checks) if any(shown.values()) else []
    found: dict[str, dict[str, str]] = {}
    for check in checks:
        name = check.executor.name
        for other, chips in passed:
            if other != name and places(other) != check.executor.place:
                both = {chip: other for chip in chips if chip in shown[name]}
                found[name] = {**found.get(name, {}), **both}
    return {name: chips for name, chips in found.items() if chips}


def _chips_of(check: Check) -> list[str]:
    root = check.expected.attestation_root
    if root is None or not check.claims:
        return []
    return attested_chips(check.claims, root, check.nonce)


def _passed_before(records: Records, checks: Sequence[Check]) -> _Passed:
    """The executors that have passed lately, each with the chips that it showed."""
    roots = (check.expected.attestation_root for check in checks)
    root = next(root for root in roots if root)
    answered = [check.answered_at for check in checks if check.answered_at]
    since = min(answered, default=steady_now()) - SHOWN_BEFORE_S
    return [
        (executor, attested_chips(claims, root))
        for executor, claims in records.claims_since(since)
    ]
