"""Where the jobs of a study run: on Slurm, on own nodes, or as pods."""

from typing import TYPE_CHECKING

from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.own_nodes import OWN_NODES
from gpuyard.studies.kubernetes_jobs import (
    KUBERNETES,
    KubernetesJobFactory,
    KubernetesJobManager,
)
from gpuyard.studies.own_node_jobs import OwnNodeJobFactory, OwnNodeJobManager
from gpuyard.studies.slurm_job_manager import SlurmJobManager
from gpuyard.studies.slurm_jobs import SlurmJobFactory

if TYPE_CHECKING:
    from gpuyard.client.sync import Client
    from gpuyard.studies.study import Study

_FACTORIES = {OWN_NODES: OwnNodeJobFactory, KUBERNETES: KubernetesJobFactory}


def factory_of(provider: str) -> type[SlurmJobFactory]:
    """What writes the folders of jobs for a provider."""
    return _FACTORIES.get(provider, SlurmJobFactory)


def manager_of(study: "Study", client: "Client", provider: str) -> SlurmJobManager:
    """What submits jobs to a provider; InvalidInputError if pods have no image."""
    if provider == OWN_NODES:
        return OwnNodeJobManager(client, provider)
    if provider != KUBERNETES:
        return SlurmJobManager(client, provider)
    if study.kubernetes is None:
        raise InvalidInputError.of(
            "kubernetes",
            "is missing, and pods need an image",
            "add the section [kubernetes] with image",
        )
    return KubernetesJobManager(client, study.kubernetes)
