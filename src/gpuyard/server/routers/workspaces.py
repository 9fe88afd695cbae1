"""`/api/v1/workspaces`: the folders that outlive jobs, and what they hold."""

import heapq
from dataclasses import asdict
from pathlib import Path as PathOnDisk
from typing import Annotated, Any

from fastapi import Path, Query, Request
from pydantic import BaseModel

from gpuyard.domain.errors import NotFoundError, quoted
from gpuyard.domain.spec_values import Name
from gpuyard.domain.workspaces import workspace_key
from gpuyard.server.api_router import api_router
from gpuyard.server.dependencies import TheAppState
from gpuyard.server.permissions import visibility_of
from gpuyard.storage.place import in_background
from gpuyard.storage.workspaces import files_of

router = api_router(tag="workspaces")


class WorkspaceFile(BaseModel):
    """A file of a workspace: `size` in bytes, `changed_at` in UTC seconds."""

    path: str
    size: int
    changed_at: float


class WorkspaceFilePage(BaseModel):
    """The files of a workspace, by path; `next` is what to give as `cursor`."""

    items: list[WorkspaceFile]
    next: str | None = None


@router.get("/workspaces/{project}/{name}/files")
async def list_workspace_files(
    request: Request,
    app_state: TheAppState,
    project: Annotated[Name, Path(description="A project; `default` for none.")],
    name: Annotated[Name, Path(description="The name of a workspace.")],
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    cursor: Annotated[str, Query(description="The path before the first.")] = "",
) -> WorkspaceFilePage:
    """The files of a workspace, by path, as they are now."""
    visibility = visibility_of(request.scope, app_state.controller)
    root = app_state.settings.workspaces.root(app_state.home)
    folder = root / workspace_key(project, name)
    # Whoever put a link there would show what is elsewhere.
    is_there = await in_background(folder.is_dir) and not folder.is_symlink()
    if not is_there or not visibility.sees(project):
        raise NotFoundError(
            f"There is no workspace {quoted(name)} of the project {quoted(project)}.",
            "`gpuyard workspace list` lists them.",
        )
    found, more = await in_background(_files, folder, limit, cursor)
    return WorkspaceFilePage(items=found, next=found[-1].path if more else None)


def _files(
    folder: PathOnDisk, limit: int, cursor: str
) -> tuple[list[WorkspaceFile], bool]:
    """The first files after `cursor`, and whether there are more. Only so many are in
    memory, however many there are. Names that are no text are left out.
    """
    after = (one for one in files_of(folder) if one[0] > cursor and _is_text(one[0]))
    first = heapq.nsmallest(limit + 1, after, key=lambda one: one[0])
    items = [
        WorkspaceFile(path=path, size=status.st_size, changed_at=status.st_mtime)
        for path, status in first[:limit]
    ]
    return items, len(first) > limit


def _is_text(path: str) -> bool:
    """Whether JSON can hold the path: names on a disk may be any bytes."""
    return not any("\ud800" <= one <= "\udfff" for one in path)


@router.get("/workspaces")
async def list_workspaces(request: Request, app_state: TheAppState) -> dict[str, Any]:
    """Every workspace with its size, counted anew; when it was used last, and when it
    is removed if nobody uses it. `quota`: of all workspaces of its project, in bytes.
    """
    visibility = visibility_of(request.scope, app_state.controller)
    found = await app_state.controller.workspaces.listing()
    seen = [one for one in found if visibility.sees(one.project)]
    uses = await in_background(app_state.controller.workspaces.shown, seen)
    items = [
        {**asdict(one), "path": str(one.path), **use}
        for one, use in zip(seen, uses, strict=True)
    ]
    return {"items": items, "next": None}
