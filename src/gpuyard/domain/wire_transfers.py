"""Messages on connections between server and agent that are for one thing only: a
stream to an attempt, contents that a node fetches, or a blob or an item of a batch of a
joined machine.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from gpuyard.domain.contents import ContentKind
from gpuyard.domain.wire_types import AttemptId, Count, Sha256, Whole

# The most contents that an agent fetches on one connection.
MAX_FETCHED = 1000
_Fault = Annotated[str, Meta(max_length=10_000)]
_Name = Annotated[str, Meta(max_length=500)]


class _Message(msgspec.Struct, frozen=True, omit_defaults=True):
    pass


# --- agent to server ---


class JoinStream(_Message, frozen=True, tag="JoinStream"):
    """The first message of a connection that answers the OpenStream with this `key`;
    after it come the frames of domain/stream_frames.py.

    With a `problem` there is no stream. `closed_port`: nothing listens at the port.
    """

    key: str
    problem: str = ""
    closed_port: bool = False


class FetchContents(_Message, frozen=True, tag="FetchContents"):
    """The first message of a connection on which an agent fetches what jobs took along
    from their submission: contents of one kind, in this order. `project`: of which the
    dataset is, if they are parts of one.
    """

    kind: ContentKind
    digests: Annotated[list[Sha256], Meta(max_length=MAX_FETCHED)]
    project: Annotated[str, Meta(max_length=200)] = ""


class StoreBlob(_Message, frozen=True, tag="StoreBlob"):
    """The first message of a connection on which the agent of a joined machine stores a
    checkpoint of its attempt: parts follow, and the server answers with BlobStored.
    """

    attempt_id: AttemptId
    sha256: Sha256
    size: Count


class BlobPart(_Message, frozen=True, tag="BlobPart"):
    """The next bytes of a blob that an agent stores, or its `end`, without bytes."""

    data: bytes = b""
    end: bool = False


class FetchBlob(_Message, frozen=True, tag="FetchBlob"):
    """The first message of a connection on which the agent of a joined machine fetches
    the checkpoint from which its attempt resumes: ContentParts follow.
    """

    attempt_id: AttemptId


class ItemDone(msgspec.Struct, frozen=True, omit_defaults=True):
    """How a worker's item went, at which of its attempts: `fault` says why it was not
    done, `crashed` that the script's process is gone.
    """

    number: Whole
    attempts: Whole = 1
    fault: _Fault | None = None
    crashed: bool = False


class TakeItem(_Message, frozen=True, tag="TakeItem"):
    """The first message of a connection on which the agent of a joined machine passes
    on what a worker of a batch says: how its last item went, or why its script cannot
    be loaded. The server answers with ItemGiven.
    """

    batch_id: _Name
    attempt_id: AttemptId
    token: _Name
    done: ItemDone | None = None
    fault: _Fault | None = None


# --- server to agent ---


class OpenStream(_Message, frozen=True, tag="OpenStream"):
    """Connect once more, say JoinStream, and connect the stream to this `port` of the
    node; with `stdin` to the standard input of the attempt's program, or else to a
    command beside it. `own_port`: only if the attempt itself listens there.
    """

    key: str
    attempt_id: AttemptId
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    stdin: bool = False
    own_port: bool = False


class ContentPart(_Message, frozen=True, tag="ContentPart"):
    """The next bytes of a content that an agent fetches, or its `end`, without bytes.

    `missing`: it is not stored, and this is all about it.
    """

    data: bytes = b""
    end: bool = False
    missing: bool = False


class ItemGiven(_Message, frozen=True, tag="ItemGiven"):
    """The next item of a worker, as JSON; none if it must leave. `refused`: why it may
    not ask any more.
    """

    item: bytes = b""
    refused: str = ""


class BlobStored(_Message, frozen=True, tag="BlobStored"):
    """The blob is stored."""
