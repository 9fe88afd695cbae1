"""The methods of `AsyncClient` for artifacts."""

from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from gpuyard.client import artifact_calls
from gpuyard.client.artifact_download import ArtifactDownload
from gpuyard.client.calls import Call, StreamCall
from gpuyard.domain.artifacts import DAY_S, Artifact, ArtifactLink, LivingLink

T = TypeVar("T")


class AsyncArtifactMethods:
    """Files that jobs have left; gpuyard keeps them."""

    async def call(self, call: Call[T]) -> T:
        """Carry one call."""
        raise NotImplementedError

    def _stream(self, stream: StreamCall) -> AsyncIterator[bytes]:
        raise NotImplementedError

    async def artifacts(self, job: str) -> list[Artifact]:
        """Those of a job, by path."""
        return await self.call(artifact_calls.listing(job))

    async def download_artifact(
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
            async for part in self._stream(artifact_calls.content(artifact.id)):
                download.write(part)
                tell(len(part))
            return download.finish()

    async def share_artifact(
        self, artifact: Artifact, valid_s: float = 7 * DAY_S
    ) -> ArtifactLink:
        """A link with which anybody who can reach the server gets it, for so many
        seconds.
        """
        return await self.call(artifact_calls.share(artifact.id, valid_s))

    async def artifact_links(self, artifact: Artifact) -> list[LivingLink]:
        """The links that open it now, the oldest first."""
        return await self.call(artifact_calls.links(artifact.id))

    async def end_artifact_link(self, artifact: Artifact, link_id: str) -> None:
        """Let one link to it open nothing any more. NotFoundError if none has the
        id.
        """
        await self.call(artifact_calls.end_link(artifact.id, link_id))

    async def end_artifact_links(self) -> None:
        """Let all links to artifacts, of everybody, open nothing any more."""
        await self.call(artifact_calls.end_links())

    async def remove_artifacts(
        self, job: str, paths: Sequence[str] = ()
    ) -> list[Artifact]:
        """Remove those of a job with these paths, or below such folders; all without
        any. What they were.
        """
        return await self.call(artifact_calls.remove(job, paths))
