"""Attempts on several nodes: their shares end one by one, the attempt with the last.

The end of a share is kept in the ledger, so that a server that starts knows which still
run. When one fails, the others are stopped.
"""

from typing import Any

import msgspec

from gpuyard.controller import transitions
from gpuyard.controller.core import Core
from gpuyard.domain import wire
from gpuyard.domain.errors import ProviderError
from gpuyard.domain.gangs import share_id
from gpuyard.domain.reasons import Reason
from gpuyard.domain.states import AttemptState
from gpuyard.providers.node_provider import NodeProvider
from gpuyard.scheduler.attempts import LiveAttempt


def is_gang(attempt: LiveAttempt) -> bool:
    """Whether several nodes with agents run it."""
    return len(attempt.placements) > 1 and not attempt.offer


def is_share_on(attempt: LiveAttempt, rank: int, node_id: str) -> bool:
    """Whether this share of the attempt is that of the node."""
    placements = attempt.placements
    return rank < len(placements) and placements[rank].node_id == node_id


def rank_on(attempt: LiveAttempt, node_id: str) -> int:
    """Which share of the attempt the node runs."""
    nodes = [placement.node_id for placement in attempt.placements]
    return nodes.index(node_id)


def share_on(attempt: LiveAttempt, node_id: str) -> str:
    """By which id the agent of the node knows the attempt."""
    return share_id(attempt.id, rank_on(attempt, node_id))


def has_ended_on(attempt: LiveAttempt, node_id: str) -> bool:
    """Whether the share of the node has ended, while the attempt lives."""
    return attempt.placements[rank_on(attempt, node_id)].end is not None


async def stop_shares(
    provider: NodeProvider, attempt: LiveAttempt, reason: str, checkpoint: bool
) -> None:
    """Stop all shares of the attempt. ProviderError if one could not be told."""
    problem: ProviderError | None = None
    for rank, placement in enumerate(attempt.placements):
        if placement.end is not None:
            continue
        share = share_id(attempt.id, rank)
        try:
            await provider.stop_attempt(
                placement.node_id, share, reason, checkpoint=checkpoint
            )
        except ProviderError as error:
            problem = error
    if problem:
        raise problem


class Gangs:
    """Joins the ends of shares."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def note_end(
        self, attempt: LiveAttempt, rank: int, end: wire.Ended
    ) -> wire.Ended | None:
        """Record the end of a share; the end of the attempt, if that was the last."""
        core = self._core
        if not is_gang(attempt):
            return end
        if attempt.placements[rank].end is None:
            core.emit([transitions.share_ended(attempt, rank, end, core.clock())])
        ends = [placement.end for placement in attempt.placements]
        if all(ends):
            return _joined([msgspec.convert(each, wire.Ended) for each in ends])
        if not _is_good(end) and attempt.state is not AttemptState.ENDING:
            now = core.clock()
            core.emit([transitions.ending(attempt, Reason.SHARE_FAILED, now)])
            core.on_ending(attempt)
        return None

    def lost_share(
        self,
        attempt: LiveAttempt,
        node_id: str,
        reason: Reason,
        message: str,
        stopped: str = "",
    ) -> wire.Ended | None:
        """The same of a share whose node lost it. `stopped`: why it was being ended."""
        end = wire.Ended(
            share_on(attempt, node_id),
            self._core.clock(),
            attempt.started_at,
            reason=reason,
            stopped=stopped,
            message=message,
        )
        return self.note_end(attempt, rank_on(attempt, node_id), end)


def _is_good(end: wire.Ended) -> bool:
    return end.exit_code == 0 and not end.reason and not end.stopped


def _joined(ends: list[wire.Ended]) -> wire.Ended:
    """The end of an attempt from those of its shares: that of the first which failed by
    itself, else that of the first share.
    """
    causes = [
        (end.at, rank)
        for rank, end in enumerate(ends)
        if not _is_good(end) and end.stopped != Reason.SHARE_FAILED
    ]
    rank = min(causes)[1] if causes else 0
    cause = ends[rank]
    changes: dict[str, Any] = {
        "attempt_id": ends[0].attempt_id,
        "at": max(end.at for end in ends),
        "started_at": min(
            (end.started_at for end in ends if end.started_at), default=None
        ),
        "ran_s": max(
            (end.ran_s for end in ends if end.ran_s is not None), default=None
        ),
        "usage": ends[0].usage,
        "limits": ends[0].limits,
        "prefetched_next": "",
    }
    if causes and rank:
        said = f": {cause.message}" if cause.message else ""
        changes["message"] = f"share {rank} of {len(ends)} ended first{said}"
    return msgspec.structs.replace(cause, **changes)
