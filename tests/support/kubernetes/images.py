"""Images: which exist, and what a node says while it pulls one."""

import asyncio
from collections.abc import Awaitable, Callable

from tests.support.kubernetes.events import Recorder
from tests.support.kubernetes.objects import Object
from tests.support.kubernetes.options import Options

Waiting = Callable[[str, str], None]
Pause = Callable[[float], Awaitable[None]]


class Images:
    """What each node has pulled."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.existing = set(options.images)
        # Their registry does not answer.
        self.unreachable: set[str] = set()
        self._pulled: set[tuple[str, str]] = set()

    async def pull(
        self,
        pod: Object,
        container: Object,
        recorder: Recorder,
        waiting: Waiting,
        pause: Pause,
    ) -> None:
        """Return once the image is there.

        `waiting` hears the reason and message of what it waits for.
        """
        image = container["image"]
        node = pod["spec"]["nodeName"]
        policy = container["imagePullPolicy"]
        here = (node, image) in self._pulled
        backoff = self._options.pull_backoff_s
        if here and policy != "Always":
            recorder.normal(
                pod,
                "Pulled",
                f'Container image "{image}" already present on machine',
                container["name"],
            )
            return
        while policy == "Never":
            message = (
                f'Container image "{image}" is not present with pull policy of Never'
            )
            recorder.warning(pod, "ErrImageNeverPull", message, container["name"])
            waiting("ErrImageNeverPull", message)
            await pause(backoff)
        while not await self._try(pod, container, recorder, waiting, pause):
            await pause(backoff)
            recorder.normal(
                pod, "BackOff", f'Back-off pulling image "{image}"', container["name"]
            )
            recorder.warning(
                pod, "Failed", "Error: ImagePullBackOff", container["name"]
            )
            waiting("ImagePullBackOff", f'Back-off pulling image "{image}"')
            backoff = min(backoff * 2, 300.0)
            await pause(backoff)

    async def _try(
        self,
        pod: Object,
        container: Object,
        recorder: Recorder,
        waiting: Waiting,
        pause: Pause,
    ) -> bool:
        image = container["image"]
        name = container["name"]
        recorder.normal(pod, "Pulling", f'Pulling image "{image}"', name)
        began = asyncio.get_running_loop().time()
        await pause(self._options.pull_s)
        if image in self.existing and image not in self.unreachable:
            took = f"{round((asyncio.get_running_loop().time() - began) * 1000)}ms"
            text = (
                f'Successfully pulled image "{image}" in {took} ({took} including'
                " waiting). Image size: 1048576 bytes."
            )
            recorder.normal(pod, "Pulled", text, name)
            self._pulled.add((pod["spec"]["nodeName"], image))
            return True
        message = _not_found(image)
        if image in self.unreachable:
            message = (
                f'failed to pull and unpack image "{image}": failed to do request: Head'
                ' "https://registry.test/v2/": dial tcp 10.0.0.9:443: i/o timeout'
            )
        recorder.warning(
            pod, "Failed", f'Failed to pull image "{image}": {message}', name
        )
        recorder.warning(pod, "Failed", "Error: ErrImagePull", name)
        waiting("ErrImagePull", message)
        return False


def _not_found(image: str) -> str:
    first, slash, _ = image.partition("/")
    host = (
        ""
        if slash and ("." in first or ":" in first)
        else "docker.io/"
        if slash
        else "docker.io/library/"
    )
    full = host + image + ("" if ":" in image.rpartition("/")[2] else ":latest")
    return (
        f'rpc error: code = NotFound desc = failed to pull and unpack image "{full}":'
        f' failed to resolve reference "{full}": {full}: not found'
    )
