"""Takes what does not exist for who asks out of answers about many things: the jobs of
private projects, in explanations, warnings and events, and the names of these projects.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, cast

from gpuyard.controller.visibility import Visibility
from gpuyard.ledger.queries import Queries

_JOB_ID = re.compile(r"job_[0-9a-f]{32}")
_ANOTHER = "a job of others"
_OTHERS = "others"


def conceal(queries: Queries, visibility: Visibility, document: Any) -> Any:
    """The document without what is hidden: in texts, a job of a hidden project becomes
    one of others; in lists, it is left out.
    """
    if not visibility.hidden:
        return document
    hidden_jobs = hidden_jobs_of(queries, visibility, set(_job_ids(document)))
    return _without(document, hidden_jobs, _naming(visibility.hidden))


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
    return re.compile(rf"{who} in project (?:{names})(?![-.]?\w)")


def _without(document: Any, jobs: Collection[str], naming: re.Pattern[str]) -> Any:
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


def _without_jobs(text: str, jobs: Collection[str]) -> str:
    found = [job_id for job_id in _JOB_ID.findall(text) if job_id in jobs]
    for job_id in found:
        # Where a text has the name of a job, its id follows in brackets.
        text = re.sub(rf"job [^();]* \({job_id}\)|{job_id}", _ANOTHER, text)
    return text
