"""The agents that are connected: their links, what each has said of its node, and the
reports that they send.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import structlog
from msgspec.structs import replace as replaced

from gpuyard import __version__
from gpuyard.config.sockets import refuse_other_users
from gpuyard.config.throttle import Throttle
from gpuyard.domain import wire, wire_frames
from gpuyard.domain.contents import (
    OF_DATASETS,
    ContentSource,
    DatasetSources,
    Stores,
)
from gpuyard.domain.errors import GpuyardError, ProviderError, RefusedError
from gpuyard.domain.joining import work_together
from gpuyard.domain.wire_frames import UnreadableReport
from gpuyard.providers.base import Sink
from gpuyard.providers.blob_transfer import receive_blob, send_blob
from gpuyard.providers.callers import Caller
from gpuyard.providers.content_sender import send_contents
from gpuyard.providers.link import Link, Message
from gpuyard.providers.node_streams import NodeStreams
from gpuyard.providers.results import AttemptResults

# How long a call waits for the first agent to connect.
_CONNECT_S = 10.0
# What an agent may begin a connection with that is for one transfer only.
_TRANSFERS = (wire.FetchContents, wire.StoreBlob, wire.FetchBlob, wire.TakeItem)
# How often a machine that has joined may begin a link: each time its rows are written.
_LINKS_PER_S = 0.5
_LINKS_AT_ONCE = 20
# How many reports that cannot be read are taken of an agent.
_UNREADABLE_PER_S = 10.0
_UNREADABLE_AT_ONCE = 100
# What an agent that was killed may have left unread in its connection is less.
_BEATS_OF_THE_LIVING = 3
log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Rival:
    """An agent that was refused, because another one with its certificate has `link`.
    `beats`: how often that has beaten since.
    """

    link: Link
    address: str
    beats: int = 0


@dataclass(slots=True)
class _ServedConnection:
    """A connection that is served. `node_id`: empty until its agent has said Hello.
    `reporting` and `watching`: the tasks that forward its reports, and that wait for
    its beats.
    """

    link: Link
    caller: Caller | None
    node_id: str = ""
    reporting: asyncio.Task[None] | None = None
    watching: asyncio.Task[None] | None = None


class ConnectedAgents:
    """Serves the connections of one provider's agents. Its errors name the `provider`.

    `shares_home` says whether a node's agent is that of this server's home.
    """

    def __init__(
        self,
        provider: str,
        heartbeat_s: float,
        results: AttemptResults,
        shares_home: Callable[[str], bool],
    ) -> None:
        self._provider = provider
        self._heartbeat_s = heartbeat_s
        self._results = results
        self._shares_home = shares_home
        self._serving: dict[Link, asyncio.Task[None]] = {}
        self._links: dict[str, Link] = {}
        self._hellos: dict[str, wire.Hello] = {}
        self._callers: dict[str, Caller | None] = {}
        self._rivals: dict[str, Rival] = {}
        # Whether a node's agent is that of this server's home, by node.
        self._at_home: dict[str, bool] = {}
        self._closed = False
        self._pace = Throttle(_LINKS_PER_S, _LINKS_AT_ONCE)
        self._unreadable_pace = Throttle(_UNREADABLE_PER_S, _UNREADABLE_AT_ONCE)
        # How many reports of each node could not be read.
        self._left_out = Counter[str]()
        self.streams = NodeStreams(provider)
        self.sink: Sink | None = None
        self.stores: Stores | None = None
        self.datasets: DatasetSources | None = None
        self.any_connected = asyncio.Event()

    # --- who is connected ---

    @property
    def links(self) -> Mapping[str, Link]:
        """The link of each connected agent, by node."""
        return self._links

    @property
    def hellos(self) -> dict[str, wire.Hello]:
        """What each connected agent has said of its node, by node."""
        return {node_id: self._hellos[node_id] for node_id in self._links}

    def hello(self, node_id: str) -> wire.Hello:
        """What the node's agent has said of it, also before it was disconnected."""
        return self._hellos[node_id]

    def link(self, node_id: str) -> Link:
        """The link of the node's agent; ProviderError while it is not connected."""
        link = self._links.get(node_id)
        if link is None:
            raise self._away(node_id)
        return link

    def _away(self, node_id: str) -> ProviderError:
        message = f"Node {node_id} has no agent connected."
        return ProviderError(message, self._provider, "NOT_CONNECTED")

    def address(self, node_id: str, others: Iterable[str]) -> str:
        """The host of a node, as those of other nodes reach it; ProviderError if its
        agent has not come to this server yet.
        """
        if caller := self._callers.get(node_id):
            return caller.machine.address
        for other in others:
            if caller := self._callers.get(other):
                return caller.machine.server_address
        hello = self._hellos.get(node_id)
        if hello is None:
            raise self._away(node_id)
        return hello.name

    def is_at_home(self, node_id: str) -> bool:
        """Whether the node's agent is that of this server's home."""
        return self._at_home[node_id]

    async def wait_for_one(self) -> None:
        """Wait for the first agent: a server that has just started gets requests before
        its agents connect. ProviderError when none comes.
        """
        if self._links:
            return
        try:
            await asyncio.wait_for(self.any_connected.wait(), _CONNECT_S)
        except TimeoutError:
            raise ProviderError(
                "No agent is connected.", self._provider, "NOT_CONNECTED"
            ) from None

    def disconnect(self) -> None:
        """Drop the links; the agents connect again."""
        for link in list(self._links.values()):
            link.close()

    async def close(self) -> None:
        """Drop the links for good. Agents and jobs go on; agents connect to the next
        server.
        """
        self._closed = True
        self.streams.close()
        tasks = list(self._serving.values())
        for link in self._serving:
            link.close()
        if tasks:
            await asyncio.wait(tasks)

    # --- one connection ---

    async def serve(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        caller: Caller | None = None,
    ) -> None:
        """Serve one agent's connection, from its Hello to its end. `caller`: the
        machine at its other end, if that has joined.
        """
        if self._closed:
            writer.close()
            return
        most = wire_frames.MAX_FRAME_OF_OTHERS if caller else wire_frames.MAX_FRAME
        link = Link(reader, writer, self._provider, most)
        serving = self._serve(link, reader, writer, caller)
        task = asyncio.create_task(serving, name="agent-link")
        self._serving[link] = task
        try:
            await task
        finally:
            del self._serving[link]

    async def _serve(
        self,
        link: Link,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        caller: Caller | None,
    ) -> None:
        connection = _ServedConnection(link, caller)
        try:
            _refuse_other_users(writer)
            _refuse_removed(caller)
            messages = link.messages()
            async for message in messages:
                _refuse_removed(caller)
                if isinstance(message, wire.Beat):
                    await self._beat(message, connection)
                elif connection.node_id:
                    await self._add_report(message, connection)
                elif isinstance(message, wire.Hello):
                    await self._greeted(message, connection)
                elif isinstance(message, wire.JoinStream):
                    await self.streams.join(message, reader, writer)
                    break
                elif isinstance(message, _TRANSFERS):
                    await self._transfer(message, caller, messages, writer)
                    break
        except RefusedError as error:
            log.warning(
                "an agent is refused", node=connection.node_id, error=str(error)
            )
            removed = caller is not None and caller.is_removed()
            _tell(link, str(error), removed=removed)
        except (GpuyardError, ValueError, OSError) as error:
            log.warning("agent link ended", node=connection.node_id, error=str(error))
        finally:
            link.close()
            if connection.watching:
                connection.watching.cancel()
            if connection.reporting:
                await connection.reporting
            await self._leave(connection.node_id, link)

    async def _greeted(self, hello: wire.Hello, connection: _ServedConnection) -> None:
        """Let a node in and begin to forward its reports. RefusedError."""
        caller = connection.caller
        if caller:
            await asyncio.sleep(self._pace.wait_s(caller.machine.node_id))
            hello = self._admitted(hello, caller)
        else:
            self._refuse_without_certificate(hello)
        connection.node_id = hello.node_id
        await self._join(hello, connection.link, caller)
        connection.reporting = asyncio.create_task(
            self._forward_reports(hello.node_id, connection.link),
            name="forward-reports",
        )

    async def _beat(self, beat: wire.Beat, connection: _ServedConnection) -> None:
        """Answer a beat; from the first one on, more are expected."""
        link = connection.link
        link.send(beat)
        await self._beaten(connection.node_id, link)
        if connection.watching is None:
            connection.watching = asyncio.create_task(
                link.expect_beats(self._heartbeat_s)
            )

    async def _add_report(
        self, message: Message, connection: _ServedConnection
    ) -> None:
        """Put a report in the queue of its link; other messages mean nothing here."""
        link = connection.link
        if isinstance(message, wire.NumberedReport):
            await link.add_report(message)
        elif isinstance(message, UnreadableReport):
            self._leave_out(message, connection.node_id)
            await link.add_report(message)
            await link.pause(self._unreadable_pace.wait_s(connection.node_id))

    def _leave_out(self, report: UnreadableReport, node_id: str) -> None:
        """Count and log a report that cannot be read. It is acknowledged in its turn:
        otherwise the agent would repeat it for ever, and nothing after it would count.
        """
        count = self._left_out[node_id] + 1
        self._left_out[node_id] = count
        if count & (count - 1) == 0:  # of thousands, the log has a dozen
            log.warning(
                "a report is left out",
                node=node_id,
                seq=report.seq,
                error=report.fault,
                so_far=count,
            )

    async def _transfer(
        self,
        message: Message,
        caller: Caller | None,
        messages: AsyncIterator[Message],
        writer: asyncio.StreamWriter,
    ) -> None:
        """Serve a connection that is for one transfer only. RefusedError."""
        match message:
            case wire.FetchContents():
                if caller:
                    caller.check_fetch(message)
                if source := self._source(message):
                    await send_contents(source, message.digests, writer)
            case wire.StoreBlob() if caller:
                await receive_blob(message, caller, messages)
                writer.write(wire_frames.encode(wire.BlobStored()))
            case wire.FetchBlob() if caller:
                await send_blob(message, caller, writer)
            case wire.TakeItem() if caller:
                given = await caller.take_item(message)
                writer.write(wire_frames.encode(given))
            case _:
                raise RefusedError("That is nothing to begin a connection with.")

    def _source(self, request: wire.FetchContents) -> ContentSource | None:
        """Where the contents are read that an agent asks for."""
        if request.kind in OF_DATASETS:
            return self.datasets(request.project) if self.datasets else None
        return self.stores(request.kind) if self.stores else None

    def _refuse_without_certificate(self, hello: wire.Hello) -> None:
        """RefusedError for a node that has joined, where no certificate was shown: who
        has the token of the instance is still not that machine.
        """
        assert self.sink is not None
        if self.sink.has_certificate(hello.node_id):
            raise RefusedError(
                f"{hello.node_id} has joined, and comes in with its certificate only.",
                "Connect to `agents_listen`, as `gpuyard join` does.",
            )

    def _admitted(self, hello: wire.Hello, caller: Caller) -> wire.Hello:
        """What a machine that has joined says of itself, but for who it is: its
        certificate says that. RefusedError if it may not come in.
        """
        if not work_together(hello.version, __version__):
            raise RefusedError(
                f"The agent of {caller.name} is of version {hello.version}, and the"
                f" server of version {__version__}: they work together when they are at"
                " most one minor version apart.",
                "Upgrade the older one.",
            )
        node_id = caller.machine.node_id
        old = self._links.get(node_id)
        if old and not old.closed:
            known = self._hellos[node_id].process
            if not hello.process or hello.process != known:
                self._note_rival(node_id, old, caller.machine.address)
                raise RefusedError(
                    f"Another agent with the certificate of {caller.name} is connected."
                    " A certificate is for one machine.",
                    "Was its home copied? Invite the second machine by itself:"
                    " `gpuyard nodes invite`.",
                )
        return replaced(hello, node_id=node_id, name=caller.name)

    def _note_rival(self, node_id: str, link: Link, address: str) -> None:
        known = self._rivals.get(node_id)
        if known is None or known.link is not link:
            self._rivals[node_id] = Rival(link, address)

    async def _beaten(self, node_id: str, link: Link) -> None:
        """Tell of a second agent with the certificate of this one, once this one has
        proved to be alive: an agent that was killed is replaced by its next one, which
        is refused for a moment if its own link has not ended yet.
        """
        rival = self._rivals.get(node_id)
        if rival is None or rival.link is not link or self.sink is None:
            return
        rival.beats += 1
        if rival.beats == _BEATS_OF_THE_LIVING:
            await self.sink.node_claimed(node_id, rival.address)

    def dismiss(self, node_id: str, reason: str) -> None:
        """Tell a machine that it is no longer part of the instance, and end its
        link.
        """
        link = self._links.get(node_id)
        if link:
            _tell(link, reason, removed=True)
            link.close()

    async def _join(self, hello: wire.Hello, link: Link, caller: Caller | None) -> None:
        assert self.sink is not None
        old = self._links.get(hello.node_id)
        if old:
            old.close()
        self._rivals.pop(hello.node_id, None)
        self._links[hello.node_id] = link
        self._hellos[hello.node_id] = hello
        self._callers[hello.node_id] = caller
        self._at_home[hello.node_id] = self._shares_home(hello.node_id)
        for attempt in hello.attempts:
            self._results.add_listed(hello.node_id, attempt.attempt_id, attempt.state)
        welcome = await self.sink.node_joined(self._provider, hello)
        link.send(replaced(welcome, heartbeat_s=self._heartbeat_s))
        self.any_connected.set()

    async def _forward_reports(self, node_id: str, link: Link) -> None:
        """Forward reports in batches, and acknowledge each batch after its commit.

        A batch has all reports that arrived during the last commit.
        """
        assert self.sink is not None
        try:
            while batch := await link.next_reports():
                if self._links.get(node_id) is not link:
                    # The agent repeats its reports on its new link. If it was killed
                    # before it stored them, they no longer hold.
                    return
                reports = [
                    report
                    for report in batch
                    if not isinstance(report, UnreadableReport)
                ]
                if reports:
                    await self.sink.reported(node_id, reports)
                # Not before the commit: a killed agent may never repeat a report that
                # was not committed.
                self._update(node_id, [report.body for report in reports])
                link.send(wire.Acknowledge(batch[-1].seq))
        except GpuyardError as error:
            # Nothing was acknowledged: the agent connects again and repeats it.
            if not link.closed:
                log.warning("reports not taken", node=node_id, error=str(error))
            link.close()
        except Exception:
            log.exception("reports not taken", node=node_id)
            link.close()

    async def _leave(self, node_id: str, link: Link) -> None:
        if self._links.get(node_id) is link:
            del self._links[node_id]
            if not self._links:
                self.any_connected.clear()
            if self.sink is not None:
                await self.sink.node_left(node_id)

    def _update(self, node_id: str, bodies: Sequence[Any]) -> None:
        self._results.update(node_id, bodies)
        for body in bodies:
            if isinstance(body, wire.GpusSeen):
                self._hellos[node_id] = replaced(
                    self._hellos[node_id], gpus=body.gpus, problem=body.problem
                )


def _refuse_removed(caller: Caller | None) -> None:
    """RefusedError if the machine is no longer part of the instance."""
    if caller and caller.is_removed():
        raise RefusedError(f"{caller.name} was removed from the instance.")


def _tell(link: Link, reason: str, *, removed: bool = False) -> None:
    """Say why a connection is not served, if it is still there."""
    with suppress(ProviderError):
        link.send(wire.Refused(reason, removed))


def _refuse_other_users(writer: asyncio.StreamWriter) -> None:
    """PermissionError unless our own user or root opened this unix socket."""
    sock = writer.get_extra_info("socket")
    if sock is None or sock.family != socket.AF_UNIX:
        return
    refuse_other_users(sock)
