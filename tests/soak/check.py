"""What must hold at the end of a soak, as the jobs' own files and the ledger tell
it.
"""

from collections import Counter
from typing import Any

from tests.soak.costs import broken_sums
from tests.soak.work import Wanted, Work


def broken_promises(work: Work) -> list[str]:
    """Every promise that was not kept, in words."""
    faults = [f"a submission was refused: {words}" for words in work.refused]
    with work.instance.client() as client:
        jobs = {job.id: job for job in client.jobs(limit=1000)}
    keys = Counter(job.name for job in jobs.values())
    faults += [f"{key} made {count} jobs" for key, count in keys.items() if count > 1]
    for key, wanted in work.wanted.items():
        job = jobs.get(wanted.id)
        if job is None:
            faults.append(f"{key} was acknowledged and is lost")
        else:
            faults += [
                f"{key} ({wanted.kind}): {fault}"
                for fault in _faults(work, key, wanted, job)
            ]
    faults += broken_sums(work.instance, list(jobs.values()))
    (node,) = work.instance.json("nodes")["items"]
    if any(node["booked"].values()):
        faults.append(f"bookings are left when all is over: {node['booked']}")
    return faults


def _faults(work: Work, key: str, wanted: Wanted, job: Any) -> list[str]:
    path = work.instance.work / key
    lines = path.read_text().splitlines() if path.exists() else []
    tries = [int(line.split()[1]) for line in lines]
    # One that was sent ahead to its node may be called back before it began, and takes
    # its turn again.
    reasons = [
        attempt.reason for attempt in job.attempts if attempt.reason != "revoked"
    ]
    faults: list[str] = []
    if tries != sorted(tries) or len(lines) != len(set(lines)):
        faults.append(f"two tries ran at once, or one ran twice: {lines}")
    if job.state == "completed" and lines[-1:] != [f"ended {len(job.attempts)}"]:
        faults.append(f"completed, but its program says {lines}")
    if job.state not in ("completed", "failed", "cancelled"):
        faults.append(f"is {job.state}")
    if job.state == "failed" and wanted.kind not in ("failing", "child"):
        faults.append(f"failed for {job.reason}")
    if job.state == "cancelled" and not wanted.cancelled:
        faults.append("was cancelled by nobody")
    expected = 2 if wanted.kind == "retried" else 1
    if len(reasons) > expected + reasons.count("exit_status_lost"):
        faults.append(f"took {len(reasons)} attempts, which ended for {reasons}")
    return faults


def slope_mb_per_minute(samples: list[tuple[float, float]]) -> float:
    """The least-squares slope of (seconds, megabytes)."""
    count = len(samples)
    mean_t = sum(t for t, _ in samples) / count
    mean_mb = sum(mb for _, mb in samples) / count
    spread = sum((t - mean_t) ** 2 for t, _ in samples)
    return (
        60 * sum((t - mean_t) * (mb - mean_mb) for t, mb in samples) / spread
        if spread
        else 0.0
    )
