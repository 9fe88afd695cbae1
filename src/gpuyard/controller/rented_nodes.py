"""Machines that providers rent for attempts: how they join, and what they may do.

Such a machine is a node that only its provider uses: its state is RENTED, so that
nothing else is ever placed there.
"""

from collections.abc import Callable, Sequence
from typing import Any

from gpuyard.controller import transitions
from gpuyard.controller.core import Core
from gpuyard.controller.joined_nodes import JoinedNodes
from gpuyard.controller.joining_door import InstanceDoor
from gpuyard.controller.kept_answers import KEEP_S, KeptAnswers
from gpuyard.controller.launching import Launching
from gpuyard.controller.reports import Reports
from gpuyard.domain import wire
from gpuyard.domain.attempt_order import AttemptOrder
from gpuyard.domain.errors import GpuyardError, ProviderError, RefusedError
from gpuyard.domain.events import Change, Event, EventKind, Table
from gpuyard.domain.states import AttemptState
from gpuyard.providers.configured import Providers
from gpuyard.providers.instances.fleet import RentedListing, RentedMachine
from gpuyard.providers.instances.renting_instance import Invited
from gpuyard.scheduler.nodes import REMOVED

RENTED = "rented"
"""The state of a node whose machine is rented, while its agent is connected."""


class RentedNodes:
    """The instance as its providers of rented machines see it
    (`providers.instances.renting_instance`).
    """

    def __init__(
        self,
        core: Core,
        joined: JoinedNodes,
        launching: Launching,
        reports: Reports,
        providers: Providers,
        door: InstanceDoor,
    ) -> None:
        self._core = core
        self.providers = providers
        self._joined = joined
        self._launching = launching
        self._reports = reports
        self._door = door
        # Who else needs machines: of each owner that is no attempt.
        self.other_owners: list[Callable[[str], bool]] = []
        joined.provider_for = self._provider_for
        # The providers keep their answers, and forget them when they end a machine.
        self._listings = KeptAnswers(self._ask, keep_s=0.0)

    def _provider_for(self, attempt_id: str) -> str:
        attempt = self._core.view.attempts.get(attempt_id)
        if attempt is None:
            raise RefusedError("The job for which this machine was rented is over.")
        return attempt.provider

    @property
    def epoch(self) -> int:
        """That of this server."""
        return self._core.epoch

    @property
    def installation(self) -> str:
        """See RentingInstance."""
        return self._door.installation

    def refuse_without_door(self) -> None:
        """See RentingInstance."""
        self._door.get()

    async def invite(self, order: AttemptOrder, name: str, for_s: float) -> Invited:
        """Invite a machine to join for this attempt. ProviderError."""
        door = self._door.get()
        secret = door.secret_for(order.attempt_id)
        await self._joined.invite_rented(order.attempt_id, name, secret, for_s)
        url = await door.url_for_machines()
        return Invited(url, f"{door.fingerprint}.{secret}")

    # --- attempts ---

    def owns(self, owner: str) -> bool:
        """Whether a live attempt, or somebody else, needs the machine of this owner."""
        is_live = owner in self._core.view.attempts
        return is_live or any(owns(owner) for owns in self.other_owners)

    def is_recorded(self, attempt_id: str) -> bool:
        """Whether the ledger has the end of the attempt."""
        return attempt_id not in self._core.view.attempts

    def attempt_of(self, reference: str) -> str:
        """The live attempt with this reference; empty if there is none."""
        attempts = self._core.view.attempts.values()
        found = (one.id for one in attempts if one.provider_ref == reference)
        return next(found, "")

    def attempt_on(self, node_id: str) -> str:
        """For which live attempt the node has joined; empty if for none."""
        attempt_id = self._joined.rented_for(node_id)
        return attempt_id if attempt_id in self._core.view.attempts else ""

    def node_of(self, attempt_id: str) -> str:
        """The node that has joined for the attempt; empty if none has."""
        return self._joined.rented_node(attempt_id)

    def is_wanted(self, attempt_id: str) -> bool:
        """Whether the attempt is live, and nobody has asked for its end."""
        attempt = self._core.view.attempts.get(attempt_id)
        return attempt is not None and attempt.state is not AttemptState.ENDING

    def has_started(self, attempt_id: str) -> bool:
        """Whether the ledger knows of a start of the attempt."""
        attempt = self._core.view.attempts.get(attempt_id)
        return attempt is not None and attempt.started_at is not None

    async def order(self, attempt_id: str) -> AttemptOrder | None:
        """The order of a live attempt; None if it has ended. ProviderError."""
        try:
            return await self._launching.order_again(attempt_id)
        except ProviderError:
            raise
        except GpuyardError as error:
            raise ProviderError(str(error), "gpuyard", "TIMEOUT") from None

    async def place(
        self, attempt_id: str, node_id: str, gpu_uuids: Sequence[str]
    ) -> None:
        """Record where the attempt is about to start: what its machine reports and
        fetches is taken from that node only.
        """
        core = self._core
        attempt = core.view.attempts.get(attempt_id)
        if attempt is None:
            return
        now = core.clock()
        core.emit([transitions.moved(attempt, gpu_uuids, now, node_id)])
        await core.committed()

    def believable(self, end: wire.Ended) -> wire.Ended:
        """What an agent says of an end, as far as that can be."""
        attempt = self._core.view.attempts.get(end.attempt_id)
        return end if attempt is None else self._reports.believable(attempt, end)

    # --- nodes ---

    async def joined(
        self, provider: str, hello: wire.Hello, about: str
    ) -> wire.Welcome:
        """A node has connected. RefusedError if it was removed."""
        core = self._core
        if core.view.node(hello.node_id).state == REMOVED:
            raise RefusedError(f"{hello.name} was removed from the instance.")
        attempt_id = self.attempt_on(hello.node_id)
        attempt = core.view.attempts[attempt_id]
        row: dict[str, Any] = {
            "name": hello.name,
            "provider": provider,
            "state": RENTED,
            "reason": f"{about} for {attempt.job_id}: {attempt.offer}",
            "boot_id": hello.boot_id,
            "cpus": hello.cpus,
            "memory_gb": hello.memory_gb,
            "limits": hello.limits,
            "seen_at": core.clock(),
            "version": hello.version,
        }
        await self._change(hello.node_id, row)
        return wire.Welcome(core.epoch)

    async def left(self, node_id: str) -> None:
        """The connection to a node is broken."""
        node = self._core.view.nodes.get(node_id)
        if node is None or node.state == REMOVED:
            return
        values = {
            "state": "silent",
            "reason": "its agent is not connected",
            "seen_at": self._core.clock(),
        }
        await self._change(node_id, values)

    async def _change(self, node_id: str, values: dict[str, Any]) -> None:
        core = self._core
        change = Change(Table.NODES, node_id, values)
        info = {"node": node_id, "state": values["state"]}
        event = Event(EventKind.NODE_CHANGED, core.clock(), (change,), None, info)
        core.emit([event])
        await core.committed()

    async def claimed(self, node_id: str, address: str) -> None:
        """A second machine uses the certificate of the node."""
        await self._reports.node_claimed(node_id, address)

    async def reported(
        self, node_id: str, bodies: Sequence[wire.NumberedReport]
    ) -> None:
        """What an agent reports of a running attempt."""
        await self._reports.reported(node_id, bodies)

    # --- what is rented ---

    async def machines(self) -> dict[str, Any]:
        """The machines that clouds have for the instance; see `/api/v1/machines`."""
        items: list[dict[str, Any]] = []
        answers = await self._listings.look(self.providers.rented)
        for name, answer in answers.items():
            machines = answer.value.machines if answer.value else ()
            items += [self._shown(name, machine) for machine in machines]
        items.sort(key=lambda item: item["launched_at"] or 0.0)
        return {
            "items": items,
            "problems": {
                name: answer.problem
                for name, answer in answers.items()
                if answer.problem
            },
            "told_at": {
                name: answer.value.at if answer.value else None
                for name, answer in answers.items()
            },
        }

    async def _ask(self, name: str) -> RentedListing:
        return await self.providers.rented[name].machines(KEEP_S)

    def _shown(self, provider: str, machine: RentedMachine) -> dict[str, Any]:
        instance = machine.instance
        view = self._core.view
        attempt = view.attempts.get(instance.owner)
        node = view.nodes.get(self.node_of(instance.owner))
        price = machine.price_per_hour
        return {
            "provider": provider,
            "id": instance.id,
            "region": instance.region,
            "zone": instance.zone,
            "type": instance.type,
            "spot": instance.spot,
            "state": instance.state.value,
            "interrupted": instance.interrupted,
            "owner": instance.owner,
            "job_id": attempt.job_id if attempt else None,
            "node": node.title if node else None,
            "launched_at": instance.launched_at,
            "price_per_hour": None if price is None else str(price),
            "cost": None if machine.cost is None else str(machine.cost),
            "currency": machine.currency,
        }

    async def forget(self, attempt_id: str) -> None:
        """The machine of the attempt is not needed."""
        await self._joined.end_rented(attempt_id)
