"""Machines of Alibaba Cloud's Elastic Compute Service (ECS), rented for jobs."""

from typing import TYPE_CHECKING, Any

from gpuyard.providers.extras import require

require("alibaba", "alibabacloud_tea_openapi")

if TYPE_CHECKING:
    from gpuyard.providers.alibaba.provider import (
        AlibabaProvider as AlibabaCloudAdapter,
    )

__all__ = ["AlibabaCloudAdapter"]


def __getattr__(name: str) -> Any:
    """S2's name of the provider, which is imported on first use."""
    if name == "AlibabaCloudAdapter":
        from gpuyard.providers.alibaba.provider import AlibabaProvider

        return AlibabaProvider
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
