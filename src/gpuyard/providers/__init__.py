"""Providers run attempts: on this host, in containers, on Slurm, Kubernetes or a cloud.

All implement the interface in `base`. Whoever uses a provider without a gpuyard server
finds all names here: the interface, its forms and errors, and the providers, each of
which is imported when it is asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gpuyard.domain.errors import (
    InsufficientResourcesError,
    JobNotFoundError,
    ProviderError,
)
from gpuyard.domain.jobconfig import (
    CostInfo,
    GpuSpec,
    JobConfig,
    JobResult,
    JobStatus,
)
from gpuyard.providers.base import GpuProviderInterface

if TYPE_CHECKING:
    from gpuyard.providers.alibaba.provider import (
        AlibabaProvider,
    )
    from gpuyard.providers.alibaba.provider import (
        AlibabaProvider as AlibabaCloudAdapter,
    )
    from gpuyard.providers.docker.provider import DockerProvider
    from gpuyard.providers.kubernetes.provider import KubernetesProvider
    from gpuyard.providers.slurm.provider import SlurmProvider
    from gpuyard.providers.tencent.provider import (
        TencentProvider,
    )
    from gpuyard.providers.tencent.provider import (
        TencentProvider as TencentCloudAdapter,
    )

__all__ = [
    "AlibabaCloudAdapter",
    "AlibabaProvider",
    "CostInfo",
    "DockerProvider",
    "GpuProviderInterface",
    "GpuSpec",
    "InsufficientResourcesError",
    "JobConfig",
    "JobNotFoundError",
    "JobResult",
    "JobStatus",
    "KubernetesProvider",
    "ProviderError",
    "SlurmProvider",
    "TencentCloudAdapter",
    "TencentProvider",
]
_PROVIDERS = {
    "AlibabaCloudAdapter": ("alibaba", "AlibabaProvider"),
    "AlibabaProvider": ("alibaba", "AlibabaProvider"),
    "DockerProvider": ("docker", "DockerProvider"),
    "KubernetesProvider": ("kubernetes", "KubernetesProvider"),
    "SlurmProvider": ("slurm", "SlurmProvider"),
    "TencentCloudAdapter": ("tencent", "TencentProvider"),
    "TencentProvider": ("tencent", "TencentProvider"),
}


def __getattr__(name: str) -> Any:
    """A provider, imported on first use: most need an extra of their own."""
    if name not in _PROVIDERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    (package, kind) = _PROVIDERS[name]
    return getattr(import_module(f"{__name__}.{package}.provider"), kind)
