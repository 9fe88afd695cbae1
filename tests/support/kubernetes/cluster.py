"""The cluster as tests hold it: a server and its controllers on an event loop in a
thread of its own.
"""

import asyncio
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
import yaml

from tests.support.kubernetes import podsecurity
from tests.support.kubernetes.access import Access, Rule, rules_of
from tests.support.kubernetes.admission import Admission
from tests.support.kubernetes.api import Api, evict
from tests.support.kubernetes.clock import Clock
from tests.support.kubernetes.deletion import delete
from tests.support.kubernetes.devices import Devices
from tests.support.kubernetes.faults import FaultGate, Faults
from tests.support.kubernetes.garbage import Garbage
from tests.support.kubernetes.images import Images
from tests.support.kubernetes.jobs import JobController
from tests.support.kubernetes.kinds import BY_KIND
from tests.support.kubernetes.kubelet import Kubelet
from tests.support.kubernetes.kueue import Kueue
from tests.support.kubernetes.nodes import Node, NodeLifecycle
from tests.support.kubernetes.objects import Object, clone
from tests.support.kubernetes.options import Options
from tests.support.kubernetes.quotas import Quotas
from tests.support.kubernetes.scheduler import Scheduler
from tests.support.kubernetes.store import Store
from tests.support.kubernetes.volumes import Volumes
from tests.support.kubernetes.worker import Tools

T = TypeVar("T")
_DEFAULT = (Node("gpu-1", gpus=2),)


