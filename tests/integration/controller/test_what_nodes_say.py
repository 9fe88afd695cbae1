"""Each message of agents, said about an attempt of another node: nothing of it counts,
and the answer is that of the table in the guide.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from gpuyard.config.paths import Home
from gpuyard.config.settings import Settings
from gpuyard.controller.controller import Controller
from gpuyard.domain import wire
from gpuyard.domain.artifacts import ArtifactsSaved, SavedArtifact
from gpuyard.domain.contents import ContentKind
from gpuyard.domain.events import Table
from gpuyard.domain.joining import Machine, NewInvitation
from gpuyard.domain.log_query import LogQuery
from gpuyard.domain.wire_types import DiskStatus, DiskUser, SeriesPoint
from gpuyard.ledger.ledger import Ledger
from gpuyard.providers.agent import AgentProvider
from gpuyard.storage.blobs import BlobStore
from tests.support.blank_ledger import blank_ledger
from tests.support.ledger import state_of
from tests.support.peer import Door, Peer, hello

pytestmark = pytest.mark.anyio
PAGE = Path(__file__).parents[3] / "docs/guides/users.md"
GPU = wire.GpuStatus("GPU-1", 0, "Tesla T4", 15360, temperature_c=40)
DIGEST = "0" * 64
# They begin a connection that is for one thing only.
ONE_THING = (
    wire.JoinStream,
    wire.FetchContents,
    wire.StoreBlob,
    wire.FetchBlob,
    wire.TakeItem,
)
REPORTS = get_args(get_type_hints(wire.NumberedReport)["body"])


class Lab:
    """A controller, and two agents that are spoken for by hand: the `owner` is that of
    the server's own node and runs `attempt`; the other is that of a machine that has
    joined, and lies.
    """

    def __init__(
        self, ledger: Ledger, controller: Controller, provider: AgentProvider
    ) -> None:
        self.ledger = ledger
        self.controller = controller
        self.provider = provider
        self.job_id = ""
        self.attempt = ""

    async def start(self, own: Door, joined: Door) -> None:
        self.own = own
        self.joined = joined
        fields = {"gpus": [GPU], "streams": True, "finds_lines": True}
        self.owner = await own.joined(hello("node_1", **fields))
        wanted = {"command": ["true"]}
        (self.job_id,) = await self.controller.requests.submit([wanted])
        self.attempt = (await self.owner.receive(wire.StartAttempt)).attempt_id
        started = wire.Started(self.attempt, time.time(), 4711)
        await self.owner.acknowledged(self.owner.report(started))

    async def known(self) -> Any:
        """All that is known, but for the rows of the machine that lies."""
        core = self.controller.core
        await core.committed()
        state = dict(state_of(self.ledger.engine))
        nodes = state.pop(Table.NODES)
        series = self.ledger.queries.series(self.job_id)
        figures = self.controller.gpus.figures()
        memory = (dict(core.progress), dict(core.pids), series, figures)
        status = await self.provider.get_job_status(self.attempt)
        return state, nodes["node_1"], memory, status


async def _no_news(timeout_s: float) -> None:
    await asyncio.sleep(0.01)


async def _joined(controller: Controller) -> Machine:
    nodes = controller.joined_nodes
    _, secret = await nodes.invite(NewInvitation(name="liar"))
    joined = await nodes.join(secret, "liar", "", "192.0.2.1", lambda _: ("PEM", "p"))
    return Machine(joined.node_id, "192.0.2.1", "192.0.2.2")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    ledger = Ledger.open(blank_ledger(tmp_path / "ledger.db"))
    provider = AgentProvider({"epoch": 1, "heartbeat_s": 60})
    controller = Controller(
        ledger,
        Settings(),
        lambda _: {"agent": provider},
        BlobStore(tmp_path / "blobs"),
        Home(tmp_path),
        _no_news,
    )
    await controller.start()
    machine = await _joined(controller)
    own = Door(provider, tmp_path / "own.sock")
    joined = Door(provider, tmp_path / "joined.sock")
    servers = [
        await asyncio.start_unix_server(controller.serve_agent, tmp_path / "own.sock"),
        await asyncio.start_unix_server(
            lambda reader, writer: controller.serve_agent(reader, writer, machine),
            tmp_path / "joined.sock",
        ),
    ]
    made = Lab(ledger, controller, provider)
    await made.start(own, joined)
    yield made
    for door in (own, joined):
        door.hang_up()
    for server in servers:
        server.close()
    await controller.close()
    ledger.close()


def lies(attempt: str) -> dict[str, Any]:
    """Each message by its name, about this attempt."""
    now = time.time()
    held = wire.HeldAttempt(attempt, 1, "running", pid=1, ran_s=5.0)
    hot = wire.GpuStatus("GPU-1", 0, "Tesla T4", 1, temperature_c=99)
    point = SeriesPoint("loss", 1, 1, 0.5, now)
    file = SavedArtifact("a.txt", DIGEST, 1)
    disk = DiskStatus("/", 100, 1, [DiskUser(attempt, 99)])
    started = wire.Started(attempt, now, 1)
    messages = [
        hello("node_1", process="a", gpus=[hot], attempts=[held]),
        wire.NumberedReport(1, started),
        started,
        wire.ProgressSeen(attempt, {"step": 9}, [point], "no CUDA", "nan"),
        wire.UsageSeen(attempt, [point], 1.0),
        wire.CheckpointSaved(attempt, "a.ck", DIGEST, 1, now),
        ArtifactsSaved(attempt, now, [file], ["lost"]),
        wire.Ended(attempt, now, now, exit_code=0),
        wire.GpusSeen([hot], disk=disk),
        wire.InterruptionSeen(now),
        wire.LogPart(1, 0, b"forged", True),
        wire.LinesFound(1, end=True),
        wire.Found(1, attempt, "absent"),
        wire.JoinStream(DIGEST),
        wire.FetchContents(ContentKind.TREE, [DIGEST]),
        wire.StoreBlob(attempt, DIGEST, 1),
        wire.BlobPart(b"x"),
        wire.FetchBlob(attempt),
        wire.TakeItem("batch_1", attempt, "made-up"),
        wire.Beat(),
    ]
    return {_tag(type(message)): message for message in messages}


def _tag(kind: Any) -> str:
    return str(kind.__struct_config__.tag)


def documented() -> dict[str, str]:
    """What the guide says that is answered to each message."""
    text = PAGE.read_text().split("## What a node may say\n")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| .+ \| (.+) \|$", text, re.M))


def test_the_guide_names_every_message_of_agents() -> None:
    kinds = {*get_args(wire.FromAgent), *REPORTS}
    assert set(documented()) == {_tag(kind) for kind in kinds}
    assert set(lies("a1")) == set(documented())


async def test_what_a_node_says_of_the_attempt_of_another_counts_for_nothing(
    lab: Lab,
) -> None:
    before = await lab.known()
    liar = await lab.joined.dial()
    answers: dict[str, str] = {}
    for number, (name, message) in enumerate(lies(lab.attempt).items(), start=2):
        peer = liar
        if isinstance(message, (*ONE_THING, wire.BlobPart)):
            peer = await lab.joined.dial()
        if isinstance(message, REPORTS):
            message = wire.NumberedReport(number, message)
        answers[name] = await _answer(peer, message)
        assert await lab.known() == before, name
    assert answers == documented()


async def _answer(peer: Peer, message: wire.FromAgent) -> str:
    """What the server says to it, in the words of the guide."""
    is_followed = not isinstance(message, (*ONE_THING, wire.NumberedReport, wire.Beat))
    peer.send(message)
    if is_followed:
        peer.send(wire.Beat())
    said: list[str] = []
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while not {"Acknowledge", "Beat"} & set(said):
            said.append(type(await peer.receive(object)).__name__)
        if is_followed:
            said.remove("Beat")
        return ", ".join(f"`{each}`" for each in said) or "silence"
    return ", ".join(f"`{each}`" for each in said) or "the connection ends"


async def test_no_other_node_answers_what_a_node_is_asked(lab: Lab) -> None:
    liar = await lab.joined.joined(hello(process="a"))
    link = lab.provider.agents.link("node_1")

    async def forge(answer: wire.FromAgent) -> None:
        liar.send(answer, wire.Beat())
        await liar.receive(wire.Beat)

    reading = asyncio.ensure_future(link.read_log(lab.attempt, 0, 0, 0.0))
    number = (await lab.owner.receive(wire.ReadLog)).request
    await forge(wire.LogPart(number, 0, b"forged", True))
    lab.owner.send(wire.LogPart(number, 0, b"true", True))
    assert (await reading).data == b"true"

    finding = asyncio.ensure_future(link.find_lines(lab.attempt, LogQuery(), 0.0))
    number = (await lab.owner.receive(wire.FindLines)).request
    await forge(wire.LinesFound(number, problem="forged"))
    lab.owner.send(wire.LinesFound(number, end=True))
    assert (await finding).end

    asking = asyncio.ensure_future(lab.provider.has_attempt("node_1", lab.attempt))
    number = (await lab.owner.receive(wire.Find)).request
    await forge(wire.Found(number, lab.attempt, "absent"))
    lab.owner.send(wire.Found(number, lab.attempt, "running"))
    assert await asking


async def test_no_other_node_joins_a_stream(lab: Lab) -> None:
    opening = asyncio.ensure_future(lab.provider.open_stream("node_1", lab.attempt))
    key = (await lab.owner.receive(wire.OpenStream)).key
    liar = await lab.joined.dial()
    liar.send(wire.JoinStream("0" * len(key)))
    assert await liar.closed()
    assert not opening.done()
    agent = await lab.own.dial()
    agent.send(wire.JoinStream(key))
    (await opening).close()
