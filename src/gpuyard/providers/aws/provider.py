"""The provider `aws`: attempts on machines of EC2."""

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, ClassVar

from gpuyard.domain.bills import CloudBill
from gpuyard.providers.aws.api import AwsApi
from gpuyard.providers.aws.config import SECRETS, AwsConfig
from gpuyard.providers.instances.api import ListPrice
from gpuyard.providers.instances.provider import RentedProvider


class AwsProvider(RentedProvider):
    """`config`: see `AwsConfig`."""

    PROVIDER_NAME: ClassVar[str] = AwsConfig.provider

    def __init__(self, config: Mapping[str, Any]) -> None:
        settings = AwsConfig.read(config)
        self._aws = AwsApi(settings)
        plain = {key: value for key, value in config.items() if key not in SECRETS}
        super().__init__(plain, self._aws, settings)

    async def list_prices(self, *, refresh: bool = False) -> Sequence[ListPrice]:
        """See GpuProviderInterface."""
        if refresh:
            return await self._aws.refresh_prices()
        return self._aws.list_prices()

    async def bill(self, day: date) -> CloudBill:
        """See GpuProviderInterface: a day in UTC, from Cost Explorer."""
        return await self._aws.bill(day, self.nodes.installation)
