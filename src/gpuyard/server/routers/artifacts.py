"""`/api/v1/artifacts`: one artifact, its bytes and links to it; a job's list of them is
under the job.
"""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Query, Request, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel

from gpuyard.domain.artifacts import (
    Artifact,
    ArtifactLink,
    FoundArtifact,
    LivingLink,
    WantedLink,
)
from gpuyard.domain.errors import GpuyardError, NotFoundError
from gpuyard.server import artifact_links
from gpuyard.server.api_router import api_router, open_api_router
from gpuyard.server.app_state import AppState
from gpuyard.server.dependencies import TheAppState
from gpuyard.server.openapi import text
from gpuyard.server.permissions import check_own, identity_of, visibility_of
from gpuyard.server.present import present_artifact
from gpuyard.server.range_response import blob_response
from gpuyard.storage.blobs import BlobStore

router = api_router(tag="artifacts")
open_router = open_api_router(tag="artifacts")
_BYTES = text("application/octet-stream")


class ArtifactPage(BaseModel):
    """The artifacts of a job, by path."""

    items: list[Artifact]
    next: str | None = None


@router.get("/jobs/{reference}/artifacts")
async def list_artifacts(
    reference: str, request: Request, app_state: TheAppState
) -> ArtifactPage:
    """The files that a job has left, by path."""
    job_id = _find_job(reference, request, app_state)
    return await asyncio.to_thread(_page, app_state, job_id)


def _page(app_state: AppState, job_id: str) -> ArtifactPage:
    """Blocks on the ledger: a job may have left very many."""
    rows = app_state.queries.artifacts_of(job_id)
    return ArtifactPage(items=[present_artifact(row) for row in rows])


@router.delete("/jobs/{reference}/artifacts")
async def remove_artifacts(
    reference: str,
    request: Request,
    app_state: TheAppState,
    path: Annotated[
        list[str] | None,
        Query(description="A file, or a folder of them; all without any."),
    ] = None,
) -> ArtifactPage:
    """Remove artifacts of a job; what they were. Links to them open nothing any
    more.
    """
    job_id = _find_job(reference, request, app_state)
    await check_own(request.scope, app_state.controller, [job_id])
    artifacts = app_state.controller.reports.artifacts
    rows = await artifacts.remove(job_id, path or [])
    return ArtifactPage(items=[present_artifact(row) for row in rows])


class FoundArtifactPage(BaseModel):
    """Artifacts of all jobs, newest first."""

    items: list[FoundArtifact]
    next: str | None = None


@router.get("/artifacts")
async def search_artifacts(
    request: Request,
    app_state: TheAppState,
    text: Annotated[
        str, Query(max_length=200, description="In the path, or the job's name.")
    ] = "",
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    cursor: Annotated[
        str | None, Query(description="The `next` of the page before.")
    ] = None,
) -> FoundArtifactPage:
    """The files that all jobs have left, newest first. A page may have fewer than
    `limit`, for those of projects that you do not see are left out.
    """
    read = app_state.queries.newest_artifacts
    rows = await asyncio.to_thread(read, limit, text, cursor)
    after = rows[-1]["id"] if len(rows) == limit else None
    ids = {row["job_id"] for row in rows}
    whose = await asyncio.to_thread(app_state.queries.belongings_of, ids)
    visibility = visibility_of(request.scope, app_state.controller)
    items: list[FoundArtifact] = []
    for row in rows:
        (project, user) = whose.get(row["job_id"], (None, None))
        if visibility.sees(project):
            found = {**row, "project": project, "user": user}
            items.append(FoundArtifact.model_validate(found))
    return FoundArtifactPage(items=items, next=after)


@router.get("/artifacts/{artifact_id}")
async def show_artifact(
    artifact_id: str, request: Request, app_state: TheAppState
) -> Artifact:
    """One artifact."""
    return present_artifact(_row(artifact_id, request, app_state))


@router.get(
    "/artifacts/{artifact_id}/content", response_class=FileResponse, responses=_BYTES
)
async def artifact_content(
    artifact_id: str, request: Request, app_state: TheAppState
) -> Response:
    """Its bytes. `ETag` is the SHA-256."""
    row = _row(artifact_id, request, app_state)
    return await _content(row, request, app_state, lambda: _unknown(artifact_id))


