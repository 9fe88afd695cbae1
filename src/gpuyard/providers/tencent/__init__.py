"""Tencent Kubernetes Engine (TKE). The cluster's address, account, node pools and
prices come from Tencent Cloud's API.
"""

from typing import TYPE_CHECKING, Any

from gpuyard.providers.extras import require

require("tencent", "kubernetes_asyncio", "tencentcloud")

if TYPE_CHECKING:
    from gpuyard.providers.tencent.provider import (
        TencentProvider as TencentCloudAdapter,
    )

__all__ = ["TencentCloudAdapter"]


def __getattr__(name: str) -> Any:
    """S2's name of the provider, which is imported on first use."""
    if name == "TencentCloudAdapter":
        from gpuyard.providers.tencent.provider import TencentProvider

        return TencentProvider
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
