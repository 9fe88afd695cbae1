"""Objects that are created once, however often that is asked for."""

from collections.abc import Mapping
from typing import Any

from gpuyard.providers.kubernetes.api import KubernetesApi
from gpuyard.providers.kubernetes.api_errors import ApiError
from gpuyard.providers.kubernetes.fields import Json


async def create_once(
    api: KubernetesApi, path: str, body: Mapping[str, Any]
) -> Json | None:
    """The new object; None when one of this name exists."""
    try:
        return await api.call("POST", path, body)
    except ApiError as error:
        if error.reason != "AlreadyExists":
            raise
        return None
