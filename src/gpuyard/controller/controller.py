"""The controller, put together: core, requests, launching, reports, logs and the providers they work with."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuyard.config.paths import Home
from gpuyard.config.settings import Settings, StorageSettings
from gpuyard.controller.batch_requests import BatchRequests
from gpuyard.controller.batches import Batches
from gpuyard.controller.core import Core
from gpuyard.controller.engines import Engines
from gpuyard.controller.gpu_state import GpuStateFile
from gpuyard.controller.gpu_work import GpuWork
from gpuyard.controller.health import Healths
from gpuyard.controller.launching import Launching
from gpuyard.controller.logs import Logs
from gpuyard.controller.mirror import Mirrors
from gpuyard.controller.models import Models
from gpuyard.controller.reports import Reports
from gpuyard.controller.requests import Requests
from gpuyard.controller.residents import Residents
from gpuyard.controller.spool import Spool
from gpuyard.controller.trust import TrustRecords
from gpuyard.domain.errors import InvalidInputError
from gpuyard.ledger.ledger import Ledger
from gpuyard.providers import registry
from gpuyard.providers.base import GpuProviderInterface, OwnsNodes
from gpuyard.providers.local import keep_keeper
from gpuyard.storage.blobs import Blobs

MakeProviders = Callable[[int], Mapping[str, GpuProviderInterface]]


class Controller:
    """One yard. `make_providers(epoch)` gives the providers by name; `home` is where logs and workspaces lie;
    `news` is how logs wait for something new."""

    def __init__(
        self,
        ledger: Ledger,
        settings: Settings,
        make_providers: MakeProviders,
        blobs: Blobs,
        home: Home,
        news: Callable[[float], Awaitable[object]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.core = Core(ledger, settings, clock)
        self.providers: dict[str, GpuProviderInterface] = {}
        self.requests = Requests(self.core, self.providers)
        self.health = Healths(self.core)
        self.launching = Launching(self.core, self.providers, self.health, settings.workspaces.root(home))
        self.reports = Reports(self.core, self.launching, self.requests, self.providers, blobs)
        self.gpus = self.requests.gpus
        self.trust = TrustRecords(self.core, self.launching, self.providers)
        mirrors = Mirrors(self.core, self.reports, self.providers, blobs, home.logs / "attempts")
        self.logs = Logs(self.core, self.providers, news, mirrors.path)
        self.engines = Engines(self.core, self.launching, self.requests, self.providers, mirrors, self.health,
                               {"local": "docker"})  # fmt: skip
        self.residents = Residents(self.core, self.requests)
        self.models = Models(self.core, self.residents)
        self._batches = Batches(self.core, self.requests, self.residents)
        self.gpu_work = GpuWork(self.core, self.residents, self._batches)
        self.batches = BatchRequests(self.core, self.requests, self.residents, self._batches)
        self._make_providers = make_providers

    async def start(self, epoch: int | None = None) -> None:
        """Recover from the ledger, then let the providers in. Before it, and without it, only reads are answered.

        `epoch` is that of the lease, where several servers share a ledger.
        """
        self.core.start(epoch)
        self.providers.update(self._make_providers(self.core.epoch))
        self.core.claiming = frozenset(
            name for name, made in self.providers.items() if isinstance(made, OwnsNodes) and made.takes_claims
        )
        self.core.on_intents = self.launching.launch_soon
        self.core.on_preempt = self.requests.preempt
        self.core.on_reload = self._reconnect
        for node_id in self.core.view.nodes:
            self.reports.watch_silence(node_id)
        self.residents.start()
        self._batches.start()
        self.core.before_deciding = self._before_deciding
        if root := self.core.settings.spool.path:
            self.core.spawn(Spool(root.expanduser(), self.core, self.requests, self.logs).run(), "spool")
        for provider in self.providers.values():
            await provider.start(self.reports)
        self.engines.start()
        self.core.schedule()

    def _before_deciding(self) -> None:
        """A batch moves models aside, so it speaks first."""
        self._batches.tend()
        self.residents.act()

    def _reconnect(self) -> None:
        """After a failed commit agents say Hello anew: what they have is then held against what the ledger has."""
        self.residents.find()
        self._batches.start()
        for provider in self.providers.values():
            if isinstance(provider, OwnsNodes):
                provider.reconnect()

    def keep_gpu_state(self, path: Path) -> None:
        """Keep the file `gpu_state.json` at `path` true from now on."""
        self.core.spawn(GpuStateFile(self.core, self.residents, self.gpu_work, path).run(), "gpu-state")

    @property
    def idle(self) -> bool:
        """Nothing runs, and nothing is left to do."""
        return not self.core.view.jobs and not self._batches.live

    async def serve_agent(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The link of an agent that came in by the server's door, to its end."""
        for provider in self.providers.values():
            if isinstance(provider, OwnsNodes):
                await provider.serve(reader, writer)
                return
        writer.close()

    async def dismiss_agents(self) -> None:
        """Ask every agent to leave; jobs that run are left to the next one."""
        for provider in self.providers.values():
            if isinstance(provider, OwnsNodes):
                await provider.dismiss()

    async def close(self) -> None:
        """Let go of the providers, then write what is waiting. What runs, runs on."""
        self.core.before_deciding = lambda: None
        self._batches.close()
        await self.residents.close()
        for provider in self.providers.values():
            await provider.close()
        await self.core.close()


async def keep_local_node(home: Home) -> None:
    """See to it that the agent of `home` runs, for as long as this is not cancelled: it finds the leader by itself."""
    await keep_keeper(home)


def local_providers(home: Path, settings: Settings) -> MakeProviders:
    """The providers of an embedded server: this machine, and those that the settings name.

    InvalidInputError names the setting that is wrong.
    """

    others = {name: _load(name, {"home": str(home), **section}, settings.storage)
              for name, section in settings.providers.items() if section.get("enabled", True)}  # fmt: skip

    def make(epoch: int) -> Mapping[str, GpuProviderInterface]:
        config: dict[str, Any] = {"home": str(home), "epoch": epoch, "heartbeat_s": settings.node.heartbeat_s}
        if settings.billing.local_price_per_hour is not None:
            config["price_per_hour"] = settings.billing.local_price_per_hour
        return {"local": registry.load("local", config), **others}

    return make


def _load(name: str, config: Mapping[str, Any], storage: StorageSettings) -> GpuProviderInterface:
    try:
        return registry.load(name, config, storage)
    except InvalidInputError as error:
        faults = [replace(f, field="providers" if f.field == "provider" else f"providers.{name}.{f.field}")
                  for f in error.faults]  # fmt: skip
        raise InvalidInputError(faults) from None
