"""`/api/v1/datasets`: datasets and their versions. A client asks which chunks are
missing, sends those, and then adds the version that they make up.
"""

import errno
from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated

from fastapi import Path, Query, Request
from pydantic import BaseModel

from gpuyard.controller.datasets import version_of
from gpuyard.domain.dataset_names import check_dataset_name
from gpuyard.domain.datasets import (
    Dataset,
    DatasetFile,
    DatasetVersion,
    WantedChunks,
    is_sha256,
    read_manifest,
)
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.spec_values import Name as Word
from gpuyard.server.api_router import api_router
from gpuyard.server.app_state import AppState
from gpuyard.server.dependencies import TheAppState
from gpuyard.server.permissions import identity_of, visibility_of
from gpuyard.storage import dataset_store
from gpuyard.storage.place import in_background

router = api_router("/datasets", tag="datasets")
Project = Annotated[Word, Path(description="A project; `default` for none.")]
Name = Annotated[str, Path(description="The name of a dataset.")]
Number = Annotated[int, Path(ge=1, le=10**9, description="The number of a version.")]
Sha256 = Annotated[str, Path(pattern="^[0-9a-f]{64}$", description="Of the chunk.")]
_MOST_ASKED = 1000


class DatasetPage(BaseModel):
    """Datasets by project and name."""

    items: list[Dataset]
    next: str | None = None


class VersionPage(BaseModel):
    """The versions of a dataset, the newest first."""

    items: list[DatasetVersion]
    next: str | None = None


class FilePage(BaseModel):
    """The files of a version, by path; `next` is what to give as `cursor` for more."""

    items: list[DatasetFile]
    next: str | None = None


class MissingChunks(BaseModel):
    """The SHA-256 of those chunks that are to be sent."""

    missing: list[str]


@router.get("")
async def list_datasets(
    request: Request,
    app_state: TheAppState,
    project: Annotated[str | None, Query(description="Only of this project.")] = None,
) -> DatasetPage:
    """The datasets that you may use."""
    visibility = visibility_of(request.scope, app_state.controller)
    found = app_state.controller.datasets.visible_to(visibility, project)
    return DatasetPage(items=found)


@router.get("/{project}/{name}")
async def show_dataset(
    request: Request, app_state: TheAppState, project: Project, name: Name
) -> Dataset:
    """A dataset with its versions."""
    return _find(request, app_state, project, name)


@router.get("/{project}/{name}/versions")
async def list_versions(
    request: Request, app_state: TheAppState, project: Project, name: Name
) -> VersionPage:
    """The versions of a dataset, the newest first."""
    return VersionPage(items=_find(request, app_state, project, name).versions)


@router.get("/{project}/{name}/versions/{number}/files")
async def list_files(
    request: Request,
    app_state: TheAppState,
    project: Project,
    name: Name,
    number: Number,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
    cursor: Annotated[str, Query(description="The path before the first.")] = "",
) -> FilePage:
    """The files of a version."""
    dataset = _find(request, app_state, project, name)
    version = version_of(dataset, number)
    manifest = await app_state.controller.datasets.manifest(dataset, version)
    wanted = [file for file in manifest.files if file[0] > cursor][: limit + 1]
    items = [
        DatasetFile(path=path, size=size, executable=executable)
        for path, size, executable in wanted[:limit]
    ]
    return FilePage(items=items, next=items[-1].path if len(wanted) > limit else None)


@router.post("/{project}/{name}/chunks:missing")
async def missing_chunks(
    request: Request,
    app_state: TheAppState,
    project: Project,
    name: Name,
    body: WantedChunks,
) -> MissingChunks:
    """Which of these chunks the project does not have yet."""
    _check_adds(request, app_state, project, name)
    if len(body.chunks) > _MOST_ASKED:
        raise InvalidInputError.of(
            "chunks", f"are {len(body.chunks)}", f"ask for {_MOST_ASKED} at once"
        )
    blobs = app_state.controller.datasets.stores(project)
    for position, digest in enumerate(body.chunks):
        _check_digest(f"chunks.{position}", digest)
    found = await in_background(dataset_store.missing, blobs, body.chunks)
    return MissingChunks(missing=found)


@router.put("/{project}/{name}/chunks/{sha256}", status_code=204)
async def store_chunk(
    request: Request,
    app_state: TheAppState,
    project: Project,
    name: Name,
    sha256: Sha256,
) -> None:
    """Store a chunk, which is the whole body. It stays when no version has it yet, so
    that an upload can go on later.
    """
    _check_adds(request, app_state, project, name)
    blobs = app_state.controller.datasets.stores(project)
    with _storing(app_state):
        await dataset_store.receive_chunk(blobs, sha256, request.stream())


@router.post("/{project}/{name}/versions", status_code=201)
async def add_version(
    request: Request, app_state: TheAppState, project: Project, name: Name
) -> Dataset:
    """Add a version, given as `{"files": [[PATH, SIZE, EXECUTABLE]], "chunks":
    [[SHA256, SIZE]]}`; its chunks must be there. If the newest version is equal, that
    stays the newest.
    """
    _check_adds(request, app_state, project, name)
    content = await request.body()
    manifest = await in_background(read_manifest, content)
    datasets = app_state.controller.datasets
    identity = identity_of(request.scope)
    return await datasets.add_version(identity, project, name, manifest)


@router.delete("/{project}/{name}")
async def remove_dataset(
    request: Request, app_state: TheAppState, project: Project, name: Name
) -> Dataset:
    """Remove a dataset with all its versions; what it was. Jobs that wait for it
    fail.
    """
    identity = identity_of(request.scope)
    return await app_state.controller.datasets.remove(identity, project, name)


@router.delete("/{project}/{name}/versions/{number}")
async def remove_version(
    request: Request,
    app_state: TheAppState,
    project: Project,
    name: Name,
    number: Number,
) -> Dataset:
    """Remove a version; what the dataset was before."""
    identity = identity_of(request.scope)
    return await app_state.controller.datasets.remove(identity, project, name, number)


@router.put("/{project}/{name}/shares/{other}")
async def share(
    request: Request, app_state: TheAppState, project: Project, name: Name, other: Word
) -> Dataset:
    """Let the jobs and the members of another project use a dataset."""
    identity = identity_of(request.scope)
    datasets = app_state.controller.datasets
    return await datasets.share(identity, project, name, other, shared=True)


@router.delete("/{project}/{name}/shares/{other}")
async def unshare(
    request: Request, app_state: TheAppState, project: Project, name: Name, other: Word
) -> Dataset:
    """Take that back. Jobs that were submitted before keep their dataset."""
    identity = identity_of(request.scope)
    datasets = app_state.controller.datasets
    return await datasets.share(identity, project, name, other, shared=False)


def _find(request: Request, app_state: AppState, project: str, name: str) -> Dataset:
    visibility = visibility_of(request.scope, app_state.controller)
    return app_state.controller.datasets.find(project, name, visibility)


def _check_adds(request: Request, app_state: AppState, project: str, name: str) -> None:
    """Refuse who may not add to the project, and what is no name."""
    identity = identity_of(request.scope)
    app_state.controller.datasets.check_adds(identity, project)
    check_dataset_name(name)


@contextmanager
def _storing(app_state: AppState) -> Generator[None]:
    """DiskFullError when the disk is full for what is stored."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise app_state.controller.disks.full_disk(
            "The dataset cannot be stored: the disk is full. What was sent is kept, and"
            " the same command goes on there."
        ) from None


def _check_digest(field: str, digest: str) -> None:
    if not is_sha256(digest):
        raise InvalidInputError.of(field, "is no SHA-256", "give 64 hex digits")
