"""What a machine that has joined says of its GPUs and of times, as far as that can be:
another's GPU is not its own, and its clock may be wrong.
"""

from collections.abc import Sequence

import structlog
from msgspec.structs import replace as replaced

from gpuyard.controller.core import Core
from gpuyard.domain import wire
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.gangs import attempt_and_rank
from gpuyard.domain.printable import printable
from gpuyard.scheduler.attempts import LiveAttempt

# More than any machine has: what says so would be given all jobs.
MOST_CPUS = 4096
MOST_MEMORY_GB = 131_072.0
# The clock of the server may be set, too, while an attempt runs.
_MOST_SET_S = 3600.0
log = structlog.get_logger(__name__)


class NodeClaims:
    """Judges what nodes say. The server's own node is believed: they share a clock."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def believable(self, hello: wire.Hello) -> wire.Hello:
        """What a node says when it connects, with no more than a machine can have and
        with its own GPUs only; what was left out is its `problem`, for people.
        """
        if not self._core.view.node(hello.node_id).joined:
            return hello
        gpus, problem = self.own_gpus(hello.node_id, hello.gpus)
        cpus = min(hello.cpus, MOST_CPUS)
        memory_gb = min(hello.memory_gb, MOST_MEMORY_GB)
        if (cpus, memory_gb) != (hello.cpus, hello.memory_gb):
            problem = problem or (
                f"it says that it has {hello.cpus} CPUs and {hello.memory_gb:.0f} GB of"
                " memory, and no machine has so much"
            )
            log.warning("a node claims too much", node=hello.node_id)
        return replaced(
            hello,
            cpus=cpus,
            memory_gb=memory_gb,
            gpus=list(gpus),
            problem=problem or _shown(hello.problem or "") or None,
        )

    def own_gpus(
        self, node_id: str, gpus: Sequence[wire.GpuStatus]
    ) -> tuple[Sequence[wire.GpuStatus], str]:
        """Those that no other node has, and a word on the rest, for people."""
        if not self._core.view.node(node_id).joined:
            return gpus, ""
        own: list[wire.GpuStatus] = []
        problem = ""
        for gpu in gpus:
            holder = self._other_holder(node_id, gpu.uuid)
            if not holder:
                own.append(_printed(gpu))
                continue
            problem = (
                f"GPU {gpu.uuid} is that of {holder} already; if this is the same"
                f" machine, `gpuyard nodes remove {holder}`"
            )
            log.warning("a node claims another's GPU", node=node_id, gpu=gpu.uuid)
        return own, problem

    def _other_holder(self, node_id: str, uuid: str) -> str:
        """The name of another node that has this GPU; empty if none has."""
        device = self._core.view.devices.get(uuid)
        holder = device.node_id if device else None
        if holder is None or holder == node_id:
            return ""
        return self._core.view.node(holder).title

    def own_users(self, node_id: str, disk: wire.DiskStatus) -> wire.DiskStatus:
        """What it says of its disk, without attempts that are not there."""
        there = {attempt.id for attempt in self._core.view.attempts_on(node_id)}
        users = [
            user for user in disk.users if attempt_and_rank(user.attempt_id)[0] in there
        ]
        return replaced(disk, users=users)

    async def claimed_from(self, node_id: str, address: str) -> None:
        """Tell people that a second machine has the certificate of the node."""
        core = self._core
        node = core.view.node(node_id)
        reason = (
            f"another machine, at {address}, uses its certificate, and was not let in;"
            f" if its home was copied, `gpuyard nodes remove {node.title}` and invite"
            " both anew"
        )
        change = Change(Table.NODES, node_id, {"reason": reason})
        info = {"node": node_id, "state": node.state, "problem": reason}
        event = Event(EventKind.NODE_CHANGED, core.clock(), (change,), None, info)
        core.emit([event])
        await core.committed()

    def ran_s(self, attempt: LiveAttempt, ran_s: float) -> float:
        """For how long the attempt has run, and no longer than it has existed."""
        existed_s = max(self._core.clock() - attempt.created_at, 0.0)
        return min(ran_s, existed_s + _MOST_SET_S)

    def started(self, attempt: LiveAttempt, body: wire.Started) -> wire.Started:
        """The start of an attempt, at a time that can be."""
        if not self._is_elsewhere(attempt):
            return body
        return replaced(body, at=self._since_created(attempt, body.at))

    def ended(self, attempt: LiveAttempt, body: wire.Ended) -> wire.Ended:
        """The end of an attempt, at a time that can be."""
        if not self._is_elsewhere(attempt):
            return body
        started_at = attempt.started_at
        if started_at is None and body.started_at is not None:
            started_at = self._since_created(attempt, body.started_at)
        ran_s = body.ran_s
        if ran_s is not None:
            ran_s = self.ran_s(attempt, ran_s)
        at = body.at
        earliest = started_at or attempt.created_at
        if at < earliest:
            at = earliest + (ran_s or 0.0)
        at = min(at, self._core.clock())
        return replaced(body, at=at, started_at=started_at, ran_s=ran_s)

    def _since_created(self, attempt: LiveAttempt, at: float) -> float:
        return min(max(at, attempt.created_at), self._core.clock())

    def _is_elsewhere(self, attempt: LiveAttempt) -> bool:
        """Whether another machine than the server's takes part in it."""
        nodes = self._core.view.nodes
        return any(
            place.node_id in nodes and nodes[place.node_id].joined
            for place in attempt.placements
        )


def _printed(gpu: wire.GpuStatus) -> wire.GpuStatus:
    """A GPU whose texts move no cursor, wherever they are printed."""
    texts = (gpu.name, gpu.driver, gpu.problem or "")
    if "".join(texts).isprintable():
        return gpu
    name, driver, problem = map(_shown, texts)
    return replaced(gpu, name=name, driver=driver, problem=problem or None)


def _shown(text: str) -> str:
    """A text of a node as it is, or without what a terminal would obey."""
    return text if text.isprintable() else printable(text)
