"""The status of a pod, as its kubelet reports it."""

from typing import Any

from tests.support.kubernetes.objects import Object, clone, set_condition
from tests.support.kubernetes.store import Store

_UNKNOWN = "The container could not be located when the pod was terminated"


class Report:
    """What the kubelet knows of the containers of one pod, written to the pod whenever
    it changes.
    """

    def __init__(self, store: Store, pod: Object, address: str, host: str) -> None:
        self._store = store
        self.pod = pod
        self._addresses = (address, host)
        self._statuses = {each["name"]: _waiting(each) for each in _all(pod)}
        self._started = store.clock.stamp()

    def state(self, container: str, kind: str, **values: Any) -> None:
        """A container waits, runs or has terminated."""
        status = self._statuses[container]
        status["state"] = {kind: values}
        status["started"] = status["ready"] = kind == "running"

    def identify(self, container: str, identity: str) -> None:
        image = self._statuses[container]["image"]
        self._statuses[container] |= {
            "containerID": f"containerd://{identity}",
            "imageID": f"{image}@sha256:0",
        }

    def again(self, container: str) -> None:
        """It ended and is to be started once more."""
        status = self._statuses[container]
        status |= {
            "lastState": status["state"],
            "restartCount": status["restartCount"] + 1,
        }

    def waiting(self, container: str, reason: str, message: str = "") -> None:
        self.state(
            container,
            "waiting",
            reason=reason,
            **({"message": message} if message else {}),
        )
        self.write()

    def code(self, container: str) -> int | None:
        """Its exit code, if it has ended."""
        ended = self._statuses[container]["state"].get("terminated")
        return ended["exitCode"] if ended else None

    def lose(self) -> None:
        """What became of the containers is not known; those that had ended keep what
        they said.
        """
        for name in self._statuses:
            if self.code(name) is None:
                self.state(
                    name,
                    "terminated",
                    exitCode=137,
                    reason="ContainerStatusUnknown",
                    message=_UNKNOWN,
                    startedAt=None,
                    finishedAt=None,
                )

    def adopt(self) -> None:
        """Start from what the pod's status says."""
        status = self.pod["status"]
        for each in [
            *status.get("initContainerStatuses", ()),
            *status.get("containerStatuses", ()),
        ]:
            self._statuses[each["name"]] = clone(each)

    def write(self, phase: str = "", reason: str = "", message: str = "") -> None:
        """Report all of it; without a phase, that of a pod whose containers start or
        run.
        """
        with self._store.edit("pods", self.pod) as draft:
            status = draft["status"]
            started = any(
                "waiting" not in self._statuses[each["name"]]["state"]
                or self._statuses[each["name"]]["restartCount"]
                for each in draft["spec"]["containers"]
            )
            status["phase"] = phase or ("Running" if started else "Pending")
            address, host = self._addresses
            status |= {
                "hostIP": host,
                "hostIPs": [{"ip": host}],
                "podIP": address,
                "podIPs": [{"ip": address}],
                "startTime": status.get("startTime") or self._started,
            }
            for key, value in (("reason", reason), ("message", message)):
                if value:
                    status[key] = value
            for part, field in (
                ("initContainers", "initContainerStatuses"),
                ("containers", "containerStatuses"),
            ):
                if draft["spec"].get(part):
                    status[field] = [
                        clone(self._statuses[each["name"]])
                        for each in draft["spec"][part]
                    ]
            self._conditions(draft)

    def _conditions(self, draft: Object) -> None:
        over = draft["status"]["phase"] in ("Succeeded", "Failed")
        stamp = self._store.clock.stamp()
        first = all(
            self.code(each["name"]) == 0
            for each in draft["spec"].get("initContainers", ())
        )
        unready = [
            each["name"]
            for each in draft["spec"]["containers"]
            if not self._statuses[each["name"]]["ready"]
        ]
        set_condition(
            draft, "PodReadyToStartContainers", "False" if over else "True", stamp
        )
        completed = (
            {"reason": "PodCompleted"}
            if draft["status"]["phase"] == "Succeeded"
            else {}
        )
        set_condition(
            draft, "Initialized", "True" if first else "False", stamp, **completed
        )
        why = (
            completed or {"reason": "PodFailed"}
            if over
            else {
                "reason": "ContainersNotReady",
                "message": f"containers with unready status: [{' '.join(unready)}]",
            }
        )
        for kind in ("Ready", "ContainersReady"):
            set_condition(
                draft,
                kind,
                "False" if unready else "True",
                stamp,
                **(why if unready else {}),
            )


def _all(pod: Object) -> list[Object]:
    return [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]


def _waiting(container: Object) -> Object:
    return {
        "name": container["name"],
        "state": {"waiting": {"reason": "ContainerCreating"}},
        "ready": False,
        "lastState": {},
        "restartCount": 0,
        "started": False,
        "image": container["image"],
        "imageID": "",
    }
