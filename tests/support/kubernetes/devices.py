"""GPUs, as the device plugins of the nodes give them out."""

from tests.support.kubernetes.nodes import Node


class Devices:
    """Who holds which GPU.

    Each is held by one container at most, whatever the scheduler thinks.
    """

    def __init__(self, nodes: list[Node]) -> None:
        self._all = {node.name: node.uuids for node in nodes}
        self._held: dict[str, tuple[str, str]] = {}
        self._used_by: dict[str, str] = {}
        self.most: dict[str, int] = {node.name: 0 for node in nodes}
        self.violations: list[str] = []

    def add(self, node: Node) -> None:
        self._all[node.name] = node.uuids
        self.most.setdefault(node.name, 0)

    def free(self, node: str) -> list[str]:
        return [each for each in self._all[node] if each not in self._held]

    def take(self, node: str, pod: str, container: str, count: int) -> list[str]:
        """So many GPUs for a container; ValueError where there are not."""
        chosen = self.free(node)[:count]
        if len(chosen) < count:
            raise ValueError(
                "Allocate failed due to requested number of devices unavailable for"
                f" nvidia.com/gpu. Requested: {count}, Available: {len(chosen)}, which"
                " is unexpected"
            )
        self._held |= dict.fromkeys(chosen, (pod, container))
        self.most[node] = max(
            self.most[node], len(self._all[node]) - len(self.free(node))
        )
        return chosen

    def of(self, pod: str, container: str) -> list[str]:
        """What a container holds already."""
        return [
            each for each, holder in self._held.items() if holder == (pod, container)
        ]

    def release(self, pod: str) -> None:
        """What a pod held is free again."""
        self._held = {
            each: holder for each, holder in self._held.items() if holder[0] != pod
        }

    def started(self, chosen: list[str], pod: str) -> None:
        """A process runs on them."""
        for each in chosen:
            other = self._used_by.setdefault(each, pod)
            if other != pod:
                self.violations.append(
                    f"{each} was used by {pod} while {other} ran on it"
                )

    def ended(self, chosen: list[str], pod: str) -> None:
        """It does no more."""
        for each in chosen:
            if self._used_by.get(each) == pod:
                del self._used_by[each]

    def held(self) -> dict[str, str]:
        """Which pod (its uid) holds each GPU."""
        return {each: pod for each, (pod, _) in self._held.items()}

    def check(self) -> None:
        """AssertionError when a node ever gave out more than it has, or two pods ran on
        one GPU.
        """
        assert not self.violations, self.violations
        for node, most in self.most.items():
            assert most <= len(self._all[node]), (
                f"{node} gave out {most} of {len(self._all[node])} GPUs"
            )
