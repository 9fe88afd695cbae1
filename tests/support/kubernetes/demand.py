"""What pods ask for, and what they hold."""

from decimal import Decimal

from tests.support.kubernetes.objects import Object
from tests.support.kubernetes.quantity import amounts


def requests(pod: Object) -> dict[str, Decimal]:
    """Of the whole pod: the sum of its containers, and no less than its hungriest init
    container.
    """
    total: dict[str, Decimal] = {}
    for container in pod["spec"]["containers"]:
        for resource, value in of_container(container).items():
            total[resource] = total.get(resource, Decimal(0)) + value
    for container in pod["spec"].get("initContainers", ()):
        for resource, value in of_container(container).items():
            total[resource] = max(total.get(resource, Decimal(0)), value)
    return total


def of_container(container: Object) -> dict[str, Decimal]:
    """Its requests; a limit without a request is one."""
    resources = container.get("resources") or {}
    return {**amounts(resources.get("limits")), **amounts(resources.get("requests"))}


def limits(pod: Object) -> dict[str, Decimal]:
    total: dict[str, Decimal] = {}
    for container in pod["spec"]["containers"]:
        for resource, value in amounts(
            (container.get("resources") or {}).get("limits")
        ).items():
            total[resource] = total.get(resource, Decimal(0)) + value
    return total


def total(pods: list[Object]) -> dict[str, Decimal]:
    """All that they ask for together, `pods` among it."""
    found: dict[str, Decimal] = {"pods": Decimal(len(pods))}
    for pod in pods:
        for resource, value in requests(pod).items():
            found[resource] = found.get(resource, Decimal(0)) + value
    return found
