"""gpuyard: one queue for all GPU work, on every GPU you can reach.

The public names are loaded on first use, so that `import gpuyard` (and `gpuyard
--help`) stays fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuyard.client.aio import AsyncClient
    from gpuyard.client.sync import Client
    from gpuyard.client.sync_job import JobHandle
    from gpuyard.domain.errors import GpuyardError
    from gpuyard.domain.jobconfig import GpuSpec, JobConfig
    from gpuyard.domain.jobspec import JobSpec
    from gpuyard.flows.from_python import run_flow, run_flow_async

__version__ = "0.1.0"

_HOMES = {
    "AsyncClient": "gpuyard.client.aio",
    "Client": "gpuyard.client.sync",
    "GpuSpec": "gpuyard.domain.jobconfig",
    "GpuyardError": "gpuyard.domain.errors",
    "JobConfig": "gpuyard.domain.jobconfig",
    "JobHandle": "gpuyard.client.sync_job",
    "JobSpec": "gpuyard.domain.jobspec",
    "run_flow": "gpuyard.flows.from_python",
    "run_flow_async": "gpuyard.flows.from_python",
}

__all__ = [
    "AsyncClient",
    "Client",
    "GpuSpec",
    "GpuyardError",
    "JobConfig",
    "JobHandle",
    "JobSpec",
    "__version__",
    "run_flow",
    "run_flow_async",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'gpuyard' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext gpuyard` in a notebook: add `%%gpuyard` and `%gpuyard`."""
    import_module("gpuyard.notebook.magics").register(shell)
