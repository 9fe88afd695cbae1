"""Calls about rented machines."""

from typing import Any

from gpuyard.client.calls import Call


def rented_machines() -> Call[dict[str, Any]]:
    """The machines that clouds have for the instance now, as `items`; and as
    `problems`, by the name of a provider that could not be asked, why.
    """
    return Call("GET", "/api/v1/machines", dict)