@router.post("/artifacts/{artifact_id}/links", status_code=201)
async def share_artifact(
    artifact_id: str, body: WantedLink, request: Request, app_state: TheAppState
) -> ArtifactLink:
    """A link with which anybody who can reach this server gets the bytes, until it
    expires or the artifact is removed.
    """
    own_id = await _own(artifact_id, request, app_state)
    now = app_state.controller.core.clock()
    user = identity_of(request.scope).user
    issue = app_state.artifact_links.issue
    made = await issue(own_id, now + body.valid_s, user, now)
    return app_state.living_link(own_id, made)


class LinkPage(BaseModel):
    """The links that open an artifact now, the oldest first."""

    items: list[LivingLink]
    next: str | None = None


@router.get("/artifacts/{artifact_id}/links")
async def list_artifact_links(
    artifact_id: str, request: Request, app_state: TheAppState
) -> LinkPage:
    """The links to an artifact that have not expired, for who may share it. Those that
    gpuyard issued before it kept lists are missing.
    """
    own_id = await _own(artifact_id, request, app_state)
    living = app_state.artifact_links.living(own_id, app_state.controller.core.clock())
    return LinkPage(items=[app_state.living_link(own_id, link) for link in living])


@router.delete("/artifacts/{artifact_id}/links/{link_id}", status_code=204)
async def end_artifact_link(
    artifact_id: str, link_id: str, request: Request, app_state: TheAppState
) -> None:
    """Let one link to an artifact open nothing any more."""
    own_id = await _own(artifact_id, request, app_state)
    now = app_state.controller.core.clock()
    await app_state.artifact_links.end(own_id, link_id, now)


@router.delete("/artifact-links", status_code=204)
async def end_artifact_links(app_state: TheAppState) -> None:
    """Let all links to artifacts, of everybody, open nothing any more."""
    await app_state.artifact_links.end_all()


@open_router.get(
    artifact_links.LINK_PATH, response_class=FileResponse, responses=_BYTES
)
async def shared_artifact(
    request: Request,
    app_state: TheAppState,
    link: Annotated[str, Query(max_length=1000, description="Of the link.")] = "",
) -> Response:
    """The bytes of an artifact, for who has a link to it: no token is needed."""
    row = app_state.queries.artifact(app_state.linked_artifact(link))
    if row is None:
        raise artifact_links.not_open()
    return await _content(row, request, app_state, artifact_links.not_open)


async def _content(
    row: dict[str, Any],
    request: Request,
    app_state: AppState,
    gone: Callable[[], GpuyardError],
) -> Response:
    blobs = app_state.blobs
    sha256 = row["sha256"]
    name = row["path"].rsplit("/", 1)[-1]
    if not isinstance(blobs, BlobStore):
        try:
            return await blob_response(blobs, sha256, row["size"], name, request)
        except FileNotFoundError:
            raise gone() from None
    if not blobs.has(sha256):
        raise gone()
    return FileResponse(
        blobs.path(sha256), filename=name, headers={"ETag": f'"{sha256}"'}
    )


def _find_job(reference: str, request: Request, app_state: AppState) -> str:
    visibility = visibility_of(request.scope, app_state.controller)
    return app_state.controller.requests.find(reference, visibility)


async def _own(artifact_id: str, request: Request, app_state: AppState) -> str:
    """The id of an artifact that who asks may share; ForbiddenError, NotFoundError."""
    row = _row(artifact_id, request, app_state)
    await check_own(request.scope, app_state.controller, [row["job_id"]])
    return row["id"]


def _row(artifact_id: str, request: Request, app_state: AppState) -> dict[str, Any]:
    row = app_state.queries.artifact(artifact_id)
    visibility = visibility_of(request.scope, app_state.controller)
    if row and visibility.hidden:
        projects = app_state.queries.projects_of_jobs([row["job_id"]])
        if not visibility.sees(projects.get(row["job_id"])):
            row = None
    if row is None:
        raise _unknown(artifact_id)
    return row


def _unknown(artifact_id: str) -> NotFoundError:
    return NotFoundError(
        f"There is no artifact {artifact_id!r}.",
        "`gpuyard artifacts list JOB` lists them.",
    )
