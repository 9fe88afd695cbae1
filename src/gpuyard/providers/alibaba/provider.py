"""The provider `alibaba`: attempts on machines of Alibaba ECS."""

from collections.abc import Mapping
from typing import Any, ClassVar

from gpuyard.providers.alibaba.api import AlibabaApi
from gpuyard.providers.alibaba.config import SECRETS, AlibabaConfig
from gpuyard.providers.instances.provider import RentedProvider


class AlibabaProvider(RentedProvider):
    """`config`: see `AlibabaConfig`."""

    PROVIDER_NAME: ClassVar[str] = AlibabaConfig.provider

    def __init__(self, config: Mapping[str, Any]) -> None:
        settings = AlibabaConfig.read(config)
        plain = {key: value for key, value in config.items() if key not in SECRETS}
        super().__init__(plain, AlibabaApi(settings), settings)
        self.currency = "CNY"
