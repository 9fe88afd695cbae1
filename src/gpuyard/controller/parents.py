"""The jobs on which others depend: from names to ids."""

from collections.abc import Callable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import cast

from gpuyard.controller.intake import PARENT_FIELDS, PreparedJob
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.states import ParentEnd

FindJobs = Callable[[str], Sequence[str] | None]
"""The jobs that a reference means: one, or all tasks of an array."""
MOST_EDGES = 1_000_000
"""The most pairs of jobs in one request of which one waits for the other: the journal
and the memory hold each pair.
"""


def find_parents(jobs: Sequence[PreparedJob], find_jobs: FindJobs) -> None:
    """Fill in `parents` and `parent_ends` from the references, each of which names a
    job of the same request, or what `find_jobs(reference)` finds.

    Raises InvalidInputError for an unknown or ambiguous name, for one that is to end in
    two ways, for a cycle, and for too many.
    """
    if not any(job.references for job in jobs):
        return
    siblings: dict[str, list[str]] = {}
    for job in jobs:
        siblings.setdefault(job.name, []).append(job.id)
    known: dict[str, Sequence[str]] = {}
    for job in jobs:
        for field, names in job.references.items():
            for name in names:
                if name not in known:
                    known[name] = _find_parents(field, name, siblings, find_jobs)
        if job.references:
            _set_parents(job, known)
    refuse_too_many(sum(len(job.parents) for job in jobs))
    _refuse_cycles(jobs)


def _refuse_cycles(jobs: Sequence[PreparedJob]) -> None:
    try:
        TopologicalSorter({job.id: job.parents for job in jobs}).prepare()
    except CycleError as error:
        names = {job.id: job.name for job in jobs}
        around = cast("list[str]", error.args[1])
        circle = " → ".join(names.get(job_id, job_id) for job_id in around)
        raise InvalidInputError.of(
            "depends_on", f"goes in a circle: {circle}", "remove one of these"
        ) from None


def refuse_too_many(edges: int) -> None:
    """InvalidInputError for a request with more than `MOST_EDGES` such pairs."""
    if edges > MOST_EDGES:
        raise InvalidInputError.of(
            "depends_on",
            f"makes {edges:,} pairs of jobs of which one waits for the other, and"
            f" {MOST_EDGES:,} is the most",
            "let a single job wait for all of these, and the others for that job",
        )


def _set_parents(job: PreparedJob, known: Mapping[str, Sequence[str]]) -> None:
    """Set the parents of `job`; `known` has the ids of each reference."""
    ends: dict[str, ParentEnd] = {}
    for field, names in job.references.items():
        wanted = PARENT_FIELDS[field]
        for name in names:
            if any(ends.setdefault(i, wanted) is not wanted for i in known[name]):
                fault = f"{name!r} is to end in another way, too"
                raise InvalidInputError.of(field, fault, "name each job once")
    job.parents = tuple(ends)
    job.parent_ends = {
        parent: end.value
        for parent, end in ends.items()
        if end is not ParentEnd.COMPLETED
    }


def _find_parents(
    field: str, name: str, siblings: Mapping[str, Sequence[str]], find_jobs: FindJobs
) -> Sequence[str]:
    named = siblings.get(name, ())
    if len(named) > 1:
        fault = f"{name!r} is the name of {len(named)} jobs of this submission"
        raise InvalidInputError.of(field, fault, "give each a name of its own")
    found = named or find_jobs(name)
    if not found:
        raise InvalidInputError.of(
            field, f"there is no job {name!r}", "give a job's id, or its name"
        )
    return found
