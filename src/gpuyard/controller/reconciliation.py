"""Compares the attempts on a node whose agent has connected with those of the ledger,
and ends, sends or stops what differs.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from gpuyard.controller.core import Core
from gpuyard.controller.gangs import Gangs, has_ended_on, is_gang, share_on
from gpuyard.controller.launching import Launching
from gpuyard.controller.requests import Requests
from gpuyard.controller.silent_nodes import agent_answers
from gpuyard.domain import wire
from gpuyard.domain.errors import LedgerError, ProviderError
from gpuyard.domain.gangs import attempt_and_rank
from gpuyard.domain.reasons import Reason
from gpuyard.domain.states import AttemptState
from gpuyard.providers.configured import Providers
from gpuyard.scheduler.attempts import LiveAttempt

_FORGOTTEN = (
    "no longer knows this attempt; it was rebooted, or its agent's folder removed"
)
_NEVER_SENT = "was not connected while the others started this attempt"
_NOT_STARTED = (AttemptState.INTENDED, AttemptState.SENT)
ShareEnded = Callable[[LiveAttempt, wire.Ended | None], None]
"""Records the end of an attempt; None if another share of it still runs."""


@dataclass(frozen=True, slots=True)
class _Differences:
    """What is to be done with live attempts of a node.

    `unsent`: the node never got them. `half_sent`: it got its share of them, but when
    the others said Hello, it was perhaps not connected, and then theirs were not sent.
    `to_stop`: they should have ended. `lost`: the node has them no longer.
    """

    unsent: list[str] = field(default_factory=list[str])
    half_sent: list[str] = field(default_factory=list[str])
    to_stop: list[LiveAttempt] = field(default_factory=list[LiveAttempt])
    lost: list[LiveAttempt] = field(default_factory=list[LiveAttempt])


def _differences(
    known: Sequence[LiveAttempt], node_id: str, on_node: Collection[str]
) -> _Differences:
    """`known`: the attempts that the node should have; `on_node`: the shares that it
    says it has.
    """
    found = _Differences()
    for attempt in known:
        is_there = share_on(attempt, node_id) in on_node
        if attempt.state in _NOT_STARTED:
            if not is_there:
                found.unsent.append(attempt.id)
            elif is_gang(attempt):
                found.half_sent.append(attempt.id)
        elif attempt.state is AttemptState.ENDING and (
            # One that has not started may still arrive: its Start may be under way on
            # this connection. The Stop that follows it ends it in both cases.
            is_there or attempt.started_at is None
        ):
            found.to_stop.append(attempt)
        elif not is_there:
            found.lost.append(attempt)
    return found


class Reconciliation:
    """Makes nodes and ledger agree on attempts when an agent has connected."""

    def __init__(
        self,
        core: Core,
        launching: Launching,
        requests: Requests,
        providers: Providers,
        gangs: Gangs,
        share_ended: ShareEnded,
    ) -> None:
        self._core = core
        self._launching = launching
        self._requests = requests
        self._providers = providers
        self._gangs = gangs
        self._share_ended = share_ended
        # The newest Hello of each node that is connected.
        self._hellos: dict[str, wire.Hello] = {}

    def connected(self, hello: wire.Hello) -> None:
        """The node has said this."""
        self._hellos[hello.node_id] = hello

    def disconnected(self, node_id: str) -> None:
        """The connection to the node broke."""
        self._hellos.pop(node_id, None)

    def agent_attempts(self, node_id: str) -> list[LiveAttempt]:
        """The attempts that the agent of the node runs; not the containers there, which
        belong to an external queue, nor those whose share there has ended.
        """
        return [
            attempt
            for attempt in self._core.view.attempts_on(node_id)
            if self._providers.node_provider(attempt.provider) is not None
            and not has_ended_on(attempt, node_id)
        ]

    async def reconcile(self, provider_name: str, hello: wire.Hello) -> None:
        """After Welcome: end the attempts that the node has lost, send those that it
        never got, and stop those that should have ended.
        """
        core = self._core
        on_node = {held.attempt_id: held for held in hello.attempts}
        # All lists are made before the first await: later, attempts start and end.
        known = self.agent_attempts(hello.node_id)
        differences = _differences(known, hello.node_id, on_node)
        unsent = differences.unsent
        ended = [share for share in on_node if not self._is_live(share)]
        await self._launching.launch([*unsent, *differences.half_sent])
        # A commit that fails undoes ends and cancels. The agents will say Hello again.
        try:
            await core.committed()
            await self._stop_all(differences.to_stop)
            await core.committed()
        except LedgerError:
            return
        ended = [share for share in ended if not self._is_live(share)]
        try:
            await self._stop_and_forget(provider_name, hello, ended)
            await self._end_lost(provider_name, hello, differences.lost)
            await self._end_unsent_shares(provider_name, hello, unsent)
        except ProviderError:
            return  # the connection broke: the next Hello starts this again
        core.schedule()

    def _is_live(self, share: str) -> bool:
        return attempt_and_rank(share)[0] in self._core.view.attempts

    async def _stop_all(self, attempts: Sequence[LiveAttempt]) -> None:
        """Stop those of these attempts that have not ended meanwhile."""
        for attempt in attempts:
            if attempt.id in self._core.view.attempts:
                await self._requests.stop(attempt, self._requests.why_ending(attempt))

    async def _stop_and_forget(
        self, provider_name: str, hello: wire.Hello, ended: Sequence[str]
    ) -> None:
        """Let the node stop and forget attempts that have ended in the ledger."""
        provider = self._providers.node_provider(provider_name)
        if not ended or provider is None:
            return
        running = {held.attempt_id for held in hello.attempts if held.state != "ended"}
        for attempt_id in ended:
            if attempt_id in running:
                await provider.stop_attempt(
                    hello.node_id, attempt_id, Reason.SUPERSEDED, checkpoint=False
                )
        await provider.forget(hello.node_id, ended)

    async def _end_lost(
        self, provider_name: str, hello: wire.Hello, lost: Sequence[LiveAttempt]
    ) -> None:
        """End these attempts, which the node no longer has, once its agent has
        answered: a Hello may come late, on a connection that its agent has given up, or
        that of an agent that was killed. What it does not name may run.
        """
        provider = self._providers.node_provider(provider_name)
        node_id = hello.node_id
        if not lost or provider is None:
            return
        share = share_on(lost[0], node_id)
        has_answered = False
        while not has_answered and self._hellos.get(node_id) is hello:
            has_answered = await agent_answers(provider, node_id, share)
        if self._hellos.get(node_id) is not hello:
            return  # that agent has said more since, or has gone
        ids = {attempt.id for attempt in lost}
        # Memory may have been read again, and attempts may have ended.
        for attempt in self.agent_attempts(node_id):
            if attempt.id in ids:
                self._attempt_missing(attempt, hello, _FORGOTTEN)

    async def _end_unsent_shares(
        self, provider_name: str, hello: wire.Hello, attempt_ids: Sequence[str]
    ) -> None:
        """End those of these attempts that another node has started, while this one
        never got its share: an attempt that runs is not sent again. ProviderError.
        """
        provider = self._providers.node_provider(provider_name)
        attempts = self._core.view.attempts
        for attempt_id in attempt_ids:
            attempt = attempts.get(attempt_id)
            if provider is None or attempt is None or not is_gang(attempt):
                continue
            share = share_on(attempt, hello.node_id)
            if await provider.has_attempt(hello.node_id, share):
                continue
            attempt = attempts.get(attempt_id)
            if attempt and attempt.state is AttemptState.RUNNING:
                self._attempt_missing(attempt, hello, _NEVER_SENT)

    def _attempt_missing(
        self, attempt: LiveAttempt, hello: wire.Hello, why: str
    ) -> None:
        """Record the loss of an attempt that the node does not have."""
        is_ending = attempt.state is AttemptState.ENDING
        stopped = self._requests.why_ending(attempt) if is_ending else ""
        message = f"node {hello.name} {why}"
        lost = self._gangs.lost_share(
            attempt, hello.node_id, Reason.ATTEMPT_LOST, message, stopped
        )
        self._share_ended(attempt, lost)
