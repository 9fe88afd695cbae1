"""Makes the record of a run, and the body of a job that repeats one."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from gpuyard.controller.submissions import Submissions
from gpuyard.domain.errors import RefusedError
from gpuyard.domain.jobs import Job
from gpuyard.domain.jobspec import JobKind
from gpuyard.domain.records import (
    RERUN_LABEL,
    AttemptRecord,
    CodeRecord,
    PackagesRecord,
    RunRecord,
    seed_of,
)
from gpuyard.domain.secret_names import looks_like_key
from gpuyard.server.app_state import AppState
from gpuyard.storage.code_store import CodeMissingError
from gpuyard.storage.environments import EnvironmentMissingError
from gpuyard.storage.package_lists import PackagesMissingError

_NEEDS = ("resources", "tier", "image", "spot", "provider", "timeout_s")
# What belongs to one submission, and not to what it runs: its deadline may be past, and
# whoever is told of its end is told by its owner.
_NOT_REPEATED = frozenset(
    {"idempotency_key", "user", "held", "labels", "deadline", "notify"}
    | {"depends_on", "depends_on_failed", "depends_on_any"}
)
# Labels by which something finds the jobs that are its own: a job that repeats one is
# no run of its sweep, no step of its flow and no job of its schedule.
_GROUP = re.compile(r"schedule|(study|sweep|flow)(-.*)?")


def run_record(app_state: AppState, job: Job) -> RunRecord:
    """The record of a job, which is given with its spec. Blocks on the disk."""
    spec = job.spec or {}
    rows = app_state.queries.attempts_of([job.id])[job.id]
    facts: list[dict[str, str]] = [dict(row["facts"] or {}) for row in rows]
    last = facts[-1] if facts else {}
    installed = last.get("packages", "").splitlines()
    submissions = app_state.controller.submissions
    command = list(spec.get("command", []))
    environment = spec.get("environment", {})
    return RunRecord(
        id=job.id,
        name=job.name,
        state=job.state,
        command=command,
        workdir=spec.get("workdir"),
        seed=seed_of(command, environment),
        environment=environment,
        secrets=sorted(spec.get("secrets", {}).values()),
        carried_environment=spec.get("carried_environment"),
        code=_code(submissions, spec.get("submitted_code")),
        packages=_packages(submissions, spec.get("packages"), installed),
        datasets=list(spec.get("datasets", [])),
        workspace=spec.get("workspace"),
        needs={name: spec[name] for name in _NEEDS if name in spec},
        attempts=_attempts(job, facts),
        metrics=job.progress.metrics,
        links=job.progress.links,
        rerun_of=job.labels.get(RERUN_LABEL),
    )


def _attempts(job: Job, facts: Sequence[Mapping[str, str]]) -> list[AttemptRecord]:
    return [
        AttemptRecord(
            number=attempt.number,
            node=attempt.node,
            gpus=attempt.gpus,
            started_at=attempt.started_at,
            ended_at=attempt.ended_at,
            exit_code=attempt.exit_code,
            facts={name: fact for name, fact in known.items() if name != "packages"},
        )
        for attempt, known in zip(job.attempts, facts, strict=False)
    ]


def _code(submissions: Submissions, digest: str | None) -> CodeRecord | None:
    if digest is None:
        return None
    try:
        tree = submissions.code.get(digest)
    except CodeMissingError:
        return CodeRecord(digest=digest, stored=False)
    return CodeRecord(
        digest=digest,
        stored=True,
        commit=tree.commit,
        dirty=tree.dirty,
        diff=tree.diff,
    )


def _packages(
    submissions: Submissions, digest: str | None, installed: list[str]
) -> PackagesRecord | None:
    if digest is None:
        return None
    try:
        found = submissions.packages.get(digest)
    except PackagesMissingError:
        return PackagesRecord(digest=digest, stored=False, installed=installed)
    return PackagesRecord(
        digest=digest,
        stored=True,
        file=found.source,
        python=found.python,
        installed=installed,
    )


def rerun_body(
    submissions: Submissions,
    job: Job,
    spec: Mapping[str, Any],
    user: str | None,
    *,
    is_own: bool,
) -> tuple[dict[str, Any], list[str]]:
    """The body of a job of `user` that repeats this one, and what may differ;
    RefusedError if what it needs is gone, or kept for jobs of others. `spec` is as
    stored. `is_own`: who asks may change this job, and so may have its keys. Blocks on
    the disk.
    """
    if job.kind is not JobKind.COMMAND:
        remedy = "Submit it again as it was submitted."
        raise RefusedError(f"{job.id} is no command, and so has no record.", remedy)
    if job.array_id is not None:
        raise RefusedError(
            f"{job.id} is a task of an array, and not a run of its own.",
            "Submit its command with the index filled in.",
        )
    _check_stored(submissions, job, spec)
    _check_for(submissions, job, spec, user)
    body = {name: value for name, value in spec.items() if name not in _NOT_REPEATED}
    labels = {k: v for k, v in job.labels.items() if not _GROUP.fullmatch(k)}
    body["labels"] = {**labels, RERUN_LABEL: job.id}
    notes: list[str] = [] if is_own else _leave_out_keys(body)
    if not spec.get("submitted_code") and spec.get("workdir"):
        notes.append(
            "its code was not stored: it runs what is now in its folder, which may"
            " differ"
        )
    if spec.get("workspace"):
        notes.append("its workspace is as later jobs have left it")
    return body, notes


def _leave_out_keys(body: dict[str, Any]) -> list[str]:
    """Leave out the keys, which are shown to nobody else; a note for people."""
    environment: Mapping[str, str] = body.get("environment", {})
    keys = sorted(filter(looks_like_key, environment))
    if not keys:
        return []
    body["environment"] = {k: v for k, v in environment.items() if k not in keys}
    return [f"it lacks {', '.join(keys)}: their values are shown to nobody else"]


def _check_stored(submissions: Submissions, job: Job, spec: Mapping[str, Any]) -> None:
    """RefusedError if something that the job took along is no longer stored."""
    what = ""
    try:
        if digest := spec.get("submitted_code"):
            what = "code"
            submissions.code.get(digest)
        if digest := spec.get("carried_environment"):
            what = "environment"
            submissions.environments.get(digest)
        if digest := spec.get("packages"):
            what = "list of packages"
            submissions.packages.get(digest)
    except (CodeMissingError, EnvironmentMissingError, PackagesMissingError):
        raise RefusedError(
            f"The {what} of {job.id} is no longer stored, so it cannot be repeated.",
            "Submit it again with what is there now; `gpuyard record` says what was.",
        ) from None


def _check_for(
    submissions: Submissions, job: Job, spec: Mapping[str, Any], user: str | None
) -> None:
    """RefusedError if something that the job took along is for jobs of others only."""
    what = submissions.kept_from(spec, user)
    if not what:
        return
    whose = job.user or "the owner of this instance"
    raise RefusedError(
        f"The {what} of {job.id} is kept for jobs of {whose} only.",
        "Submit its command from your own folder; `gpuyard record` says what it had.",
    )
