"""A cloud whose machines are real processes that really join.

Its state is a file in its folder, so it outlives a server that is killed, and a test
sees what the server does: `FakeCloud(folder)` is the same cloud wherever it is made.
A machine is `gpuyard join` with a home of its own, and goes with all its processes when
it ends.

`FakeCloudProvider` is the provider `fakecloud`, whose settings name the folder; see
`fake_cloud_environment`.
"""

import asyncio
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, date
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

from gpuyard.config.locks import is_locked
from gpuyard.config.paths import Home
from gpuyard.domain.bills import Charge, CloudBill, CostPart
from gpuyard.domain.errors import ProviderError
from gpuyard.providers.instances.api import (
    CAPACITY,
    CREDENTIALS,
    QUOTA,
    Instance,
    InstanceOrder,
    InstanceRef,
    InstanceState,
    MachineType,
    Market,
    MissingRight,
)
from gpuyard.providers.instances.bills import bounds_of
from gpuyard.providers.instances.provider import RentedProvider
from gpuyard.providers.instances.settings import InstanceSettings
from tests.support.forkserver import fast_python
from tests.support.groups import remove_groups

NAME = "fakecloud"
SMALL = MachineType("cpu.small", cpus=4.0, memory_gb=8.0)
GPU = MachineType("gpu.one", "Simulated GPU", 1, 24.0, "8.6", cpus=4.0, memory_gb=16.0)
TYPES = {machine.name: machine for machine in (SMALL, GPU)}
PRICES = {"cpu.small": Decimal("0.10"), "gpu.one": Decimal("1.00")}
SPOT_PART = Decimal("0.4")
REGION = "here-1"
ZONES = ("here-1a", "here-1b")
_URL = re.compile(r"https://[^\s'\"/]+:\d+")
_CODE = re.compile(r"[0-9a-f]{64}\.[A-Za-z0-9_-]{20,100}")
# It joins as soon as the server lets it, as the script of the first boot does.
_BOOT = """
until "$0" -m gpuyard.cli.entry join "$1" "$2" --foreground; do
    [ -e "$GPUYARD_HOME/joined" ] && break
    sleep 0.2
done
"""
_REPLY_LOST = "reply_lost"
_CODES = {
    "capacity": CAPACITY,
    "quota": QUOTA,
    "credentials": CREDENTIALS,
    "throttle": "THROTTLED",
    _REPLY_LOST: "TIMEOUT",
}
# The server is killed that calls the cloud, at this moment.
KILLS = (
    "kill_before_launch",
    "kill_after_launch",
    "kill_before_end",
    "kill_after_end",
)
# By what a machine fails that was launched.
_OF_MACHINES = ("never_boots", "no_gpus")


