"""What a kubelet does for one pod, from its admission to its end."""

import asyncio
import secrets
import signal
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.kubernetes import demand, environment
from tests.support.kubernetes.container import Container, Order
from tests.support.kubernetes.devices import Devices
from tests.support.kubernetes.events import Recorder
from tests.support.kubernetes.images import Images
from tests.support.kubernetes.logs import Log
from tests.support.kubernetes.nodes import GPU
from tests.support.kubernetes.objects import (
    Object,
    deleting,
    name,
    namespace,
    set_condition,
    uid,
)
from tests.support.kubernetes.options import Options
from tests.support.kubernetes.quantity import parse
from tests.support.kubernetes.status import Report
from tests.support.kubernetes.store import Store
from tests.support.kubernetes.volumes import Mount, MountError, Volumes, mounts

_BASE = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
_CREATE = (
    "failed to create containerd task: failed to create shim task: OCI runtime create"
    " failed: runc create failed: unable to start container process: "
)
_EPOCH = "1970-01-01T00:00:00Z"
_DEADLINE = "Pod was active on the node longer than the specified deadline"
_RETRY_S = 0.1
_MOST_PEERS = 16


@dataclass
class Tools:
    """What workers share."""

    store: Store
    options: Options
    images: Images
    devices: Devices
    volumes: Volumes
    folder: Path
    logs: dict[tuple[str, str], Log] = field(default_factory=dict[tuple[str, str], Log])


class _LeavingError(Exception):
    """The pod is to end before this container runs."""


