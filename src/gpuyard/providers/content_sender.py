"""Sends agents what jobs took along from their submission, over connections of their
own, so that neither heartbeats nor reports wait for it.
"""

import asyncio
from collections.abc import Iterator, Sequence

from gpuyard.domain import wire, wire_frames
from gpuyard.domain.attempt_order import AttemptOrder
from gpuyard.domain.contents import PART_BYTES, ContentMissingError, ContentSource
from gpuyard.domain.errors import ProviderError
from gpuyard.storage.place import in_background

# An agent that takes nothing for so long is given up.
_STALLED_S = 10.0


def refuse_older_agent(order: AttemptOrder, hello: wire.Hello, provider: str) -> None:
    """ProviderError if the agent that said `hello` cannot fetch what the job took
    along.
    """
    takes_along = order.carried_environment or order.code
    if takes_along and not hello.fetches:
        raise ProviderError(
            f"The agent on {hello.name} is of version {hello.version or 'unknown'},"
            " which cannot fetch the code and the environment that the job was"
            " submitted with. Restart it: `gpuyard down`, `gpuyard up`.",
            provider,
            "OLD_AGENT",
        )
    for field, is_known in (
        ("datasets", hello.datasets),
        ("packages", hello.packages),
        ("artifacts", hello.artifacts),
    ):
        if getattr(order, field) and not is_known:
            raise ProviderError(
                f"The agent on {hello.name} is of version"
                f" {hello.version or 'unknown'}, which knows no {field}. Restart it.",
                provider,
                "OLD_AGENT",
            )


async def send_contents(
    source: ContentSource, digests: Sequence[str], writer: asyncio.StreamWriter
) -> None:
    """Send what an agent asks for. In memory are a few parts, however much it is.

    GpuyardError or OSError when it cannot be read, TimeoutError when the agent takes
    nothing.
    """
    frames = _frames(source, digests)
    while part := await in_background(next, frames, b""):
        writer.write(part)
        try:
            async with asyncio.timeout(_STALLED_S):
                await writer.drain()
        except TimeoutError:
            writer.transport.abort()  # close() would wait for it
            raise


def _frames(contents: ContentSource, digests: Sequence[str]) -> Iterator[bytes]:
    """The messages about these contents; those about small ones together."""
    waiting = bytearray()
    for digest in digests:
        for message in _messages(contents, digest):
            waiting += wire_frames.encode(message)
            if len(waiting) >= PART_BYTES:
                yield bytes(waiting)
                waiting.clear()
    yield bytes(waiting)


def _messages(contents: ContentSource, digest: str) -> Iterator[wire.ContentPart]:
    try:
        for part in contents.parts(digest):
            yield wire.ContentPart(part)
    except ContentMissingError:
        yield wire.ContentPart(missing=True)
    else:
        yield wire.ContentPart(end=True)
