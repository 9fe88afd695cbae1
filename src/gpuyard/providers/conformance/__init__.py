"""The conformance suite: what every provider must do, ours or a third party's, as plain
async functions.

A provider's own test module needs three lines, and an async context manager that yields
a `Subject`: the provider, started, and how to give it work.

    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_conformance(case: Case) -> None:
        case.run(subject)

Each case opens the subject afresh, fails with an AssertionError that says what was
expected and what came instead, and cancels what it has left running. A case that needs
what the provider does not offer (`base`'s mixins, or a field of the Subject left None)
raises unittest.SkipTest, which pytest knows. There is no pytest in here.
"""

from gpuyard.providers.conformance import (
    beside,
    input,
    life,
    logs,
    many,
    stopping,
    supply,
)
from gpuyard.providers.conformance.subject import Case, Subject

CASES: tuple[Case, ...] = (
    life.CASES
    + input.CASES
    + logs.CASES
    + stopping.CASES
    + many.CASES
    + supply.CASES
    + beside.CASES
)

__all__ = ["CASES", "Case", "Subject"]