class Worker:
    """One pod on one node. `run` is its life; `leave` and `destroy` end it."""

    def __init__(self, tools: Tools, pod: Object, addresses: tuple[str, str]) -> None:
        self._tools = tools
        self.pod = pod
        self._addresses = addresses
        self._recorder = Recorder(tools.store, "kubelet", pod["spec"]["nodeName"])
        self._report = Report(tools.store, pod, *addresses)
        self._running: dict[str, Container] = {}
        self._leaving = asyncio.Event()
        self._kill_at: float | None = None
        self._killer: asyncio.TimerHandle | None = None
        self._verdict: tuple[str, str] = ("", "")
        self._folders: dict[str, Path] = {}
        self.over = False
        self._limit = 0
        self._began = 0.0
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def leaving(self) -> bool:
        """Whether it is to end."""
        return self._leaving.is_set()

    @property
    def folder(self) -> Path:
        return self._tools.folder / "pods" / uid(self.pod)

    async def run(self) -> None:
        """Carry it out and report how it ended."""
        self._report.write()
        self._began = asyncio.get_running_loop().time()
        self.limit(self.pod["spec"].get("activeDeadlineSeconds"))
        try:
            with suppress(_LeavingError):
                await self._carry_out()
        finally:
            for timer in (self._deadline, self._killer):
                if timer:
                    timer.cancel()
            self._tools.devices.release(uid(self.pod))
        self._finish()

    def limit(self, seconds: int | None) -> None:
        """It may be active for so long, from its start; it may be changed while it
        runs.
        """
        if seconds and seconds != self._limit and not self.over:
            self._limit = seconds
            if self._deadline:
                self._deadline.cancel()
            self._deadline = asyncio.get_running_loop().call_at(
                self._began + seconds, self._expire
            )

    async def _carry_out(self) -> None:
        await self._prepare()
        for container in self.pod["spec"].get("initContainers", ()):
            await self._carry(container)
            if self._report.code(container["name"]):
                return
        runs = [self._carry(each) for each in self.pod["spec"]["containers"]]
        for outcome in await asyncio.gather(*runs, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _prepare(self) -> None:
        while True:
            try:
                self._folders = self._tools.volumes.prepare(
                    self.pod, self.folder / "volumes"
                )
            except MountError as error:
                self._recorder.warning(self.pod, "FailedMount", str(error))
            else:
                return
            await self._pause(_RETRY_S)

    async def _pause(self, seconds: float) -> None:
        """Wait so long, or until the pod is to end, which is an error."""
        if seconds > 0 and not self._leaving.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), seconds)
        if self._leaving.is_set():
            raise _LeavingError

    async def _carry(self, container: Object) -> None:
        """Run one container, and again where the pod's policy says so."""
        called = container["name"]
        backoff = self._tools.options.restart_backoff_s
        log = self._tools.logs[(uid(self.pod), called)] = Log(self._tools.store.clock)
        try:
            while True:
                await self._once(container, log)
                if not self._again(container):
                    return
                self._report.again(called)
                where = f"{called} pod={name(self.pod)}_{namespace(self.pod)}({uid(self.pod)})"
                self._recorder.warning(
                    self.pod,
                    "BackOff",
                    f"Back-off restarting failed container {where}",
                    called,
                )
                self._report.waiting(
                    called,
                    "CrashLoopBackOff",
                    f"back-off {backoff:g}s restarting failed container",
                )
                await self._pause(backoff)
                backoff *= 2
        finally:
            log.close()

    def _again(self, container: Object) -> bool:
        policy = self.pod["spec"]["restartPolicy"]
        first = container in self.pod["spec"].get("initContainers", ())
        failed = bool(self._report.code(container["name"]))
        if first or policy == "OnFailure":
            return failed and policy != "Never" and not self._leaving.is_set()
        return policy == "Always" and not self._leaving.is_set()

    async def _once(self, container: Object, log: Log) -> None:
        called = container["name"]

        def waiting(reason: str, message: str) -> None:
            self._report.waiting(called, reason, message)

        await self._pause(0)
        await self._tools.images.pull(
            self.pod, container, self._recorder, waiting, self._pause
        )
        gpus = self._gpus(container)
        order = await self._order(container, gpus)
        limit = ((container.get("resources") or {}).get("limits") or {}).get("memory")
        run = Container(order, log, int(parse(limit)) if limit else None)
        self._recorder.normal(
            self.pod, "Created", f"Created container {called}", called
        )
        self._report.identify(called, secrets.token_hex(32))
        self._running[called] = run
        self._tools.devices.started(gpus, uid(self.pod))
        try:
            failure = await run.start()
            await self._live(container, run, failure, log)
        finally:
            self._running.pop(called, None)
            self._tools.devices.ended(gpus, uid(self.pod))

    async def _live(
        self, container: Object, run: Container, failure: str, log: Log
    ) -> None:
        called = container["name"]
        stamp = self._tools.store.clock.stamp
        if failure:
            await run.wait()
            message = _CREATE + failure
            self._recorder.warning(self.pod, "Failed", f"Error: {message}", called)
            self._report.state(
                called,
                "terminated",
                exitCode=128,
                reason="StartError",
                message=message,
                startedAt=_EPOCH,
                finishedAt=stamp(),
            )
            return
        self._recorder.normal(
            self.pod, "Started", f"Started container {called}", called
        )
        began = stamp()
        self._report.state(called, "running", startedAt=began)
        self._report.write()
        if self._leaving.is_set():
            run.send(signal.SIGTERM)
        code = await run.wait()
        reason = "OOMKilled" if run.oom else "Error" if code else "Completed"
        message = run.message()
        if (
            code
            and not message
            and container["terminationMessagePolicy"] == "FallbackToLogsOnError"
        ):
            message = log.tail(2048)
        self._report.state(
            called,
            "terminated",
            exitCode=code,
            reason=reason,
            startedAt=began,
            finishedAt=stamp(),
            **({"message": message} if message else {}),
        )
        if len(self.pod["spec"]["containers"]) > 1 or self._again(container):
            self._report.write()

    def _gpus(self, container: Object) -> list[str]:
        count = int(demand.of_container(container).get(GPU, 0))
        held = self._tools.devices.of(uid(self.pod), container["name"])
        if not count or held:
            return held
        return self._tools.devices.take(
            self.pod["spec"]["nodeName"], uid(self.pod), container["name"], count
        )

    async def _order(self, container: Object, gpus: list[str]) -> Order:
        """What to run; waits for secrets and config maps that are missing."""
        base = {**_BASE, **({"NVIDIA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {})}
        while True:
            current = self._tools.store.current("pods", self.pod) or self.pod
            try:
                environment.check_user(current)
                variables = environment.variables(
                    self._tools.store, current, container, base
                )
                break
            except environment.ConfigError as error:
                self._recorder.warning(
                    self.pod, "Failed", f"Error: {error}", container["name"]
                )
                self._report.waiting(
                    container["name"], "CreateContainerConfigError", str(error)
                )
            await self._pause(_RETRY_S)
        who = self.pod["spec"].get("securityContext") or {}
        words = [*(container.get("command") or ()), *(container.get("args") or ())] or [
            "/bin/sh"
        ]
        told = (
            self.folder / "containers" / f"{container['name']}-{secrets.token_hex(3)}"
        )
        told.parent.mkdir(parents=True, exist_ok=True)
        return Order(
            str(told),
            [environment.expand(word, variables) for word in words],
            variables,
            container.get("workingDir") or "/",
            environment.hostname(self.pod),
            [*mounts(container, self._folders), *self._hosts()],
            bool(self.pod["spec"].get("shareProcessNamespace")),
            who.get("runAsUser"),
            who.get("runAsGroup"),
            who.get("fsGroup"),
        )

    def _hosts(self) -> list[Mount]:
        """Where a pod of a gang finds its peers: all pods share this host's network."""
        subdomain = self.pod["spec"].get("subdomain")
        if not subdomain:
            return []
        own = environment.hostname(self.pod)
        peers = [f"{own.rpartition('-')[0]}-{index}" for index in range(_MOST_PEERS)]
        names = [own, *(f"{peer}.{subdomain}" for peer in peers)]
        path = self.folder / "hosts"
        path.write_text(f"127.0.0.1 localhost {' '.join(names)}\n")
        return [(str(path), "/etc/hosts", True)]

    def running(self, called: str) -> Container | None:
        """The container of this name, while it runs."""
        run = self._running.get(called)
        return run if run and run.is_running() else None

    def leave(self, grace_s: float) -> None:
        """Have it end within so many seconds.

        Asked again, it can only become sooner.
        """
        loop = asyncio.get_running_loop()
        at = loop.time() + grace_s
        if self._kill_at is not None and at >= self._kill_at:
            return
        if not self._leaving.is_set():
            self._leaving.set()
            for called, run in self._running.items():
                self._recorder.normal(
                    self.pod, "Killing", f"Stopping container {called}", called
                )
                run.send(signal.SIGTERM)
        self._kill_at = at
        if self._killer:
            self._killer.cancel()
        self._killer = loop.call_at(at, self._kill)

    def _kill(self) -> None:
        for run in self._running.values():
            run.send(signal.SIGKILL)
        if self._running:  # One may only now be about to start.
            self._killer = asyncio.get_running_loop().call_later(_RETRY_S, self._kill)

    def evict(self, message: str) -> None:
        """Node-pressure eviction."""
        self._verdict = ("Evicted", message)
        self._recorder.warning(self.pod, "Evicted", message)
        with self._tools.store.edit("pods", self.pod) as draft:
            set_condition(
                draft,
                "DisruptionTarget",
                "True",
                self._tools.store.clock.stamp(),
                reason="TerminationByKubelet",
                message=message,
            )
        self.leave(0)

    def _expire(self) -> None:
        self._verdict = ("DeadlineExceeded", _DEADLINE)
        self._recorder.normal(self.pod, "DeadlineExceeded", _DEADLINE)
        self.leave(self.pod["spec"]["terminationGracePeriodSeconds"])

    def _finish(self) -> None:
        self.over = True
        codes = [
            self._report.code(each["name"]) for each in self.pod["spec"]["containers"]
        ]
        self._report.lose()
        good = all(code == 0 for code in codes) and not self._verdict[0]
        self._report.write("Succeeded" if good else "Failed", *self._verdict)
        current = self._tools.store.current("pods", self.pod)
        if current and deleting(current):
            self._tools.store.finish("pods", current)

    def bury(self) -> None:
        """The node came back, and what ran of the pod is gone."""
        self._report.adopt()
        self._finish()

    def reject(self, reason: str, message: str) -> None:
        """The node does not take the pod."""
        self._recorder.warning(self.pod, reason, message)
        with self._tools.store.edit("pods", self.pod) as draft:
            draft["status"] |= {
                "phase": "Failed",
                "reason": reason,
                "message": f"Pod was rejected: {message}",
            }

    def destroy(self) -> None:
        """Everything of it is dead when this returns; nobody is told."""
        self.over = True
        for run in self._running.values():
            run.destroy()
        for container in (
            *self.pod["spec"].get("initContainers", ()),
            *self.pod["spec"]["containers"],
        ):
            log = self._tools.logs.get((uid(self.pod), container["name"]))
            if log:
                log.close()
        self._tools.devices.release(uid(self.pod))
