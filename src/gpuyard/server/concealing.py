"""Takes what does not exist for who asks out of answers about many things: the jobs of
private projects, in explanations, warnings and events, and the names of these projects.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, cast

from gpuyard.controller.intake import PARENT_FIELDS
from gpuyard.controller.job_lookup import JobLookup
from gpuyard.controller.visibility import Visibility
from gpuyard.domain.errors import DiskFullError, InvalidInputError, NotFoundError
from gpuyard.domain.reservations import Reservation
from gpuyard.ledger.queries import Queries

_JOB_ID = re.compile(r"job_[0-9a-f]{32}")
_ANOTHER = "a job of others"
_OTHERS = "others"
Spec = Mapping[str, Any]


def conceal(queries: Queries, visibility: Visibility, document: Any) -> Any:
    """The document without what is hidden: in texts, a job of a hidden project becomes
    one of others; in lists, it is left out.
    """
    if not visibility.hidden:
        return document
    job_ids = hidden_jobs_of(queries, visibility, set(_job_ids(document)))
    rows = queries.jobs_by_id(job_ids) if job_ids else {}
    hidden = {
        job_id: rows[job_id]["name"] if job_id in rows else "" for job_id in job_ids
    }
    return _without(document, hidden, _naming(visibility.hidden))


def conceal_parents(lookup: JobLookup, visibility: Visibility, spec: Spec) -> Spec:
    """A spec without the names of jobs on which its job depends and that do not exist
    for who asks; whoever wrote them is told them. Reads the ledger for each name.
    """
    if not visibility.hidden or spec.get("user") == visibility.user:
        return spec
    shown = dict(spec)
    for field in PARENT_FIELDS:
        if names := spec.get(field):
            shown[field] = [_seen_name(lookup, visibility, name) for name in names]
    return shown


def _seen_name(lookup: JobLookup, visibility: Visibility, name: str) -> str:
    try:
        lookup.parents(name, visibility)
    except NotFoundError:
        return _ANOTHER
    except InvalidInputError:  # it means several
        pass
    return name


def conceal_holder(
    queries: Queries, visibility: Visibility, reservation: Reservation
) -> Reservation:
    """A reservation without the name of a project that does not exist for who asks:
    that its GPUs are taken, everybody must know.
    """
    problem = conceal(queries, visibility, reservation.problem)
    shown: dict[str, Any] = {"problem": problem}
    if not visibility.sees(reservation.project):
        shown = {"project": _OTHERS, "created_by": None, "problem": ""}
    return reservation.model_copy(update=shown)


def conceal_culprit(
    queries: Queries, visibility: Visibility, error: DiskFullError
) -> DiskFullError:
    """The error without the job that fills the disk, if that does not exist for who
    asks.
    """
    if error.job_id is None or error.unnamed is None:
        return error
    is_hidden = hidden_jobs_of(queries, visibility, [error.job_id])
    return error.unnamed if is_hidden else error


def hidden_jobs_of(
    queries: Queries, visibility: Visibility, job_ids: Collection[str]
) -> frozenset[str]:
    """Which of these jobs do not exist for who asks. One that is not in the ledger any
    more is taken for hidden: nobody knows whose it was.
    """
    if not visibility.hidden:
        return frozenset()
    projects = queries.projects_of_jobs(job_ids)
    return frozenset(
        job_id
        for job_id in job_ids
        if job_id not in projects or not visibility.sees(projects[job_id])
    )


def _job_ids(document: Any) -> Iterator[str]:
    if isinstance(document, str):
        yield from _JOB_ID.findall(document)
    elif isinstance(document, Mapping):
        for value in cast("Mapping[str, Any]", document).values():
            yield from _job_ids(value)
    elif isinstance(document, Sequence):
        for value in cast("Sequence[Any]", document):
            yield from _job_ids(value)


def _naming(projects: Collection[str]) -> re.Pattern[str]:
    """What names one of these projects as somebody's."""
    names = "|".join(map(re.escape, sorted(projects, key=len, reverse=True)))
    who = r"(?:the owner of this instance|The owner of this instance|\S+)"
    return re.compile(rf"(?:{who} in )?project (?:{names})(?![-.]?\w)")


def _without(document: Any, jobs: Mapping[str, str], naming: re.Pattern[str]) -> Any:
    """`jobs`: the names of hidden jobs by their ids."""
    if isinstance(document, str):
        return naming.sub(_OTHERS, _without_jobs(document, jobs))
    if isinstance(document, Mapping):
        fields = cast("Mapping[str, Any]", document)
        return {name: _without(fields[name], jobs, naming) for name in fields}
    if isinstance(document, list | tuple):
        values = cast("Sequence[Any]", document)
        return [
            _without(value, jobs, naming)
            for value in values
            if not _is_of_one(value, jobs)
        ]
    return document


def _is_of_one(value: Any, jobs: Collection[str]) -> bool:
    """Whether an element of a list is about a hidden job."""
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value).get("job_id") in jobs
    return isinstance(value, str) and value in jobs


def _without_jobs(text: str, jobs: Mapping[str, str]) -> str:
    for job_id in _JOB_ID.findall(text):
        if job_id in jobs:
            # Where a text has the name of a job, its id follows in brackets. That may
            # be a name that it had before: then better too much goes than too little.
            text = text.replace(f"job {jobs[job_id]} ({job_id})", _ANOTHER)
            text = re.sub(rf"job .*? \({job_id}\)", _ANOTHER, text, flags=re.DOTALL)
            text = text.replace(job_id, _ANOTHER)
    return text
