"""All GPUs of a node as executors, each of which is checked by itself."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpuyard.config.verification import ExecutorSettings
from gpuyard.domain.errors import InvalidInputError, quoted
from gpuyard.verification.classes import Class, class_of
from gpuyard.verification.executors import Executor, executor_named

NODE = "node:"


def executors_of_node(
    words: str,
    gpus: Sequence[Mapping[str, Any]],
    configured: Mapping[str, ExecutorSettings],
    gpu_class: Class | None,
) -> list[Executor]:
    """The executors that `node:NAME` means: one for each of its GPUs.

    `gpus`: those of the instance, as its API has them. A GPU that an executor of the
    settings names by its UUID is that executor, and one that is trusted is left out.
    Without `gpu_class`, each GPU claims the class that its driver reports. Raises
    InvalidInputError.
    """
    node = words.removeprefix(NODE)
    here = [gpu for gpu in gpus if gpu["node"] == node]
    if not here:
        known = ", ".join(sorted({gpu["node"] for gpu in gpus})) or "none"
        raise InvalidInputError.of(
            "EXECUTOR",
            f"no node {quoted(node)} has GPUs",
            f"name one of the nodes that have: {known}",
        )
    names = {one.gpu: name for name, one in configured.items() if one.gpu}
    found: list[Executor] = []
    for gpu in here:
        name = names.get(gpu["uuid"], f"gpu:{gpu['uuid']}")
        if name in configured and configured[name].trusted:
            continue
        cls = gpu_class or _class_of(gpu)
        found.append(executor_named(name, configured, cls))
    if not found:
        fault = f"all GPUs of {quoted(node)} are trusted"
        raise InvalidInputError.of("EXECUTOR", fault, "name another node")
    return found


def _class_of(gpu: Mapping[str, Any]) -> Class:
    if gpu["gpu_class"] is None:
        fault = f"{gpu['uuid']} ({gpu['name']}) is of no known class"
        raise InvalidInputError.of("EXECUTOR", fault, "say what it claims with --class")
    return class_of(gpu["gpu_class"])
