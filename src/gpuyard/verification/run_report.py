"""What `gpuyard verify run` and `watch` print of a run."""

from typing import TYPE_CHECKING, Any

from gpuyard.client.printing import print_json, print_table, say

if TYPE_CHECKING:
    from gpuyard.verification.verify import VerificationReport

FAILED = 1
"""The exit code when an executor failed or was not judged, or evidence is not sound."""
NOT_VERIFIED = 4
"""The exit code when a class could not be verified, whatever came of the others."""


def exit_code_of(report: "VerificationReport", *, allow_unjudged: bool) -> int:
    """The exit code of a run."""
    if report.changed:
        return NOT_VERIFIED
    return FAILED if report.failed or (report.unjudged and not allow_unjudged) else 0


def print_report(report: "VerificationReport", as_json: bool) -> None:
    """Print the result of a run: one row, or one item, for each check."""
    items = _report_items(report)
    if as_json:
        document = {
            "items": items,
            "left_out": report.left_out,
            "unjudged": report.unjudged,
            "faults": report.faults,
            "changed": report.changed,
            "next": None,
        }
        print_json(document)
        return
    columns = ("EXECUTOR", "CLASS", "OUTCOME", "SECONDS", "TRUST", "CHECK", "WHY")
    rows = [
        (
            one["executor"],
            one["class"],
            one["outcome"],
            one["solve_s"] and round(one["solve_s"], 2),
            one["trust"],
            one["check"][-8:],
            one["reason"],
        )
        for one in items
    ]
    print_table(columns, rows)
    if report.left_out:
        names = ", ".join(report.left_out)
        say(f"Not verified, without a sample or for what is said below: {names}")
    if report.unjudged:
        say(f"Not judged, so not passed: {', '.join(report.unjudged)}")
    for fault in report.faults:
        say(fault)


def _report_items(report: "VerificationReport") -> list[dict[str, Any]]:
    """One item for each check."""
    import time

    from gpuyard.verification.trust import score

    now = time.time()
    trust = {
        name: round(score(record, now), 3) for name, record in report.executors.items()
    }
    return [
        {
            "check": check.id,
            "executor": check.executor.name,
            "class": check.executor.gpu_class.value,
            "outcome": check.outcome.value,
            "solve_s": check.solve_s,
            "reason": check.reason,
            "trust": trust.get(check.executor.name),
        }
        for check in report.checks
    ]
