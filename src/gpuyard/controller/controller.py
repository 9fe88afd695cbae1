"""The controller: puts together core, requests, launching, reports, logs and
providers.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from gpuyard.config.accounts import Accounts
from gpuyard.config.paths import Home
from gpuyard.config.settings import Settings
from gpuyard.controller.access import Access
from gpuyard.controller.budgets import Budgets
from gpuyard.controller.cloud_accounts import CloudAccounts
from gpuyard.controller.cloud_bills import CloudBills
from gpuyard.controller.copied_logs import CopiedLogs
from gpuyard.controller.core import Core
from gpuyard.controller.datasets import Datasets
from gpuyard.controller.deadlines import Deadlines
from gpuyard.controller.disk_alarms import DiskAlarms
from gpuyard.controller.external_queues import ExternalQueues
from gpuyard.controller.gpu_alarms import GpuAlarms
from gpuyard.controller.gpus import Gpus
from gpuyard.controller.health import ProviderHealth
from gpuyard.controller.job_changes import JobChanges
from gpuyard.controller.job_streams import JobStreams
from gpuyard.controller.joined_nodes import JoinedNodes
from gpuyard.controller.joining_door import InstanceDoor
from gpuyard.controller.launching import Launching
from gpuyard.controller.logs import Logs
from gpuyard.controller.node_access import NodeAccess
from gpuyard.controller.observed_runs import ObservedRuns
from gpuyard.controller.pools import Pools
from gpuyard.controller.projects import Projects
from gpuyard.controller.rented_nodes import RentedNodes
from gpuyard.controller.reports import Reports
from gpuyard.controller.requests import Requests
from gpuyard.controller.reservations import ReservationBook
from gpuyard.controller.results import KeptResults
from gpuyard.controller.retention import Retention
from gpuyard.controller.schedules import Schedules
from gpuyard.controller.secrets import Secrets
from gpuyard.controller.sign_ins import SignIns
from gpuyard.controller.stored_contents import stores_of
from gpuyard.controller.submissions import Submissions
from gpuyard.controller.trust import TrustRecords
from gpuyard.controller.unused_gpus import UnusedGpus
from gpuyard.controller.users import Users
from gpuyard.controller.workspaces import Workspaces
from gpuyard.domain.joining import Machine
from gpuyard.ledger.ledger import Ledger
from gpuyard.providers.configured import (
    MakeProviders,
    Providers,
    configured_providers,
    keep_host_agent,
    stop_host_agent,
)
from gpuyard.providers.node_provider import NodeProvider
from gpuyard.storage.blobs import Blobs
from gpuyard.storage.dataset_store import DatasetStores

__all__ = [
    "Controller",
    "Extension",
    "configured_providers",
    "keep_host_agent",
    "stop_host_agent",
]


class Extension(Protocol):
    """Another part that works on the core, such as the resource manager."""

    def start(self) -> None:
        """Called when the ledger was read and no provider has started yet."""
        ...

    def before_deciding(self) -> None:
        """Called before each decision about jobs."""
        ...

    def reload(self) -> None:
        """Called after memory was read again from the ledger."""
        ...

    @property
    def idle(self) -> bool:
        """True when nothing is left to do."""
        ...

    async def close(self) -> None:
        """Called when the server stops."""
        ...


class Controller:
    """The controller of one instance.

    `make_providers(epoch)` gives the providers by name. `home` holds logs and
    workspaces. `wait_for_event(timeout_s)` returns after the next event or the timeout.
    """

    core: Core
    providers: Providers
    extensions: list[Extension]

    # People, and what they may do.
    users: Users
    projects: Projects
    access: Access
    sign_ins: SignIns

    # What jobs bring along and what they read.
    secrets: Secrets
    submissions: Submissions
    datasets: Datasets
    workspaces: Workspaces
    node_access: NodeAccess

    # Jobs and their attempts.
    requests: Requests
    changes: JobChanges
    schedules: Schedules
    launching: Launching
    reports: Reports
    external_queues: ExternalQueues
    streams: JobStreams

    # What jobs leave.
    logs: Logs
    results: KeptResults
    retention: Retention

    # Providers, nodes and GPUs.
    health: ProviderHealth
    trust: TrustRecords
    joined_nodes: JoinedNodes
    door: InstanceDoor
    rented_nodes: RentedNodes
    pools: Pools
    gpus: Gpus
    gpu_alarms: GpuAlarms
    disks: DiskAlarms
    reservations: ReservationBook
    unused_gpus: UnusedGpus

    # Money.
    budgets: Budgets
    cloud_accounts: CloudAccounts
    cloud_bills: CloudBills

    def __init__(
        self,
        ledger: Ledger,
        settings: Settings,
        make_providers: MakeProviders,
        blobs: Blobs,
        home: Home,
        wait_for_event: Callable[[float], Awaitable[object]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._make_providers = make_providers
        self.core = Core(ledger, settings, clock)
        self.providers = Providers()
        self._add_people()
        self._add_inputs(blobs, home)
        self._add_attempts(blobs, home)
        self._add_external_queues(blobs, home)
        self._add_history(blobs, home, wait_for_event)
        self._add_nodes()
        self._add_costs()
        self._connect_parts()
        self.extensions = [
            Deadlines(self.core),
            self.schedules,
            self.users,
            self.projects,
            self.budgets,
            self.reservations,
            self.unused_gpus,
            self.joined_nodes,
            self.pools,
        ]

    def _add_people(self) -> None:
        self.users = Users(self.core)
        self.projects = Projects(self.core, self.users)
        self.access = Access(self.users, self.projects)
        self.sign_ins = SignIns(self.users)

    def _add_inputs(self, blobs: Blobs, home: Home) -> None:
        core = self.core
        settings = core.settings
        self.secrets = Secrets.of(settings, home)
        stores = stores_of(core.ledger, home.root, core.clock)
        accounts = Accounts.of(settings.node)
        self.submissions = Submissions(
            home, settings.jobs, stores, core.clock, accounts
        )
        dataset_stores = DatasetStores(home.root, settings.storage)
        self.datasets = Datasets(core, dataset_stores, self.access)
        self.workspaces = Workspaces(core, home)
        self.node_access = NodeAccess(core, stores, blobs, home.root)

    def _add_attempts(self, blobs: Blobs, home: Home) -> None:
        core = self.core
        self.requests = Requests(core, self.providers, self.secrets, self.submissions)
        self.gpus = self.requests.gpus
        self.changes = JobChanges(core)
        self.schedules = Schedules(core, self.requests)
        self.streams = JobStreams(core, self.providers)
        self.health = ProviderHealth(core)
        self._observed_runs = ObservedRuns(home.observed_runs)
        self.launching = Launching(
            core,
            self.providers,
            self.health,
            core.settings.workspaces.root(home),
            self.secrets,
            self._observed_runs,
        )
        self.disks = DiskAlarms(core, home)
        self.gpu_alarms = GpuAlarms(core)
        self.reports = Reports(
            core,
            self.launching,
            self.requests,
            self.providers,
            blobs,
            self.disks,
            self.gpu_alarms,
            self.node_access,
        )

    def _add_external_queues(self, blobs: Blobs, home: Home) -> None:
        self._copied_logs = CopiedLogs(
            self.core,
            self.reports,
            self.providers,
            blobs,
            home.copied_logs,
            self.secrets,
            home.root,
            self.gpus.figures,
        )
        self.external_queues = ExternalQueues(
            self.core,
            self.launching,
            self.requests,
            self.providers,
            self._copied_logs,
            self.health,
            self._observed_runs,
        )

    def _add_history(
        self,
        blobs: Blobs,
        home: Home,
        wait_for_event: Callable[[float], Awaitable[object]],
    ) -> None:
        core = self.core
        self.logs = Logs(core, self.providers, wait_for_event, self._copied_logs.path)
        self.results = KeptResults(core)
        self.retention = Retention(
            core, self.providers, blobs, home.copied_logs, self.submissions
        )

    def _add_nodes(self) -> None:
        core = self.core
        self.trust = TrustRecords(core, self.launching, self.providers)
        self.joined_nodes = JoinedNodes(
            core, self.providers, self.launching, self.requests
        )
        self.door = InstanceDoor()
        self.rented_nodes = RentedNodes(
            core,
            self.joined_nodes,
            self.launching,
            self.reports,
            self.providers,
            self.door,
        )
        self.pools = Pools(
            core, self.providers, self.joined_nodes, self._copied_logs.path, self.door
        )
        self.reservations = ReservationBook(core)
        self.unused_gpus = UnusedGpus(core)

    def _add_costs(self) -> None:
        self.budgets = Budgets(self.core)
        self.cloud_accounts = CloudAccounts(self.providers)
        self.cloud_bills = CloudBills(self.core, self.providers, self.cloud_accounts)

    def _connect_parts(self) -> None:
        """Give parts what they need of others that are made after them."""
        self.core.refuse_when_full = self.disks.refuse_when_full
        self.core.check_workspaces = self.workspaces.check
        self.submissions.mailbox_of = self._mailbox_of
        self.submissions.pinned = self.datasets.pinned
        self.schedules.check_submits = self.access.check_user_submits
        self.node_access.datasets = self.datasets
        self.launching.dataset_mounts = self.datasets.mounts
        if self.core.settings.workspaces.url:
            self.launching.bring_workspace = self.workspaces.bring
            self.launching.after_end = self.workspaces.job_ended
        leftovers = self.external_queues.leftovers
        self.rented_nodes.other_owners += [self.pools.owns, leftovers.needs_machine]

    async def start(self, epoch: int | None = None) -> None:
        """Read the ledger, then start the providers. A server that has not called this
        can only read.

        `epoch` is that of the lease, if several servers share a ledger.
        """
        self.core.start(epoch)
        self.providers.update(self._make_providers(self.core.epoch))
        self.core.prefetching = frozenset(
            name
            for name, provider in self.providers.node_providers.items()
            if provider.accepts_prefetched
        )
        self.core.on_intents = self.launching.launch_soon
        self.core.on_ending = self.requests.stop_soon
        self.core.on_reload = self._reload
        self.gpu_alarms.restore()
        for node_id in self.core.view.nodes:
            self.reports.silent_nodes.watch(node_id)
        for extension in self.extensions:
            extension.start()
        self.core.before_deciding = self._before_deciding
        for provider in self.providers.node_providers.values():
            provider.hand_out(self.submissions.stores, self.datasets.source)
        for provider in self.providers.rented.values():
            provider.attach(self.rented_nodes)
            provider.hand_out(self.submissions.stores, self.datasets.source)
        for provider in self.providers.values():
            await provider.start(self.reports)
        self.external_queues.start()
        self.core.schedule()

    def _mailbox_of(self, name: str) -> str | None:
        """The address of a user that the provider has verified at its sign-in."""
        user = self.users.named(name)
        return user.email if user else None

    def _before_deciding(self) -> None:
        for extension in self.extensions:
            extension.before_deciding()

    def _reload(self) -> None:
        """After a failed commit: let the agents connect again, so that their attempts
        are compared with the ledger.
        """
        self.gpu_alarms.restore()
        for extension in self.extensions:
            extension.reload()
        for provider in self.providers.node_providers.values():
            provider.reconnect()

    @property
    def idle(self) -> bool:
        """True when no job is live and nothing is left to do."""
        if self.core.view.jobs:
            return False
        return all(extension.idle for extension in self.extensions)

    async def serve_agent(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        machine: Machine | None = None,
    ) -> None:
        """Serve the connection of an agent that called this server, until it ends.
        `machine`: the one that has called, if it has joined.
        """
        caller = self.node_access.caller(machine) if machine else None
        node_provider = self._provider_of(machine)
        if node_provider is None:
            writer.close()
            return
        await node_provider.serve(reader, writer, caller)

    def _provider_of(self, machine: Machine | None) -> NodeProvider | None:
        """Who serves the agent of a machine, or that of this host."""
        if machine:
            rented = self.core.view.node(machine.node_id).provider
            if rented in self.providers.rented:
                return self.providers.agents_of(rented)
        return next(iter(self.providers.node_providers.values()), None)

    async def dismiss_agents(self) -> None:
        """Ask every agent to exit; running jobs are left for the next agent."""
        for provider in self.providers.node_providers.values():
            await provider.dismiss()

    async def close(self) -> None:
        """Close the providers, then write what is queued. Attempts run on."""
        self.core.before_deciding = lambda: None
        for extension in self.extensions:
            await extension.close()
        for provider in self.providers.values():
            await provider.close()
        await self.core.close()
