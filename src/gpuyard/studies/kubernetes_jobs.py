"""Write and submit the jobs of a study to a Kubernetes cluster.

A job is one pod for each of its nodes. gpuyard starts them as a gang, and each runs the
same script as a node of ours. The pods see the study's folder on a volume, under the
path that it has here.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpuyard.studies.manifest import ManifestEntry
from gpuyard.studies.own_node_jobs import OwnNodeJobFactory, OwnNodeJobManager
from gpuyard.studies.slurm_jobs import SlurmConfig
from gpuyard.studies.strategies import ParallelismStrategy
from gpuyard.studies.study import KubernetesSection

if TYPE_CHECKING:
    from gpuyard.client.sync import Client

KUBERNETES = "kubernetes"
"""The provider's name."""


class KubernetesJobFactory(OwnNodeJobFactory):
    """Writes the folders of a run's jobs, with scripts for pods."""

    def create_config(
        self, strategy: ParallelismStrategy, strategy_id: str
    ) -> SlurmConfig:
        """What the job asks for. Images have no modules to load."""
        return replace(super().create_config(strategy, strategy_id), modules=())

    def _container(self) -> list[str]:
        """Return nothing: the pod is the container."""
        return []


class KubernetesJobManager(OwnNodeJobManager):
    """Submits jobs as pods through a client and waits for them."""

    def __init__(self, client: "Client", section: KubernetesSection) -> None:
        super().__init__(client, KUBERNETES)
        self._section = section

    def _work(
        self, entry: ManifestEntry, experiment: Mapping[str, Any], time_limit_s: float
    ) -> dict[str, Any]:
        work = super()._work(entry, experiment, time_limit_s)
        section = self._section
        resources: dict[str, Any] = {
            **work["resources"],
            "cpus": section.cpus,
            "memory_gb": section.memory_gb,
        }
        if section.gpu_class and resources["gpus"]["count"]:
            resources["gpus"] = {**resources["gpus"], "gpu_class": section.gpu_class}
        return {
            **work,
            "provider": KUBERNETES,
            "image": section.image,
            "volumes": dict(section.volumes),
            "resources": resources,
        }
