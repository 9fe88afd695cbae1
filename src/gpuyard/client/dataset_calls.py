"""Calls about datasets; see `calls`."""

from typing import Any

from gpuyard.client.answers import items_of, page_of
from gpuyard.client.calls import Call
from gpuyard.client.segments import segment
from gpuyard.domain.datasets import Dataset, DatasetFile, Manifest

_PATH = "/api/v1/datasets"
_read = Dataset.model_validate


def _of(project: str, name: str) -> str:
    return f"{_PATH}/{segment(project)}/{segment(name)}"


def listing(project: str | None) -> Call[list[Dataset]]:
    """Those that one may use, of one project or of all."""
    params = {"project": project} if project else {}
    return Call("GET", _PATH, items_of(Dataset), params=params)


def show(project: str, name: str) -> Call[Dataset]:
    """One dataset."""
    return Call("GET", _of(project, name), _read)


def files(
    project: str, name: str, version: int, cursor: str
) -> Call[tuple[list[DatasetFile], str | None]]:
    """A page of the files of a version, and the next cursor."""
    return Call(
        "GET",
        f"{_of(project, name)}/versions/{version}/files",
        page_of(DatasetFile),
        params={"limit": 10_000, "cursor": cursor},
    )


def missing(project: str, name: str, digests: list[str]) -> Call[set[str]]:
    """Which of these chunks are to be sent."""
    path = f"{_of(project, name)}/chunks:missing"
    body = {"chunks": digests}
    return Call("POST", path, _missing, body=body, done_once=True)


def _missing(answer: Any) -> set[str]:
    return set(answer["missing"])


def store(project: str, name: str, digest: str, content: bytes) -> Call[None]:
    """Send a chunk."""
    path = f"{_of(project, name)}/chunks/{digest}"
    return Call("PUT", path, lambda _: None, body=content, done_once=True)


def add_version(project: str, name: str, manifest: Manifest) -> Call[Dataset]:
    """Add a version whose chunks are there; an equal one adds nothing."""
    path = f"{_of(project, name)}/versions"
    return Call("POST", path, _read, body=manifest.encoded(), done_once=True)


def share(project: str, name: str, other: str, *, shared: bool) -> Call[Dataset]:
    """Share it with a project, or no longer."""
    path = f"{_of(project, name)}/shares/{segment(other)}"
    return Call("PUT" if shared else "DELETE", path, _read, done_once=True)


def remove(project: str, name: str, version: int | None) -> Call[Dataset]:
    """Remove it, or one version; what it was."""
    path = _of(project, name)
    if version is not None:
        path += f"/versions/{version}"
    return Call("DELETE", path, _read)
