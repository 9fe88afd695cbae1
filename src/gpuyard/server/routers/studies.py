"""`/api/v1/studies`: what came of studies of distributed inference.

`gpuyard study run` leaves it here. The newest 500 runs are kept.
"""

import asyncio
from typing import Annotated, Any

from fastapi import Path, Query, Request
from pydantic import BaseModel

from gpuyard.controller.results import ResultKind
from gpuyard.domain.errors import NotFoundError
from gpuyard.domain.studies import NewStudyResult, RunId, StudyResult
from gpuyard.ledger.queries import Row
from gpuyard.server.api_router import api_router
from gpuyard.server.dependencies import TheAppState
from gpuyard.server.permissions import identity_of

router = api_router("/studies", tag="studies")
Run = Annotated[RunId, Path(description="The id of a run of a study.")]
_KIND = ResultKind.STUDY


class StudyPage(BaseModel):
    """Runs of studies, newest first."""

    items: list[StudyResult]
    next: str | None = None


@router.get("")
async def list_studies(
    app_state: TheAppState,
    study: Annotated[str | None, Query(description="Of this one only.")] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    cursor: Annotated[
        str | None, Query(description="The `next` of the page before.")
    ] = None,
) -> StudyPage:
    """What came of runs of studies, newest first."""
    newest = app_state.controller.results.newest
    rows, after = await asyncio.to_thread(newest, _KIND, limit, cursor, about=study)
    return StudyPage(items=[_shown(row) for row in rows], next=after)


@router.get("/{run}")
async def show_study(app_state: TheAppState, run: Run) -> StudyResult:
    """What came of one run of a study."""
    row = app_state.controller.results.find(_KIND, run)
    if row is None:
        raise NotFoundError(
            f"There is no result of a run {run!r} here.",
            "`GET /api/v1/studies` lists them.",
        )
    return _shown(row)


@router.put("/{run}")
async def record_study(
    request: Request, app_state: TheAppState, run: Run, body: NewStudyResult
) -> StudyResult:
    """Leave what came of a run for others to see, in place of what you left of it
    before. Only maintainers replace what others have left.
    """
    identity = identity_of(request.scope)
    results = app_state.controller.results
    before = results.find(_KIND, run)
    if before is not None:
        access = app_state.controller.access
        access.check_changes(identity, run, None, before["owner"])
    document = body.model_dump()
    owner = before["owner"] if before else identity.user
    row = await results.keep(_KIND, run, document, about=body.study, owner=owner)
    return _shown(row)


def _shown(row: Row) -> StudyResult:
    known: dict[str, Any] = {
        **row["body"],
        "run": row["id"],
        "recorded_by": row["owner"],
        "recorded_at": row["recorded_at"],
    }
    return StudyResult.model_validate(known)
