"""The connection to Docker's daemon, and pulling of images."""

# docker-py has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import docker
import requests
from docker.errors import (
    APIError,
    DockerException,
    ImageNotFound,
    InvalidVersion,
    NotFound,
)
from docker.models.containers import Container

from gpuyard.domain.errors import JobNotFoundError, ProviderError
from gpuyard.providers.docker.container import reference_of, use_in
from gpuyard.providers.program_use import ProgramUse

_PROVIDER = "docker"
_TIMEOUT_S = 60
_NO_ANSWER = (requests.exceptions.ConnectionError, requests.exceptions.Timeout)
Result = TypeVar("Result")


class DockerDaemon:
    """Calls the daemon at `host`, by default the one that the `docker` command uses.

    `was_away` is set whenever it does not answer; the caller clears it.
    """

    def __init__(self, host: str | None) -> None:
        self._host = host
        self._client: docker.DockerClient | None = None
        self.was_away = False
        # A daemon that hangs must not take all threads of the server.
        self._asking_for_use = asyncio.Lock()

    async def call(
        self, work: Callable[..., Result], *arguments: Any, **named: Any
    ) -> Result:
        """Make a call in a thread; ProviderError when the daemon does not answer."""
        try:
            return await asyncio.to_thread(work, *arguments, **named)
        except _NO_ANSWER as error:
            raise self._away(f"Docker's daemon does not answer: {error}") from None
        except (APIError, ImageNotFound):
            raise
        except DockerException as error:
            message = (
                f"Docker cannot be used: {error}. Is the daemon running, and may you"
                " use it?"
            )
            raise self._away(message) from None

    def _away(self, message: str) -> ProviderError:
        self._client = None
        self.was_away = True
        return ProviderError(message, _PROVIDER, "NOT_CONNECTED")

    async def client(self) -> docker.DockerClient:
        """The client, connected."""
        if self._client is None:
            self._client = await self.call(self._connect)
        return self._client

    def _connect(self) -> docker.DockerClient:
        if self._host:
            return docker.DockerClient(base_url=self._host, timeout=_TIMEOUT_S)
        return docker.from_env(timeout=_TIMEOUT_S)

    async def find(self, job_id: str) -> Container:
        """A container by name; JobNotFoundError when there is none."""
        client = await self.client()
        try:
            return await self.call(client.containers.get, job_id)
        except NotFound:
            raise JobNotFoundError(job_id, _PROVIDER) from None
        except APIError as error:
            # The daemon answers, but cannot find it now.
            message = f"Docker: {error.explanation or error}"
            raise ProviderError(message, _PROVIDER, "TIMEOUT") from None

    async def use_of(self, job_id: str) -> ProgramUse | None:
        """What a container uses now; None where that is not known."""
        async with self._asking_for_use:
            client = await self.client()
            try:
                stats = await self.call(_stats_of, client, job_id)
            except NotFound:
                raise JobNotFoundError(job_id, _PROVIDER) from None
            except APIError as error:
                message = f"Docker: {error.explanation or error}"
                raise ProviderError(message, _PROVIDER, "TIMEOUT") from None
            except TimeoutError as error:
                # It is slow, not away: no container has ended with it.
                message = f"Docker's daemon measures too slowly: {error}"
                raise ProviderError(message, _PROVIDER, "TIMEOUT") from None
        return use_in(stats)

    def close(self) -> None:
        """Close the connection."""
        if self._client is not None:
            self._client.close()


def _stats_of(client: docker.DockerClient, job_id: str) -> Mapping[str, Any]:
    """The daemon's answer; empty if the daemon is older than Docker 20.10. TimeoutError
    if it is connected and takes too long.
    """
    try:
        container = client.containers.get(job_id)
        # Without `one_shot` the daemon looks twice, for a second.
        stats: Any = container.stats(stream=False, one_shot=True)
    except InvalidVersion:
        return {}
    except requests.exceptions.ReadTimeout as error:
        raise TimeoutError(str(error)) from None
    return stats


class ImagePulls:
    """Pulls missing images, each once, even when several attempts need it.

    `progress` says for people how far a pull is, by attempt.
    """

    def __init__(self, daemon: DockerDaemon) -> None:
        self._daemon = daemon
        self._pulls: dict[str, asyncio.Task[None]] = {}
        self.progress: dict[str, str] = {}

    async def ensure(self, image: str, attempt_id: str) -> None:
        """Pull the image unless this host has it."""
        client = await self._daemon.client()
        try:
            await self._daemon.call(client.images.get, image)
        except ImageNotFound:
            await self._join_pull(image, attempt_id)
        except APIError as error:
            message = f"The image {image}: {error.explanation or error}"
            raise ProviderError(message, _PROVIDER, "NO_IMAGE") from None

    async def _join_pull(self, image: str, attempt_id: str) -> None:
        pull = self._pulls.get(image)
        if pull is None:
            pull = asyncio.create_task(self._pull(image, attempt_id))
            self._pulls[image] = pull
            pull.add_done_callback(lambda _: self._pulls.pop(image, None))
        await asyncio.shield(pull)

    async def _pull(self, image: str, attempt_id: str) -> None:
        client = await self._daemon.client()
        self.progress[attempt_id] = f"the image {image} is being pulled"
        try:
            await self._daemon.call(self._pull_layers, client, image, attempt_id)
        except APIError as error:
            message = (
                f"The image {image} cannot be pulled: {error.explanation or error}"
            )
            raise ProviderError(message, _PROVIDER, "NO_IMAGE") from None

    def _pull_layers(
        self, client: docker.DockerClient, image: str, attempt_id: str
    ) -> None:
        done: dict[str, int] = {}
        total: dict[str, int] = {}
        for line in client.api.pull(*reference_of(image), stream=True, decode=True):
            if "error" in line:
                raise APIError(line["error"])
            detail = line.get("progressDetail") or {}
            if detail.get("total"):
                done[line["id"]] = detail["current"]
                total[line["id"]] = detail["total"]
                percent = 100 * sum(done.values()) // sum(total.values())
                self.progress[attempt_id] = (
                    f"the image {image} is being pulled: {percent} %"
                )
