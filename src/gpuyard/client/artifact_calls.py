"""Calls about artifacts; see `calls`."""

from collections.abc import Sequence

from gpuyard.client.answers import items_of
from gpuyard.client.calls import Call, StreamCall
from gpuyard.client.segments import segment
from gpuyard.domain.artifacts import Artifact, ArtifactLink, LivingLink

_read = items_of(Artifact)


def _of_job(reference: str) -> str:
    return f"/api/v1/jobs/{segment(reference)}/artifacts"


def _links_of(artifact_id: str) -> str:
    return f"/api/v1/artifacts/{segment(artifact_id)}/links"


def listing(reference: str) -> Call[list[Artifact]]:
    """Those of a job."""
    return Call("GET", _of_job(reference), _read)


def remove(reference: str, paths: Sequence[str]) -> Call[list[Artifact]]:
    """Remove those of a job with these paths, all without any; what they were."""
    return Call("DELETE", _of_job(reference), _read, {"path": list(paths)})


def share(artifact_id: str, valid_s: float) -> Call[ArtifactLink]:
    """A link to one."""
    body = {"valid_s": valid_s}
    path = _links_of(artifact_id)
    return Call("POST", path, ArtifactLink.model_validate, body=body, done_once=True)


def links(artifact_id: str) -> Call[list[LivingLink]]:
    """The links that open it now, the oldest first."""
    return Call(
        "GET",
        _links_of(artifact_id),
        lambda answer: [LivingLink.model_validate(item) for item in answer["items"]],
    )


def end_link(artifact_id: str, link_id: str) -> Call[None]:
    """Let one of them open nothing any more."""
    path = f"{_links_of(artifact_id)}/{segment(link_id)}"
    return Call("DELETE", path, lambda _: None, done_once=True)


def end_links() -> Call[None]:
    """Let no link open anything any more."""
    return Call("DELETE", "/api/v1/artifact-links", lambda _: None, done_once=True)


def content(artifact_id: str) -> StreamCall:
    """Its bytes."""
    return StreamCall(f"/api/v1/artifacts/{segment(artifact_id)}/content")
