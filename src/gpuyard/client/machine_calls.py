"""Calls about rented machines."""

from typing import Any

from gpuyard.client.calls import Call


def rented_machines() -> Call[dict[str, Any]]:
    """The machines that clouds have for the instance, as `items`; as `told_at`, when
    each provider gave its newest answer; and as `problems`, by the names of those that
    give no newer one, why.
    """
    return Call("GET", "/api/v1/machines", dict)
