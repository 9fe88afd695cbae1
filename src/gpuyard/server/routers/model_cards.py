"""`/api/v1/jobs/{job}/card`: a model card, filled from a job."""

import asyncio
from typing import Annotated

from fastapi import Query, Request
from fastapi.responses import PlainTextResponse
from pydantic import StringConstraints

from gpuyard.domain.jobs import Job
from gpuyard.domain.model_card import CardFacts, model_card
from gpuyard.server.api_router import api_router
from gpuyard.server.app_state import AppState
from gpuyard.server.dependencies import TheAppState
from gpuyard.server.openapi import text
from gpuyard.server.permissions import visibility_of
from gpuyard.server.present import (
    present_artifact,
    present_code,
    present_jobs,
    present_spec,
)

MEDIA_TYPE = "text/markdown"
_MOST_TAGS = 50

router = api_router("/jobs", tag="artifacts")
_Word = Annotated[str, StringConstraints(max_length=200)]
_Words = Annotated[list[_Word] | None, Query(max_length=_MOST_TAGS)]


@router.get(
    "/{reference}/card", response_class=PlainTextResponse, responses=text(MEDIA_TYPE)
)
async def card(
    reference: str,
    request: Request,
    app_state: TheAppState,
    license_name: Annotated[_Word, Query(alias="license")] = "unknown",
    base_model: Annotated[_Word | None, Query()] = None,
    data: _Words = None,
    tag: _Words = None,
) -> PlainTextResponse:
    """A model card in Hugging Face's format, as Markdown: the data, metrics, command,
    cost and files of a job. The query says what the job does not: the licence, the
    model that it began with, published data sets and tags.
    """
    visibility = visibility_of(request.scope, app_state.controller)
    job_id = app_state.controller.requests.find(reference, visibility)
    facts = CardFacts(
        license_name or "unknown", base_model or None, data or (), tag or ()
    )
    filled = await asyncio.to_thread(_filled, app_state, job_id, facts)
    return PlainTextResponse(filled, media_type=MEDIA_TYPE)


def _filled(app_state: AppState, job_id: str, facts: CardFacts) -> str:
    """Blocks on the ledger: a job may have left very many files."""
    job = _job(app_state, job_id)
    artifacts = [
        present_artifact(row) for row in app_state.queries.artifacts_of(job_id)
    ]
    return model_card(job, artifacts, facts)


def _job(app_state: AppState, job_id: str) -> Job:
    row = app_state.queries.job(job_id)
    assert row is not None
    (job,) = present_jobs(app_state, [row])
    job = job.model_copy(update={"spec": present_spec(app_state, job_id)})
    return job.model_copy(update={"code": present_code(app_state, job)})