class Cluster:
    """A context manager. Its methods may be called from any thread; what they return
    are copies.

    `options` are those of `Options`, by name. `address` is where the server listens,
    `admin_token` may do everything.
    """

    def __init__(self, nodes: Sequence[Node] = _DEFAULT, **options: Any) -> None:
        self.nodes = list(nodes)
        self.options = Options(**options)
        self.errors: list[Exception] = []
        self.access = Access()
        self.admin_token = self.access.issue("kubernetes-admin", [Rule()])
        self.folder = Path(tempfile.mkdtemp(prefix="gpuyard-kubernetes-"))
        self._clock = Clock()
        self.faults = Faults(self._clock)
        self._door = socket.socket()
        self._ready = threading.Event()
        self._thread = threading.Thread(
            target=self._live, name="kubernetes", daemon=True
        )

    def __enter__(self) -> "Cluster":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Start it; the server answers when this returns."""
        self._door.bind(("127.0.0.1", 0))
        self._door.listen(128)
        self.address = f"http://127.0.0.1:{self._door.getsockname()[1]}"
        self._thread.start()
        assert self._ready.wait(60), "the cluster did not start"

    def close(self) -> None:
        """End it and all that runs in it. Raises what went wrong in the fake itself."""
        if self._thread.is_alive():
            self.faults.lift()
            self._loop.call_soon_threadsafe(self._over.set)
            self._thread.join(30)
        self._door.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.errors:
            raise self.errors[0]

    def _live(self) -> None:
        # uvloop closes a pipe of a process twice, and the second time it may be another's.
        with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
            runner.run(self._run())

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._build()
        tasks = [
            self._loop.create_task(each.run(self.errors.append))
            for each in self._controllers
        ]
        config = uvicorn.Config(
            FaultGate(self._api.app(), self.faults, self._clock),
            log_level="critical",
            ws="websockets-sansio",
            ws_per_message_deflate=False,
            ws_max_size=1 << 24,
            access_log=False,
            lifespan="off",
            date_header=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=60,
        )
        server = uvicorn.Server(config)
        serving = self._loop.create_task(server.serve(sockets=[self._door]))
        while not server.started:  # noqa: ASYNC110
            await asyncio.sleep(0)
        self._ready.set()
        await self._over.wait()
        for task in tasks:
            task.cancel()
        self._kubelet.close()
        self._store.end_watches()
        server.should_exit = server.force_exit = True
        with suppress(Exception):
            await asyncio.wait_for(serving, 5)

    def _build(self) -> None:
        options = self.options
        self._store = store = Store(self._clock, options.window)
        self._images = Images(options)
        self._devices = Devices(self.nodes)
        self._volumes = Volumes(store, self.folder)
        tools = Tools(
            store, options, self._images, self._devices, self._volumes, self.folder
        )
        self._admission = Admission(store, options)
        self._kubelet = Kubelet(tools, self.errors.append)
        self._lifecycle = NodeLifecycle(store, options)
        self._controllers = [
            JobController(store, options, self._admission),
            Scheduler(store),
            self._kubelet,
            self._lifecycle,
            Garbage(store, options),
            Quotas(store),
            Kueue(store, options),
        ]
        self._api = Api(
            store,
            options,
            self.access,
            self._admission,
            self._kubelet,
            self.errors.append,
        )
        for space in ("default", "kube-system"):
            self._admission.create("namespaces", "", {"metadata": {"name": space}})
        for number, node in enumerate(self.nodes):
            store.create(
                "nodes", node.object(number, self._clock.stamp(), options.version)
            )

    def _call(self, work: Callable[[], T]) -> T:
        """Do it on the cluster's loop."""

        async def wrapped() -> T:
            return work()

        return asyncio.run_coroutine_threadsafe(wrapped(), self._loop).result(30)

    # What a person with all rights sees and does.

    def get(self, plural: str, name: str, namespace: str = "default") -> Object | None:
        """An object; None where there is none.

        `namespace` is empty for what has none.
        """
        return self._call(lambda: clone(self._store.find(plural, namespace, name)))

    def objects(self, plural: str, namespace: str | None = None) -> list[Object]:
        """All objects of a kind."""
        return self._call(lambda: clone(self._store.all(plural, namespace)))

    def create(self, manifest: Mapping[str, Any], namespace: str = "default") -> Object:
        """Create what a manifest says; `ApiError` as the server would answer."""
        kind = BY_KIND[manifest["kind"]]
        space = (manifest.get("metadata") or {}).get("namespace") or namespace
        return self._call(
            lambda: clone(
                self._admission.create(
                    kind.plural, space if kind.namespaced else "", dict(manifest)
                )
            )
        )

    def delete(
        self,
        plural: str,
        name: str,
        namespace: str = "default",
        policy: str = "Background",
    ) -> None:
        self._call(
            lambda: delete(
                self._store, plural, self._store.get(plural, namespace, name), policy
            )
        )

    def edit(
        self,
        plural: str,
        name: str,
        change: Callable[[Object], None],
        namespace: str = "default",
    ) -> None:
        """Change an object in place, its status too."""

        def work() -> None:
            with self._store.edit(
                plural, self._store.get(plural, namespace, name)
            ) as draft:
                change(draft)

        self._call(work)

    # Who may do what.

    def token(self, user: str, rules: Sequence[Rule]) -> str:
        """A token with these rights."""
        return self.access.issue(user, rules)

    def load_role(
        self, manifest: Path | str | Mapping[str, Any], namespace: str = "default"
    ) -> str:
        """A token with the rights of the Roles and ClusterRoles in a manifest."""
        return self.token(
            f"system:serviceaccount:{namespace}:gpuyard", rules_of(manifest, namespace)
        )

    def expire(self, token: str) -> None:
        """The token is worth nothing from now on."""
        self.access.expire(token)

    def kubeconfig(
        self,
        path: Path,
        token: str = "",
        namespace: str = "default",
        user: Mapping[str, Any] | None = None,
    ) -> Path:
        """Write a kubeconfig; without a token, the administrator's. `user` is what it
        says about the user instead (`tokenFile`, `exec`).
        """
        user = user or {"token": token or self.admin_token}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "preferences": {},
            "clusters": [{"name": "fake", "cluster": {"server": self.address}}],
            "users": [{"name": "fake", "user": dict(user)}],
            "contexts": [
                {
                    "name": "fake",
                    "context": {
                        "cluster": "fake",
                        "user": "fake",
                        "namespace": namespace,
                    },
                }
            ],
        }
        path.write_text(yaml.safe_dump(config))
        path.chmod(0o600)
        return path

    # What happens to it.

    def add_node(self, node: Node) -> None:
        """A machine joins."""

        def work() -> None:
            self._devices.add(node)
            self.nodes.append(node)
            obj = node.object(
                len(self.nodes), self._clock.stamp(), self.options.version
            )
            self._store.create("nodes", obj)

        self._call(work)

    def lose_node(self, name: str) -> None:
        """A machine dies: all that ran on it is dead when this returns, and nobody
        reports it.
        """

        def work() -> None:
            self._kubelet.lose(name)
            self._lifecycle.lose(name)

        self._call(work)

    def restore_node(self, name: str) -> None:
        """It is there again."""

        def work() -> None:
            self._kubelet.restore(name)
            self._lifecycle.restore(name)

        self._call(work)

    def remove_node(self, name: str) -> None:
        """A machine is taken away for good, as clouds do with spot machines."""

        def work() -> None:
            self._kubelet.lose(name)
            delete(self._store, "nodes", self._store.get("nodes", "", name))

        self._call(work)

    def cordon(self, name: str, cordoned: bool = True) -> None:
        self._call(lambda: self._lifecycle.cordon(name, cordoned))

    def evict(
        self, pod: str, namespace: str = "default", resource: str = "memory"
    ) -> None:
        """The node is short of something and ends the pod."""
        message = f"The node was low on resource: {resource}. "
        self._call(
            lambda: self._kubelet.evict(
                self._store.get("pods", namespace, pod), message
            )
        )

    def rotate_log(self, pod: str, namespace: str = "default") -> None:
        """The node begins a new file for a pod's log; the old one cannot be read."""
        self._call(
            lambda: self._kubelet.rotate_log(self._store.get("pods", namespace, pod))
        )

    def remove_log(self, pod: str, namespace: str = "default") -> None:
        """The node has removed a container that has ended, and says so in its log."""
        self._call(
            lambda: self._kubelet.remove_log(self._store.get("pods", namespace, pod))
        )

    def watch_no_log(self, pod: str, namespace: str = "default") -> None:
        """The node can read the log, and cannot wait for more of it."""
        self._call(
            lambda: self._kubelet.watch_no_log(self._store.get("pods", namespace, pod))
        )

    def drain(self, pod: str, namespace: str = "default") -> None:
        """End a pod by the eviction API: it is asked to leave, and has its grace."""
        self._call(lambda: evict(self._store, self._store.get("pods", namespace, pod)))

    def lose_device_plugin(self, node: str) -> None:
        """The node's kubelet refuses pods with GPUs; the scheduler does not know."""
        self._call(lambda: self._kubelet.without_plugin.add(node))

    def enforce(self, standard: str, namespace: str = "default") -> None:
        """The Pod Security Standard of a namespace from now on."""

        def label(space: Object) -> None:
            space["metadata"]["labels"][podsecurity.ENFORCE] = standard

        self.edit("namespaces", namespace, label, namespace="")

    def refuse_pods(self, why: str) -> None:
        """A webhook lets in no pods from now on; with nothing, all of them."""

        def work() -> None:
            self._admission.pod_refusal = why

        self._call(work)

    def hide_registry(self, image: str) -> None:
        """The registry of an image does not answer."""
        self._call(lambda: self._images.unreachable.add(image))

    def add_image(self, image: str) -> None:
        """It exists from now on."""

        def work() -> None:
            self._images.existing.add(image)
            self._images.unreachable.discard(image)

        self._call(work)

    def forget_history(self) -> None:
        """Every version so far is too old for a watch or a page."""
        self._call(self._store.forget)

    def end_watches(self) -> None:
        """The server ends all watches, as it does now and then."""
        self._call(self._store.end_watches)

    # What tests look at from outside.

    def claim(self, name: str, namespace: str = "default") -> Path:
        """The folder that a PersistentVolumeClaim is."""
        return self._volumes.claim(namespace, name)

    def gpus_held(self) -> dict[str, str]:
        """The uid of the pod that holds each GPU which is given out."""
        return self._call(self._devices.held)

    def most_gpus(self, node: str) -> int:
        """The most GPUs of a node that were ever given out at once."""
        return self._call(lambda: self._devices.most[node])

    def check_gpus(self) -> None:
        """AssertionError when a GPU was ever used twice at once."""
        self._call(self._devices.check)
