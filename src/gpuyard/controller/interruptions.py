"""The cloud takes a rented machine back: its jobs save their work and go on elsewhere.

Unlike a drain, this leaves no job to end there: the machine does not wait for it.
"""

import structlog

from gpuyard.controller import transitions
from gpuyard.controller.core import Core
from gpuyard.controller.gangs import has_ended_on
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.reasons import Reason
from gpuyard.domain.states import AttemptState
from gpuyard.scheduler.attempts import LiveAttempt

log = structlog.get_logger(__name__)


class Interruptions:
    """Acts on the notices of nodes."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def seen(self, node_id: str, at: float) -> None:
        """The cloud takes this node at `at`, in UTC seconds: give it no new jobs, and
        let each of its attempts save its work and leave.

        A repeated notice changes nothing.
        """
        core = self._core
        node = core.view.node(node_id)
        now = core.clock()
        in_s = max(at - now, 0.0)
        log.warning("a cloud takes a node back", node=node_id, in_s=round(in_s))
        if not node.cordoned:
            change = Change(Table.NODES, node_id, {"cordoned": True})
            info = {
                "node": node_id,
                "name": node.name,
                "taken_at": at,
            }
            core.emit([Event(EventKind.NODE_CHANGED, now, (change,), None, info)])
        for attempt in self._attempts_on(node_id):
            reason = Reason.REVOKED if attempt.prefetched else Reason.PREEMPTED
            core.emit([transitions.ending(attempt, reason, now)])
            core.on_ending(attempt)
        core.schedule()

    def _attempts_on(self, node_id: str) -> list[LiveAttempt]:
        """Those that nobody has asked to end: of its agent, and of external queues that
        run them on this very machine.
        """
        return [
            attempt
            for attempt in self._core.view.attempts_on(node_id)
            if attempt.state is not AttemptState.ENDING
            and not has_ended_on(attempt, node_id)
        ]