class FakeCloud:
    """`InstanceApi`, and what a test does to the cloud."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    # --- its state ---

    @contextmanager
    def _state(self) -> Generator[dict[str, Any]]:
        """The state, which nobody else changes meanwhile."""
        file = self.folder / "state.json"
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state: dict[str, Any]
            try:
                state = json.loads(file.read_text())
            except FileNotFoundError:
                state = {"machines": {}, "faults": [], "calls": {}}
            yield state
            draft = file.with_suffix(".new")
            draft.write_text(json.dumps(state))
            draft.rename(file)

    def _count(self, call: str) -> None:
        with self._state() as state:
            state["calls"][call] = state["calls"].get(call, 0) + 1

    def calls(self, name: str) -> int:
        """How often this was called."""
        with self._state() as state:
            return int(state["calls"].get(name, 0))

    def rows(self, owner: str = "") -> list[dict[str, Any]]:
        """All machines that ever were, or those of an owner, oldest first."""
        with self._state() as state:
            machines = list(state["machines"].values())
        return [row for row in machines if owner in ("", row["owner"])]

    def live(self) -> list[dict[str, Any]]:
        """Those that cost money now."""
        return [row for row in self.rows() if row["state"] in ("pending", "running")]

    # --- what a test does ---

    def add_fault(self, kind: str, times: int = 1, **where: Any) -> None:
        """The next `times` launches fail so, of those that `where` describes (fields of
        an InstanceOrder): `capacity`, `quota`, `credentials`, `throttle`, `reply_lost`;
        or their machine does: `never_boots`, `no_gpus`. With one of KILLS, the server
        is killed in its call.
        """
        assert kind in (*_CODES, *_OF_MACHINES, *KILLS), kind
        with self._state() as state:
            fault = {"kind": kind, "times": times, "where": where}
            state["faults"].append(fault)

    def announce(self, machine: str) -> None:
        """The cloud says that it will take the machine back."""
        self._update(machine, interrupted=True)

    def take_back(self, machine: str) -> None:
        """The machine is gone, as after an interruption."""
        self._update(machine, interrupted=True, why="spot capacity was needed")
        self._power_off(machine)

    def cut_off(self, machine: str) -> None:
        """The machine runs on, and nobody hears of it any more. It must have been
        started by the real interpreter (`note_python`): what the fork server forks has
        the environment of that, and is not found.
        """
        stopped: set[int] = set()
        # Until none is left that may start others.
        while running := set(self._processes(machine)) - stopped:
            for pid in running:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGSTOP)
            stopped |= running

    def home(self, machine: str) -> Home:
        """The home of a machine."""
        return Home(self.folder / "machines" / machine / "home")

    def log(self, machine: str) -> str:
        """What the machine has printed."""
        path = self.folder / "machines" / machine / "boot.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def close_all(self) -> None:
        """End every machine: a test is over."""
        for row in self.live():
            self._power_off(row["id"])

    # --- InstanceApi ---

    async def markets(self) -> Sequence[Market]:
        """Each type in each zone, on demand and spot."""
        self._count("markets")
        return [
            Market(
                machine,
                REGION,
                zone,
                spot,
                PRICES[machine.name] * (SPOT_PART if spot else 1),
                "USD",
                "the fake cloud",
            )
            for machine in TYPES.values()
            for zone in ZONES
            for spot in (False, True)
        ]

    async def launch(self, order: InstanceOrder) -> Instance:
        """See InstanceApi. A repeated client token gets the first machine."""
        self._may_kill("kill_before_launch")
        machine = await asyncio.to_thread(self._launch, order)
        self._may_kill("kill_after_launch")
        return machine

    def _launch(self, order: InstanceOrder) -> Instance:
        with self._state() as state:
            state["calls"]["launch"] = state["calls"].get("launch", 0) + 1
            known = [
                row for row in state["machines"].values() if row["owner"] == order.owner
            ]
            if known:
                (row,) = known
                assert row["user_data"] == order.user_data, "another order, same token"
                return _instance(row)
            fault = _next_fault(state["faults"], order)
            is_refused = fault in _CODES and fault != _REPLY_LOST
            machine = f"i-{len(state['machines']) + 1:04d}"
            row = _row(machine, order)
            if not is_refused:
                state["machines"][machine] = row
        # Not before the state is written.
        if is_refused:
            message = f"{fault} in {order.zone}"
            raise ProviderError(message, NAME, _CODES[fault])
        if fault != "never_boots":
            self._boot(machine, order, fault)
        if fault == _REPLY_LOST:
            raise ProviderError("the connection was cut", NAME, _CODES[fault])
        return _instance(row)

    async def find(self, owner: str, installation: str) -> Instance | None:
        """See InstanceApi."""
        self._count("find")
        found = [
            _instance(row)
            for row in self.rows(owner)
            if row["installation"] == installation
        ]
        return found[0] if found else None

    async def instances(self, installation: str) -> Sequence[Instance]:
        """See InstanceApi."""
        self._count("instances")
        return [
            _instance(row) for row in self.rows() if row["installation"] == installation
        ]

    async def end(self, refs: Sequence[InstanceRef]) -> None:
        """See InstanceApi."""
        self._count("end")
        self._may_kill("kill_before_end")
        for ref in refs:
            await asyncio.to_thread(self._power_off, ref.id)
        self._may_kill("kill_after_end")

    async def missing_rights(self) -> Sequence[MissingRight]:
        """None."""
        return ()

    async def close(self) -> None:
        """Nothing is open."""

    def _may_kill(self, moment: str) -> None:
        """Kill the server that calls, as by `kill -9`, if a test wants that now."""
        with self._state() as state:
            due = [one for one in state["faults"] if one["kind"] == moment]
            is_due = any(fault["times"] for fault in due)
            for fault in due:
                fault["times"] = 0
        if is_due:
            os.kill(os.getpid(), signal.SIGKILL)

    # --- its machines ---

    def _update(self, machine: str, **values: Any) -> None:
        with self._state() as state:
            state["machines"][machine].update(values)

    def _boot(self, machine: str, order: InstanceOrder, fault: str) -> None:
        url = _URL.search(order.user_data)
        code = _CODE.search(order.user_data)
        assert url and code, f"no invitation in {order.user_data}"
        home = self.home(machine)
        home.root.mkdir(parents=True)
        environment = {
            **os.environ,
            "GPUYARD_HOME": str(home.root),
            "GPUYARD_NODE__CHECKPOINT_SCAN_S": "0.05",
            "GPUYARD_DISK__RESERVE_MB": "0",
        }
        for name in list(environment):
            if name.startswith(("GPUYARD_PROVIDERS", "GPUYARD_SERVER__", "PYTHONPATH")):
                del environment[name]
        gpus = TYPES[order.type].gpus
        if gpus and fault != "no_gpus":
            environment["GPUYARD_NODE__SIMULATE_GPUS"] = f"{gpus}x24"
        python = (self.folder / "python").read_text()
        words = ["bash", "-c", _BOOT, python, url[0], code[0]]
        log = (home.root.parent / "boot.log").open("wb")
        with log:
            subprocess.Popen(
                words,
                env=environment,
                cwd=home.root.parent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _processes(self, machine: str, *, of_jobs: bool = True) -> list[int]:
        """The processes of the machine: they have its home in their environment."""
        root = os.fsencode(self.home(machine).root)
        found: list[int] = []
        for file in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                environment = file.read_bytes()
                is_of_job = b"GPUYARD_ATTEMPT_ID=" in environment
                if root in environment and (of_jobs or not is_of_job):
                    found.append(int(file.parent.name))
        return found

    def _power_off(self, machine: str) -> None:
        with self._state() as state:
            row = state["machines"][machine]
            if row["state"] == InstanceState.GONE:
                return
            row["state"] = InstanceState.GONE
            row["ended_at"] = time.time()
        # Its agent must not live to say that a job was killed.
        agent = self.home(machine).node / "agent.lock"
        while (pids := self._processes(machine, of_jobs=False)) or is_locked(agent):
            _kill(pids)
        while pids := self._processes(machine):
            _kill(pids)
        remove_groups(self.home(machine))
        shutil.rmtree(self.home(machine).root, ignore_errors=True)


def _kill(pids: Sequence[int]) -> None:
    """Kill these processes, and give the kernel a moment to end them."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    time.sleep(0.01)


