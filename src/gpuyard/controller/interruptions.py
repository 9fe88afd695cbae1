"""The cloud takes a rented machine back: its jobs save their work and go on elsewhere.

Unlike a drain, this leaves no job to end there: the machine does not wait for it.
"""

from collections.abc import Callable, Sequence

import structlog

from gpuyard.controller import transitions
from gpuyard.controller.core import Core
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.reasons import Reason
from gpuyard.domain.states import AttemptState
from gpuyard.scheduler.attempts import LiveAttempt

log = structlog.get_logger(__name__)


class Interruptions:
    """Acts on the notices of nodes. `attempts_on(node_id)` are those of its agent."""

    def __init__(
        self, core: Core, attempts_on: Callable[[str], Sequence[LiveAttempt]]
    ) -> None:
        self._core = core
        self._attempts_on = attempts_on

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
            if attempt.state is AttemptState.ENDING:
                continue
            reason = Reason.REVOKED if attempt.prefetched else Reason.PREEMPTED
            core.emit([transitions.ending(attempt, reason, now)])
            core.on_ending(attempt)
        core.schedule()
