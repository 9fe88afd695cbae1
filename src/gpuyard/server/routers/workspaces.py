"""`/api/v1/workspaces`: the folders that outlive jobs, and what they hold."""

import heapq
from collections.abc import Sequence
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
from gpuyard.storage.untrusted import (
    Entry,
    UntrustedFileError,
    folder_beneath,
    walk,
)

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
    found = None
    if visibility.sees(project):
        steps = workspace_key(project, name).split("/")
        found = await in_background(_files, root, steps, limit, cursor)
    if found is None:
        raise NotFoundError(
            f"There is no workspace {quoted(name)} of the project {quoted(project)}.",
            "`gpuyard workspace list` lists them.",
        )
    items, more = found
    return WorkspaceFilePage(items=items, next=items[-1].path if more else None)


def _files(
    root: PathOnDisk, steps: Sequence[str], limit: int, cursor: str
) -> tuple[list[WorkspaceFile], bool] | None:
    """The first files after `cursor` of the folder `steps` below `root`, and whether
    there are more; None if there is no such folder. Only so many are in memory, however
    many there are. Names that are no text are left out.

    No link is followed, also if a job changes the folder meanwhile.
    """
    try:
        with folder_beneath(root, steps) as folder:
            after = (one for one in walk(folder) if _is_listed(one, cursor))
            first = heapq.nsmallest(limit + 1, after, key=lambda one: one.path)
    except FileNotFoundError:
        return None
    except UntrustedFileError:  # a link in place of the folder
        return None
    items = [
        WorkspaceFile(
            path=one.path, size=one.status.st_size, changed_at=one.status.st_mtime
        )
        for one in first[:limit]
    ]
    return items, len(first) > limit


def _is_listed(entry: Entry, cursor: str) -> bool:
    return not entry.is_folder and entry.path > cursor and _is_text(entry.path)


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
