"""The provider `tencent`: a TKE cluster, reached with a Tencent API key only.

Jobs run as in the provider `kubernetes`. Tencent's API gives the kubeconfig, the node
pools, and the size and price of their nodes.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from gpuyard.providers.kubernetes.api import KubernetesApi
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
    """How long `offers` waits for Tencent's answers about pools and prices."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._tencent_settings = TencentConfig.read(config)
        self._tencent = TencentApi(self._tencent_settings)
        self._survey = Survey(self._tencent)
        self._updating: asyncio.Task[None] | None = None
        super().__init__(
            {key: value for key, value in config.items() if key not in SECRETS}
        )

    def _read(self, config: Mapping[str, Any]) -> KubernetesConfig:
        return self._tencent_settings

    def _connection(self) -> KubernetesApi:
        return TencentCluster(self._tencent_settings, self._tencent)

    async def close(self) -> None:
        """See GpuProviderInterface."""
        if self._updating is not None:
            self._updating.cancel()
        await super().close()
        self._tencent.close()

    async def _supplies(self, nodes: Sequence[Json]) -> Sequence[Supply]:
        if self._updating is None or self._updating.done():
            self._updating = asyncio.create_task(
                self._survey.update(kinds_of(nodes)), name="tencent-survey"
            )
        # The cluster can be used without these answers. Late ones are used next time.
        await asyncio.wait({self._updating}, timeout=self.patience_s)
        return supplies(nodes, self._survey, self._tencent_settings)

    async def health_check(self) -> dict[str, Any]:
        """The cluster's health; degraded while Tencent's API does not answer."""
        health = await super().health_check()
        if health["status"] == "healthy" and self._survey.problem:
            return {**health, "status": "degraded", "message": self._survey.problem}
        return health
