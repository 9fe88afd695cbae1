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
from gpuyard.controller.health import ProviderHealth
from gpuyard.controller.job_changes import JobChanges
from gpuyard.controller.job_streams import JobStreams
from gpuyard.controller.joined_nodes import JoinedNodes
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
from gpuyard.storage.place import open_remote_workspaces
from gpuyard.storage.secret_sources import SecretSources

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
        self.core = Core(ledger, settings, clock)
        self.providers = Providers()
        folder = settings.secrets.root(home)
        sources = SecretSources(folder, settings.secrets)
        self.secrets = Secrets(sources, settings.sign_in.own_secrets)
        stores = stores_of(ledger, home.root, clock)
        accounts = Accounts.of(settings.node)
        self.submissions = Submissions(home, settings.jobs, stores, clock, accounts)
        self.node_access = NodeAccess(self.core, stores, blobs, home.root)
        self.requests = Requests(
            self.core, self.providers, self.secrets, self.submissions
        )
        self.changes = JobChanges(self.core)
        self.streams = JobStreams(self.core, self.providers)
        self.health = ProviderHealth(self.core)
        observed_runs = ObservedRuns(home.observed_runs)
        self.launching = Launching(
            self.core,
            self.providers,
            self.health,
            settings.workspaces.root(home),
            self.secrets,
            observed_runs,
        )
        self.disks = DiskAlarms(self.core, home)
        self.gpu_alarms = GpuAlarms(self.core)
        self.core.refuse_when_full = self.disks.refuse_when_full
        self.reports = Reports(
            self.core,
            self.launching,
            self.requests,
            self.providers,
            blobs,
            self.disks,
            self.gpu_alarms,
            self.node_access,
        )
        self.gpus = self.requests.gpus
        self.cloud_accounts = CloudAccounts(self.providers)
        self.cloud_bills = CloudBills(self.core, self.providers, self.cloud_accounts)
        self.trust = TrustRecords(self.core, self.launching, self.providers)
        logs_folder = home.logs / "attempts"
        copied_logs = CopiedLogs(
            self.core,
            self.reports,
            self.providers,
            blobs,
            logs_folder,
            self.secrets,
            home.root,
            self.gpus.figures,
        )
        self.retention = Retention(
            self.core, self.providers, blobs, logs_folder, self.submissions
        )
        self.logs = Logs(self.core, self.providers, wait_for_event, copied_logs.path)
        self.external_queues = ExternalQueues(
            self.core,
            self.launching,
            self.requests,
            self.providers,
            copied_logs,
            self.health,
            observed_runs,
        )
        self.schedules = Schedules(self.core, self.requests)
        workspaces = settings.workspaces
        self.workspaces = Workspaces(
            self.core,
            workspaces.root(home),
            workspaces,
            open_remote_workspaces(home, workspaces),
        )
        self.core.check_workspaces = self.workspaces.check
        if workspaces.url:
            self.launching.bring_workspace = self.workspaces.bring
            self.launching.after_end = self.workspaces.job_ended
        self.users = Users(self.core)
        self.submissions.mailbox_of = self._mailbox_of
        self.projects = Projects(self.core, self.users)
        self.access = Access(self.users, self.projects)
        dataset_stores = DatasetStores(home.root, settings.storage)
        self.datasets = Datasets(self.core, dataset_stores, self.access)
        self.submissions.pinned = self.datasets.pinned
        self.launching.dataset_mounts = self.datasets.mounts
        self.node_access.datasets = self.datasets
        self.sign_ins = SignIns(self.users)
        self.results = KeptResults(self.core)
        self.budgets = Budgets(self.core)
        self.reservations = ReservationBook(self.core)
        self.unused_gpus = UnusedGpus(self.core)
        self.schedules.check_submits = self.access.check_user_submits
        self.joined_nodes = JoinedNodes(
            self.core, self.providers, self.launching, self.requests
        )
        self.rented_nodes = RentedNodes(
            self.core,
            self.joined_nodes,
            self.launching,
            self.reports,
            self.providers,
        )
        self.pools = Pools(
            self.core, self.providers, self.joined_nodes, copied_logs.path
        )
        leftovers = self.external_queues.leftovers
        self.rented_nodes.other_owners += [self.pools.owns, leftovers.needs_machine]
        self.extensions: list[Extension] = [
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
        self._make_providers = make_providers

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
