"""The provider `skypilot`: attempts on machines of any cloud that SkyPilot rents."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from gpuyard.providers.instances.api import ListPrice
from gpuyard.providers.instances.provider import RentedProvider
from gpuyard.providers.skypilot.api import SkyPilotApi
from gpuyard.providers.skypilot.config import SkyPilotConfig


class SkyPilotProvider(RentedProvider):
    """`config`: see `SkyPilotConfig`."""

    PROVIDER_NAME: ClassVar[str] = SkyPilotConfig.provider

    def __init__(self, config: Mapping[str, Any]) -> None:
        settings = SkyPilotConfig.read(config)
        self._skypilot = SkyPilotApi(settings)
        super().__init__(config, self._skypilot, settings)

    async def list_prices(self, *, refresh: bool = False) -> Sequence[ListPrice]:
        """See GpuProviderInterface. SkyPilot itself keeps its catalogue fresh."""
        return await self._skypilot.list_prices()
