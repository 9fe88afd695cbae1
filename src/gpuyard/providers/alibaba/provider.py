"""The provider `alibaba`: attempts on machines of Alibaba ECS."""

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, ClassVar

from gpuyard.domain.bills import CloudBill
from gpuyard.providers.alibaba.api import AlibabaApi
from gpuyard.providers.alibaba.config import SECRETS, AlibabaConfig
from gpuyard.providers.instances.api import ListPrice
from gpuyard.providers.instances.provider import RentedProvider


class AlibabaProvider(RentedProvider):
    """`config`: see `AlibabaConfig`."""

    PROVIDER_NAME: ClassVar[str] = AlibabaConfig.provider

    def __init__(self, config: Mapping[str, Any]) -> None:
        settings = AlibabaConfig.read(config)
        self._alibaba = AlibabaApi(settings)
        plain = {key: value for key, value in config.items() if key not in SECRETS}
        super().__init__(plain, self._alibaba, settings)
        self.currency = "CNY"

    async def list_prices(self, *, refresh: bool = False) -> Sequence[ListPrice]:
        """See GpuProviderInterface: Alibaba's own of today, so none has to be kept."""
        return await self._alibaba.list_prices(refresh=refresh)

    async def bill(self, day: date) -> CloudBill:
        """See GpuProviderInterface: a day in Beijing, from Alibaba's billing."""
        return await self._alibaba.bill(day, self.nodes.installation)
