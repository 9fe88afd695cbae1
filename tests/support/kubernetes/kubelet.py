"""The kubelets of all nodes."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable

from tests.support.kubernetes import demand, errors
from tests.support.kubernetes.container import Container
from tests.support.kubernetes.controller import Controller
from tests.support.kubernetes.logs import Log, Wanted
from tests.support.kubernetes.nodes import GPU
from tests.support.kubernetes.objects import (
    Object,
    containers,
    deleting,
    ended,
    name,
    namespace,
    uid,
)
from tests.support.kubernetes.quantity import amounts, text
from tests.support.kubernetes.worker import Tools, Worker

_AGAIN_S = 0.05


class Kubelet(Controller):
    """Starts what the scheduler put on nodes that live, and ends what is deleted."""

    def __init__(self, tools: Tools, failed: Callable[[Exception], None]) -> None:
        super().__init__(tools.store)
        self._tools = tools
        self._failed = failed
        self._workers: dict[str, tuple[Worker, asyncio.Task[None]]] = {}
        self._lost: set[str] = set()
        # Nodes whose device plugin is gone, while the node still promises its GPUs.
        self.without_plugin: set[str] = set()
        self._addresses = 0
        self._again = False

    def reconcile(self) -> float | None:
        self._again = False
        pods = {uid(pod): pod for pod in self.store.by_age("pods")}
        nodes = {*map(name, self.store.all("nodes"))}
        for pod in pods.values():
            if pod["spec"].get("nodeName") in nodes - self._lost:
                self._tend(pod)
        for key, (worker, _) in [*self._workers.items()]:
            if key not in pods and worker.pod["spec"]["nodeName"] not in self._lost:
                worker.leave(0)
        self._clear(set(pods))
        return _AGAIN_S if self._again else None

    def _tend(self, pod: Object) -> None:
        known = self._workers.get(uid(pod))
        if known is None and not ended(pod):
            self._take(pod)
        elif known is None and deleting(pod):
            self.store.finish("pods", pod)
        elif known and deleting(pod):
            known[0].leave(pod["metadata"].get("deletionGracePeriodSeconds") or 0)
        elif known:
            known[0].limit(pod["spec"].get("activeDeadlineSeconds"))

    def _take(self, pod: Object) -> None:
        worker = Worker(self._tools, pod, self._address(pod))
        if any(
            "waiting" not in each["state"]
            for each in pod["status"].get("containerStatuses") or ()
        ):
            worker.bury()
            return
        refusal = self._refusal(pod)
        if refusal and any(
            each.leaving for each, _ in self._on(pod["spec"]["nodeName"])
        ):
            self._again = True  # What was deleted by force still ends.
            return
        if refusal:
            worker.reject(*refusal)
            return
        task = asyncio.get_running_loop().create_task(worker.run())
        self._workers[uid(pod)] = (worker, task)
        task.add_done_callback(lambda done: self._ended(uid(pod), done))
        if deleting(pod):
            worker.leave(pod["metadata"].get("deletionGracePeriodSeconds") or 0)

    def _ended(self, key: str, task: "asyncio.Task[None]") -> None:
        if key in self._workers and self._workers[key][1] is task:
            del self._workers[key]
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._failed(error)

    def _address(self, pod: Object) -> tuple[str, str]:
        """The pod's and its node's."""
        self._addresses += 1
        node = self.store.get("nodes", "", pod["spec"]["nodeName"])
        return (
            f"10.244.{self._addresses // 250}.{self._addresses % 250 + 2}",
            node["status"]["addresses"][0]["address"],
        )

    def _on(self, node: str) -> list[tuple[Worker, "asyncio.Task[None]"]]:
        """Who runs there, or still ends."""
        mine = [
            each
            for each in self._workers.values()
            if each[0].pod["spec"]["nodeName"] == node
        ]
        return [each for each in mine if not each[0].over]

    def _refusal(self, pod: Object) -> tuple[str, str] | None:
        """Why the node does not take what the scheduler, or a person, put on it."""
        node = self.store.get("nodes", "", pod["spec"]["nodeName"])
        there = [worker.pod for worker, _ in self._on(name(node))]
        used = demand.total(there)
        allocatable = amounts(node["status"]["allocatable"])
        for resource, value in demand.requests(pod).items():
            free = allocatable.get(resource, 0) - used.get(resource, 0)
            if resource == GPU and name(node) in self.without_plugin:
                free = value - value
            if value > free and resource == GPU:
                return (
                    "UnexpectedAdmissionError",
                    (
                        "Allocate failed due to requested number of devices unavailable"
                        f" for {GPU}. Requested: {value}, Available: {free}, which is"
                        " unexpected"
                    ),
                )
            if value > free:
                shown = [
                    text(each)
                    for each in (
                        value,
                        used.get(resource, value - value),
                        allocatable[resource],
                    )
                ]
                return (
                    f"OutOf{resource}",
                    (
                        f"Node didn't have enough resource: {resource}, requested:"
                        f" {shown[0]}, used: {shown[1]}, capacity: {shown[2]}"
                    ),
                )
        return None

    def _clear(self, living: set[str]) -> None:
        """Forget logs and folders of pods that are gone."""
        for key in {pod for pod, _ in self._tools.logs} - living - set(self._workers):
            folder = self._tools.folder / "pods" / key
            # On a slow disk this would hold up everybody.
            asyncio.get_running_loop().run_in_executor(
                None, shutil.rmtree, folder, True
            )
            for log in [each for each in self._tools.logs if each[0] == key]:
                del self._tools.logs[log]

    def lose(self, node: str) -> None:
        """All that runs on the node is dead when this returns."""
        self._lost.add(node)
        for worker, task in self._on(node):
            worker.destroy()
            task.cancel()
            del self._workers[uid(worker.pod)]

    def restore(self, node: str) -> None:
        self._lost.discard(node)

    def evict(self, pod: Object, message: str) -> None:
        """Node pressure."""
        self._workers[uid(pod)][0].evict(message)

    def rotate_log(self, pod: Object) -> None:
        for log in self._logs_of(pod):
            log.rotate()

    def remove_log(self, pod: Object) -> None:
        status = pod["status"]["containerStatuses"][0]
        why = f"unable to retrieve container logs for {status['containerID']}"
        for log in self._logs_of(pod):
            log.removed = why

    def watch_no_log(self, pod: Object) -> None:
        folder = f"/var/log/pods/{namespace(pod)}_{name(pod)}_{uid(pod)}/job"
        why = f'failed to watch directory "{folder}": no space left on device'
        for log in self._logs_of(pod):
            log.not_watched = why

    def _logs_of(self, pod: Object) -> list[Log]:
        return [log for key, log in self._tools.logs.items() if key[0] == uid(pod)]

    def close(self) -> None:
        for worker, task in [*self._workers.values()]:
            worker.destroy()
            task.cancel()

    def log(self, pod: Object, container: str, wanted: Wanted) -> AsyncIterator[bytes]:
        """The log of a container; 400 and 500 as the server answers."""
        node = pod["spec"].get("nodeName", "")
        if not node:
            raise errors.bad_request(f"pod {name(pod)} does not have a host assigned")
        if node in self._lost:
            host = pod["status"].get("hostIP", "")
            path = f"containerLogs/{namespace(pod)}/{name(pod)}/{container}"
            raise errors.ApiError(
                500,
                "InternalError",
                f'Get "https://{host}:10250/{path}": dial tcp {host}:10250: '
                "connect: no route to host",
            )
        statuses = [
            *pod["status"].get("initContainerStatuses", ()),
            *pod["status"].get("containerStatuses", ()),
        ]
        status = next((each for each in statuses if each["name"] == container), {})
        waiting = status.get("state", {}).get("waiting")
        log = self._tools.logs.get((uid(pod), container))
        if (waiting and not status.get("restartCount")) or log is None:
            reason = (waiting or {}).get("reason", "ContainerCreating")
            why = (
                "trying and failing to pull image"
                if reason in ("ErrImagePull", "ImagePullBackOff")
                else reason
            )
            raise errors.bad_request(
                f'container "{container}" in pod "{name(pod)}" is waiting to start:'
                f" {why}"
            )
        return log.read(wanted)

    def container(self, pod: Object, container: str) -> Container:
        """A container that runs, to run a command in; 400 and 500 as the server answers."""
        node = pod["spec"].get("nodeName", "")
        if not node:
            raise errors.bad_request(f"pod {name(pod)} does not have a host assigned")
        phase = pod["status"].get("phase")
        if phase in ("Succeeded", "Failed"):
            raise errors.bad_request(
                "cannot exec into a container in a completed pod; current phase is"
                f" {phase}"
            )
        known = self._workers.get(uid(pod))
        found = known[0].running(container) if known else None
        if node in self._lost or found is None:
            why = f'unable to upgrade connection: container not found ("{container}")'
            raise errors.ApiError(500, "InternalError", why)
        return found


def pick(pod: Object, wanted: str | None) -> str:
    """The container whose log is asked for; 400."""
    names = [each["name"] for each in containers(pod)]
    if wanted is None and len(pod["spec"]["containers"]) > 1:
        shown = " ".join(each["name"] for each in pod["spec"]["containers"])
        raise errors.bad_request(
            f"a container name must be specified for pod {name(pod)}, choose one of:"
            f" [{shown}]"
        )
    chosen: str = wanted or pod["spec"]["containers"][0]["name"]
    if chosen not in names:
        raise errors.bad_request(f"container {chosen} is not valid for pod {name(pod)}")
    return chosen
