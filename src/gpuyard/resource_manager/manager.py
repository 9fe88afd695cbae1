"""The resource manager: model servers and batches, as an extension of the controller.

The controller knows only jobs. Model servers and the workers of batches are jobs too,
so everything here goes through the core of the controller and its requests.
"""

from contextlib import suppress
from pathlib import Path

from gpuyard.controller.controller import Controller
from gpuyard.domain.errors import LedgerError
from gpuyard.gateway.replica_client import ReplicaClient
from gpuyard.resource_manager.batch_requests import BatchRequests
from gpuyard.resource_manager.batches import Batches
from gpuyard.resource_manager.gpu_state import GpuStateFile
from gpuyard.resource_manager.gpu_work import GpuWork
from gpuyard.resource_manager.models import Models
from gpuyard.resource_manager.pool_needs import PoolNeeds
from gpuyard.resource_manager.prompts import Prompts
from gpuyard.resource_manager.residents import Residents
from gpuyard.resource_manager.spool import Spool


class ResourceManager:
    """Keeps models loaded, runs batches and takes tasks from the spool."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._core = controller.core
        requests = controller.requests
        self.residents = Residents(self._core, requests, controller.streams)
        self.models = Models(self._core, self.residents)
        self.replicas = ReplicaClient(self.residents.request_queues)
        self.prompts = Prompts(self._core, self.residents, self.models, self.replicas)
        self._batches = Batches(self._core, requests, self.residents)
        self.gpu_work = GpuWork(self._core, self.residents, self._batches)
        self.batches = BatchRequests(
            self._core, requests, self.residents, self._batches, controller.secrets
        )
        controller.node_access.take = self.batches.take
        needs = PoolNeeds(self._core, self.residents, self._batches)
        controller.pools.know_models(needs)
        self.residents.leaves = controller.pools.is_leaving
        self._core.model_load_s = self.models.load_s
        requests.when_it_leaves = self.models.when_it_leaves
        controller.gpu_alarms.models_on = self.residents.servers.jobs_on
        self._state_file: GpuStateFile | None = None
        controller.extensions.append(self)

    def start(self) -> None:
        """Find residents and batches in the ledger, and watch the spool."""
        self.prompts.adopt()
        name = self.prompts.PROVIDER_NAME
        attempts = self._core.view.attempts.values()
        # Prompts are queued again also if their models are no longer in the settings.
        if self.residents.specs or any(each.provider == name for each in attempts):
            self._controller.providers[name] = self.prompts
        self.residents.start()
        self._batches.start()
        self._core.spawn(self.replicas.keep_connections(), "replica-connections")
        root = self._core.settings.spool.path
        if root:
            spool = Spool(
                root.expanduser(),
                self._core,
                self._controller.requests,
                self._controller.logs,
            )
            self._core.spawn(spool.run(), "spool")

    def before_deciding(self) -> None:
        """Move models before jobs are placed.

        Batches come before models, because they ask models to leave; and before them it
        is noted which model servers have failed, because a batch plans when to load
        these again.
        """
        self.residents.servers.remove_ended()
        self._batches.advance()
        self.residents.act()

    def reload(self) -> None:
        """Find residents and batches again, after memory was read again."""
        self.prompts.reload()
        self.residents.servers.find()
        self._batches.start()

    @property
    def idle(self) -> bool:
        """True when no batch is under way."""
        return not self._batches.live

    async def close(self) -> None:
        """Stop deciding, and write for the last time what each GPU does; model servers
        and workers run on.
        """
        self._batches.close()
        await self.residents.close()
        if self._state_file:
            with suppress(LedgerError):
                self._state_file.write()

    def waiting(self) -> dict[str, int]:
        """How many prompts (`llm`) wait for a model, and how many scripts (`script`)
        for a place.
        """
        requests = sum(
            len(queue.waiting)
            for queue in self.residents.request_queues.by_model.values()
        )
        # Prompts that are jobs wait in the queue of jobs before they are requests.
        prompts = self._core.view.queue.prompts.total()
        return {"llm": requests + prompts, "script": self.batches.waiting()}

    def keep_gpu_state(self, path: Path) -> None:
        """Keep the file `gpu_state.json` at `path` up to date from now on."""
        self._state_file = GpuStateFile(
            self._core, self.residents, self.gpu_work, self.waiting, path
        )
        self._core.spawn(self._state_file.run(), "gpu-state")
