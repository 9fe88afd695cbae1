"""The provider `tencent`: a TKE cluster, reached with nothing but a key of Tencent's.

It is the provider `kubernetes` in all that runs. Tencent gives the kubeconfig, and says which node pools could make
more nodes, what those are and what they cost.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from gpuyard.providers.kubernetes.api import Api
from gpuyard.providers.kubernetes.config import KubernetesConfig
from gpuyard.providers.kubernetes.fields import Json
from gpuyard.providers.kubernetes.provider import KubernetesProvider
from gpuyard.providers.kubernetes.supply import Supply
from gpuyard.providers.tencent.api import TencentApi
from gpuyard.providers.tencent.cluster import TencentCluster
from gpuyard.providers.tencent.config import SECRETS, TencentConfig
from gpuyard.providers.tencent.supply import kinds_of, supplies
from gpuyard.providers.tencent.survey import Survey


class TencentProvider(KubernetesProvider):
    """Jobs on a TKE cluster. `config`: see `TencentConfig`."""

    PROVIDER_NAME: ClassVar[str] = TencentConfig.provider
    patience_s: ClassVar[float] = 5.0
    """How long offers wait for what Tencent says of pools and prices."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._tencent_settings = TencentConfig.read(config)
        self._tencent = TencentApi(self._tencent_settings)
        self._survey = Survey(self._tencent)
        self._looking: asyncio.Task[None] | None = None
        super().__init__({key: value for key, value in config.items() if key not in SECRETS})

    def _read(self, config: Mapping[str, Any]) -> KubernetesConfig:
        return self._tencent_settings

    def _connection(self) -> Api:
        return TencentCluster(self._tencent_settings, self._tencent)

    async def close(self) -> None:
        """See GpuProviderInterface."""
        if self._looking is not None:
            self._looking.cancel()
        await super().close()
        self._tencent.close()

    async def _supplies(self, nodes: Sequence[Json]) -> Sequence[Supply]:
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._survey.look(kinds_of(nodes)), name="tencent-survey")
        # The cluster can be used without Tencent, so nobody waits long for it; what it says late is there next time.
        await asyncio.wait({self._looking}, timeout=self.patience_s)
        return supplies(nodes, self._survey, self._tencent_settings)

    async def health_check(self) -> dict[str, Any]:
        """As of the cluster; degraded while Tencent does not say what its pools are."""
        health = await super().health_check()
        if health["status"] == "healthy" and self._survey.problem:
            return {**health, "status": "degraded", "message": self._survey.problem}
        return health