def _next_fault(faults: list[dict[str, Any]], order: InstanceOrder) -> str:
    for fault in faults:
        where = fault["where"].items()
        is_kill = fault["kind"] in KILLS
        if is_kill or not fault["times"]:
            continue
        if all(getattr(order, key) == value for key, value in where):
            fault["times"] -= 1
            return str(fault["kind"])
    return ""


def _row(machine: str, order: InstanceOrder) -> dict[str, Any]:
    return {
        "id": machine,
        "owner": order.owner,
        "installation": order.installation,
        "type": order.type,
        "region": order.region,
        "zone": order.zone,
        "spot": order.spot,
        "user_data": order.user_data,
        "state": InstanceState.RUNNING,
        "launched_at": time.time(),
        "ended_at": None,
        "interrupted": False,
        "why": "",
    }


def _instance(row: Mapping[str, Any]) -> Instance:
    return Instance(
        row["id"],
        row["region"],
        row["zone"],
        row["type"],
        row["spot"],
        InstanceState(row["state"]),
        row["owner"],
        row["launched_at"],
        row["why"],
        row["interrupted"],
    )


class FakeCloudSettings(InstanceSettings):
    """`folder`: where the cloud is."""

    folder: str


class FakeCloudProvider(RentedProvider):
    """The provider `fakecloud`."""

    PROVIDER_NAME: ClassVar[str] = NAME

    def __init__(self, config: Mapping[str, Any]) -> None:
        settings = FakeCloudSettings.read(config)
        self.cloud = FakeCloud(Path(settings.folder))
        super().__init__(config, self.cloud, settings)

    async def bill(self, day: date) -> CloudBill | None:
        """What a test has written into `bill.json`: an amount for each machine."""
        file = self.cloud.folder / "bill.json"
        if not file.exists():
            return None
        begin, end = bounds_of(day, UTC)
        charges = [
            Charge(machine, "", CostPart.MACHINE, Decimal(amount), "USD")
            for machine, amount in json.loads(file.read_text()).items()
        ]
        return CloudBill(day, "UTC", begin, end, charges, False, "tags are off")


def install(site: Path) -> None:
    """Make the provider known to each Python that has `site` on its path."""
    info = site / f"{NAME}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1.0\n"
    )
    (info / "entry_points.txt").write_text(
        f"[gpuyard.providers]\n{NAME} = tests.support.fake_cloud:FakeCloudProvider\n"
    )


def note_python(folder: Path, python: str = "") -> None:
    """Say with which Python machines run, if not with one that starts at once: a server
    that launches them is itself forked, and cannot tell.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "python").write_text(python or fast_python())


def fake_cloud_environment(folder: Path, port: int, **settings: str) -> dict[str, str]:
    """The environment of an instance that rents from the cloud in `folder`, and at which
    machines join at `port`. `settings`: more of `[providers.fakecloud]`.
    """
    site = folder / "site"
    install(site)
    note_python(folder)
    root = Path(__file__).parent.parent.parent
    values = {"folder": str(folder), "poll_s": "0.2", "sweep_s": "1", **settings}
    section = {
        f"GPUYARD_PROVIDERS__FAKECLOUD__{name.upper()}": value
        for name, value in values.items()
    }
    return {
        "PYTHONPATH": f"{site}:{root}",
        "GPUYARD_SERVER__AGENTS_LISTEN": f"127.0.0.1:{port}",
        **section,
    }
