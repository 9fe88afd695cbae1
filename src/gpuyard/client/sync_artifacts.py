"""The methods of `Client` for artifacts."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from gpuyard.client import artifact_calls
from gpuyard.client.artifact_download import ArtifactDownload
from gpuyard.client.calls import Call, StreamCall
from gpuyard.domain.artifacts import DAY_S, Artifact, ArtifactLink, LivingLink

T = TypeVar("T")


class ArtifactMethods:
    """Files that jobs have left; gpuyard keeps them."""

    def call(self, call: Call[T]) -> T:
        """Carry one call."""
        raise NotImplementedError

    def _stream(self, stream: StreamCall) -> Iterator[bytes]:
        raise NotImplementedError

    def artifacts(self, job: str) -> list[Artifact]:
        """Those of a job, by path."""
        return self.call(artifact_calls.listing(job))

    def download_artifact(
        self,
        artifact: Artifact,
        folder: Path,
        tell: Callable[[int], object] = lambda _bytes: None,
    ) -> Path:
        """Save an artifact at its path below `folder`: it appears whole, and with the
        content that the job has left, or not at all. `tell` hears how many bytes have
        come each time.
        """
        with ArtifactDownload(artifact, folder) as download:
            for part in self._stream(artifact_calls.content(artifact.id)):
                download.write(part)
                tell(len(part))
            return download.finish()

    def share_artifact(
        self, artifact: Artifact, valid_s: float = 7 * DAY_S
    ) -> ArtifactLink:
        """A link with which anybody who can reach the server gets it, for so many
        seconds.
        """
        return self.call(artifact_calls.share(artifact.id, valid_s))

    def artifact_links(self, artifact: Artifact) -> list[LivingLink]:
        """The links that open it now, the oldest first."""
        return self.call(artifact_calls.links(artifact.id))

    def end_artifact_link(self, artifact: Artifact, link_id: str) -> None:
        """Let one link to it open nothing any more. NotFoundError if none has the
        id.
        """
        self.call(artifact_calls.end_link(artifact.id, link_id))

    def end_artifact_links(self) -> None:
        """Let all links to artifacts, of everybody, open nothing any more."""
        self.call(artifact_calls.end_links())

    def remove_artifacts(self, job: str, paths: Sequence[str] = ()) -> list[Artifact]:
        """Remove those of a job with these paths, or below such folders; all without
        any. What they were.
        """
        return self.call(artifact_calls.remove(job, paths))
