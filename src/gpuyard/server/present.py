"""From ledger rows to the job resource: attempts, live progress, cost so far."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
from pydantic import ValidationError

from gpuyard.billing.meter import SHARE, cost
from gpuyard.controller.core import Core
from gpuyard.controller.intake import PreparedJob
from gpuyard.controller.submissions import code_folder
from gpuyard.domain.artifacts import Artifact
from gpuyard.domain.end_notices import without_addresses
from gpuyard.domain.jobs import (
    Attempt,
    Checkpoint,
    Code,
    Cost,
    Environment,
    Job,
    Progress,
)
from gpuyard.domain.jobspec import JobKind
from gpuyard.domain.own_nodes import OWN_NODES
from gpuyard.domain.price_parts import amounts, recorded
from gpuyard.domain.reasons import Reason
from gpuyard.domain.run_time import run_time_s
from gpuyard.domain.secret_names import without_keys
from gpuyard.domain.states import AttemptState, JobState
from gpuyard.server.app_state import AppState
from gpuyard.storage.code_folders import code_of_attempt
from gpuyard.storage.code_store import CodeMissingError

Row = Mapping[str, Any]


def present_jobs(app_state: AppState, rows: Sequence[Row]) -> list[Job]:
    """The resources of these job rows, with a fixed number of reads however many they
    are.
    """
    ids = [row["id"] for row in rows]
    attempts = app_state.queries.attempts_of(ids)
    progress = app_state.queries.progress_of(ids) | {
        job_id: body
        for job_id in ids
        if (body := app_state.controller.core.progress.get(job_id))
    }
    counts = app_state.queries.checkpoint_counts(ids)
    # There, older jobs have their user only in their specs, and to read these takes
    # time.
    is_shared = app_state.settings.shared.socket is not None
    users = app_state.queries.submitters_of(ids) if is_shared else {}
    core = app_state.controller.core
    return [
        _job(
            row,
            attempts.get(row["id"], []),
            progress.get(row["id"], {}),
            counts.get(row["id"], 0),
            users.get(row["id"]),
            core,
        )
        for row in rows
    ]


def present_spec(app_state: AppState, job_id: str) -> dict[str, Any]:
    """The spec of a job, without the values of variables whose names look like keys,
    and without addresses.
    """
    spec = dict(app_state.queries.specs([job_id])[job_id])
    if "environment" in spec:
        spec["environment"] = without_keys(spec["environment"])
    return without_addresses(spec)


def present_environment(app_state: AppState, job: Job) -> Environment | None:
    """How the environment that a job carries differs from the server's; None if it
    carries none. The job is given with its spec.
    """
    digest = (job.spec or {}).get("carried_environment")
    if digest is None or _ran_elsewhere(job):
        return None
    found = app_state.controller.submissions.difference_to_server(digest)
    if found is None:
        return Environment(stored=False)
    return Environment.model_validate(found, from_attributes=True)


def _ran_elsewhere(job: Job) -> bool:
    """Whether an external queue has the job: it gives it neither this environment nor
    this code.
    """
    # Not from the providers: a server on standby has none.
    return job.provider not in (None, OWN_NODES)


def present_code(app_state: AppState, job: Job) -> Code | None:
    """The code of a job, given with its spec; None if it runs the code as it is then.

    Blocks on the disk.
    """
    spec = job.spec or {}
    digest = spec.get("submitted_code")
    if digest is None or _ran_elsewhere(job):
        return None
    submissions = app_state.controller.submissions
    try:
        tree = submissions.code.get(digest)
    except CodeMissingError:
        return Code(digest=digest, stored=False)
    code = Code(digest=digest, commit=tree.commit, dirty=tree.dirty)
    found = _folder_with_code(app_state, job)
    if found:
        folder, changed = found
        return code.model_copy(update={"folder": str(folder), "changed": changed})
    if job.state is not JobState.QUEUED or job.attempts:
        return code
    workdir = code_folder(spec)
    if not tree.account and not workdir.is_dir():
        return code  # it is on another host, or gone: nothing is known
    changed = submissions.code_changes(tree, workdir)
    return code.model_copy(update={"changed": changed})


def _folder_with_code(app_state: AppState, job: Job) -> tuple[Path, list[str]] | None:
    """The folder with the code of the last attempt, and which files had changed; None
    if it had none. The agent of this home has made it.
    """
    if not job.attempts:
        return None
    attempt_id = job.attempts[-1].id
    found = code_of_attempt(app_state.home.node / "attempts" / attempt_id)
    settings = app_state.settings.node
    if found or not settings.has_accounts:
        return found
    try:
        node_id = (app_state.home.node / "id").read_text().strip()
    except OSError:
        return None
    return code_of_attempt(settings.accounts_folder / node_id / attempt_id)


def present_queued(job: PreparedJob) -> bytes:
    """The resource of a job that was queued just now, as JSON: all but a few fields are
    what a new job has.
    """
    template = job.template
    return msgspec.json.encode(
        {
            **_NEW,
            "id": job.id,
            "name": job.name,
            "kind": template.kind,
            "priority": template.priority,
            "deadline": template.deadline,
            "project": template.project,
            "user": template.user,
            "labels": job.labels,
            "created_at": job.queued_at,
            "held": template.held,
            "warnings": template.warnings,
        }
    )


_BLANK = Job(
    id="",
    name="",
    kind=JobKind.COMMAND,
    state=JobState.QUEUED,
    priority=3,
    created_at=0.0,
)
_NEW = {
    name: msgspec.Raw(msgspec.json.encode(value))
    for name, value in _BLANK.model_dump(mode="json").items()
}


def present_progress(told: Row) -> Progress:
    """What an agent has told of a job; none if that makes no sense. A machine that has
    joined may tell anything, and must not keep others from seeing their jobs.
    """
    try:
        return Progress.model_validate(told)
    except ValidationError:
        return Progress()


def _job(
    row: Row,
    attempt_rows: Sequence[Row],
    progress: Row,
    checkpoints: int,
    user: str | None,
    core: Core,
) -> Job:
    attempts = [_attempt(attempt, core) for attempt in attempt_rows]
    last = attempts[-1] if attempts else None
    return Job(
        **{
            name: row[name]
            for name in (
                "id",
                "name",
                "kind",
                "state",
                "reason",
                "exit_code",
                "priority",
                "deadline",
                "project",
                "created_at",
                "started_at",
                "ended_at",
            )
        },
        user=row["owner"] or user,
        labels=row["labels"] or {},
        provider=last.provider if last else None,
        provider_ref=last.provider_ref if last else None,
        node=last.node if last else None,
        gpus=last.gpus if last else [],
        attempts=attempts,
        progress=present_progress(progress),
        cost=_total(attempts),
        usage=last.usage if last else {},
        checkpoints=checkpoints,
        held=bool(row["held"]),
        array_id=row["array_id"],
        array_index=row["array_index"],
        warnings=row["warnings"] or [],
    )


def _attempt(row: Row, core: Core) -> Attempt:
    price = Decimal(row["price_per_hour"] or 0)
    ran_s = _ran_s(row, core)
    used = cost(price, ran_s or 0.0)
    is_share = row["basis"] == SHARE
    amount = Decimal(row["cost"] or 0)
    if AttemptState(row["state"]).live and not is_share:
        amount = used
    places: list[dict[str, Any]] = row["placements"] or []
    prices = recorded(places, "prices")
    return Attempt(
        **{
            name: row[name]
            for name in (
                "id",
                "number",
                "state",
                "token",
                "provider",
                "provider_ref",
                "created_at",
                "started_at",
                "ended_at",
                "exit_code",
                "signal",
                "reason",
                "message",
                "resumed_from",
            )
        },
        node=places[0]["node_id"] if places else None,
        gpus=[uuid for place in places for uuid in place["gpu_uuids"]],
        ran_s=ran_s,
        limits=row["limits"] or {},
        usage=row["usage"] or {},
        cost=Cost(
            amount=amount,
            share=used if is_share else None,
            currency=row["currency"],
            basis=row["basis"],
            price_per_hour=price,
            tier=row["tier"],
            parts=amounts(amount, prices),
            part_prices={name: Decimal(each) for name, each in prices.items()},
            price_sources=recorded(places, "price_sources"),
        ),
    )


def _ran_s(row: Row, core: Core) -> float | None:
    """For how many seconds an attempt has run; None if it has not started."""
    started_at = row["started_at"]
    if started_at is None:
        return None
    if AttemptState(row["state"]).live:
        measured = core.run_clock.ran_s(row["id"])
        return run_time_s(started_at, core.clock(), measured)
    return run_time_s(started_at, row["ended_at"] or started_at, row["ran_s"])


def present_end(job: Job) -> str:
    """That the job does not wait, and why that is so."""
    if job.reason in (None, job.state):
        return f"The job is not waiting: it is {job.state}."
    last = job.attempts[-1] if job.attempts else None
    words = (last and last.message) or Reason.meaning_of(job.reason)
    reason = f"{job.reason}: {words}" if words else job.reason
    return f"The job is not waiting: it is {job.state} ({reason.rstrip('.')})."


def _total(attempts: Sequence[Attempt]) -> Cost:
    if not attempts:
        return Cost()
    costs = [attempt.cost for attempt in attempts]
    shares = [each.share for each in costs if each.share is not None]
    parts: defaultdict[str, Decimal] = defaultdict(Decimal)
    for each in costs:
        for name, spent in each.parts.items():
            parts[name] += spent
    update = {
        "parts": dict(parts),
        "amount": sum((each.amount for each in costs), Decimal(0)),
        "share": sum(shares, Decimal(0)) if shares else None,
    }
    return costs[-1].model_copy(update=update)


def present_artifact(row: Row) -> Artifact:
    """The resource of an artifact row."""
    return Artifact.model_validate(dict(row))


def present_checkpoint(row: Row) -> Checkpoint:
    """The resource of a checkpoint row."""
    return Checkpoint.model_validate(dict(row))
