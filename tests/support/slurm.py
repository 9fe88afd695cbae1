"""A real Slurm cluster on this host for tests: one controller, four nodes with two GPUs
each that are not there.
"""

import getpass
import os
import pwd
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.components import require
from tests.support.wait import wait_until

_CONF = """
ClusterName={name}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SlurmdTimeout=15
BatchStartTimeout=60
KillWait=3
GetEnvTimeout=0
MinJobAge={min_job_age_s}
FirstJobId={first_job_id}
MaxJobCount=5000
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency={gather_s}
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/spool/%n
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
SchedulerParameters=sched_min_interval=10000,batch_sched_delay=0,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=node[1-4] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{ports[1]}] CPUs=4 RealMemory=4000 Gres=gpu:a100:2
PartitionName=gpu Nodes=node[1-4] Default=YES MaxTime=60 PriorityTier=10
PartitionName=low Nodes=node[1-4] MaxTime=60 PriorityTier=1
PartitionName=short Nodes=node1 MaxTime=1 PriorityTier=10
"""


class SlurmCluster:
    """A cluster in a folder of its own.

    `start` and `stop` may be called again and again.
    """

    nodes = ("node1", "node2", "node3", "node4")

    def __init__(
        self,
        name: str = "lab",
        accounting: str = "AccountingStorageType=accounting_storage/none",
        min_job_age_s: int = 300,
        gather_s: int = 0,
    ) -> None:
        """`accounting`: more lines of slurm.conf. Slurm forgets a job `min_job_age_s`
        after its end, and looks at its memory every `gather_s` (0: never).
        """
        self.folder = Path(tempfile.mkdtemp(prefix="gpuyard-slurm-"))
        self.folder.chmod(0o755)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._write(
            accounting, name=name, min_job_age_s=min_job_age_s, gather_s=gather_s
        )

    @property
    def environment(self) -> dict[str, str]:
        """What Slurm's commands need to find this cluster."""
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def _write(self, accounting: str, **values: object) -> None:
        host = socket.gethostname().split(".")[0]
        first = _free_ports(6)
        self.ports = (first, f"{first + 1}-{first + 4}", first + 5)
        values |= {
            "host": host,
            "folder": self.folder,
            "user": getpass.getuser(),
            "ports": self.ports,
            # Studies derive a port from the job's id: clusters of tests that run at
            # once must not share ids.
            "first_job_id": 2000 * _worker_number() + 1,
        }
        (self.folder / "slurm.conf").write_text((_CONF + accounting).format(**values))
        (self.folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
        self._write_login_environment()
        devices = self.folder / "dev"
        devices.mkdir(exist_ok=True)
        for number in range(2):
            os.mknod(
                devices / f"nvidia{number}", 0o666 | stat.S_IFCHR, os.makedev(1, 3)
            )
        (self.folder / "gres.conf").write_text(
            "AutoDetect=off\nNodeName=node[1-4] Name=gpu Type=a100"
            f" File={devices}/nvidia[0-1] Flags=nvidia_gpu_env\n"
        )

    def _write_login_environment(self) -> None:
        """Tell Slurm what a login of this user has in its environment (GetEnvTimeout=0).

        It would run a login shell for each job, and with it whatever the files of this
        user start.
        """
        user = pwd.getpwuid(os.geteuid())
        known = {
            "HOME": user.pw_dir,
            "LOGNAME": user.pw_name,
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "SHELL": user.pw_shell,
            "USER": user.pw_name,
        }
        cache = self.folder / "state" / "env_cache"
        cache.mkdir(parents=True)
        lines = [f"{name}={value}\n" for name, value in known.items()]
        (cache / user.pw_name).write_text("".join(lines))

    def start(self) -> None:
        """Start all of it and wait until the nodes can be used."""
        munge = self.folder / "munge"
        munge.mkdir(exist_ok=True, mode=0o755)
        if not (munge / "key").exists():
            (munge / "key").write_bytes(secrets.token_bytes(64))
            (munge / "key").chmod(0o600)
        words = [
            f"--{name}={munge}/{file}"
            for name, file in (
                ("socket", "socket"),
                ("key-file", "key"),
                ("pid-file", "pid"),
                ("log-file", "log"),
                ("seed-file", "seed"),
            )
        ]
        self._spawn("munged", ["--foreground", "--force", *words])
        wait_until((munge / "socket").exists, what="munged")
        self.start_controller()
        for node in self.nodes:
            self.start_node(node)
        wait_until(
            lambda: self.state().count("idle") == len(self.nodes),
            what="the nodes to be idle",
        )

    def start_controller(self) -> None:
        """Start slurmctld."""
        self._spawn("slurmctld", ["-D", "-i"])

    def start_node(self, node: str) -> None:
        """Start a node's slurmd."""
        (self.folder / "spool" / node).mkdir(parents=True, exist_ok=True)
        self._spawn("slurmd", ["-D", "-N", node], name=node)

    def kill(self, name: str) -> None:
        """kill -9: `slurmctld`, or a node by its name with all that runs on it."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def kill_with_all(self, node: str) -> None:
        """A node dies: its slurmd, the steps and whatever they run are gone at once."""
        daemon = self._processes.pop(node)
        below = psutil.Process(daemon.pid).children(recursive=True)
        mine = [
            p
            for p in psutil.process_iter()
            if _environment(p).get("SLURMD_NODENAME") == node
        ]
        steps = {step for p in mine for step in _steps_above(p)}
        for process in [*below, *steps, *mine, psutil.Process(daemon.pid)]:
            with suppress(psutil.Error):
                process.kill()
        daemon.wait()

    def state(self) -> list[str]:
        """The nodes' states."""
        return self.call("sinfo", "-h", "-p", "gpu", "-N", "-o", "%t").split()

    def newest_log(self, lines: int = 60) -> str:
        """What slurmctld wrote last, for whoever reads a failure."""
        written = (self.folder / "slurmctld.log").read_text(errors="replace")
        return "\n".join(written.splitlines()[-lines:])

    def call(self, *command: str, check: bool = True) -> str:
        """What a command of Slurm's writes."""
        done = subprocess.run(
            command,
            env={**_plain(), **self.environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert not check or done.returncode == 0, done.stderr
        return done.stdout

    def _spawn(
        self,
        program: str,
        arguments: Sequence[str],
        name: str = "",
        environment: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        with (self.folder / f"{name or program}.out").open("ab") as log:
            self._processes[name or program] = subprocess.Popen(
                [
                    "setpriv",
                    "--pdeathsig",
                    "KILL",
                    shutil.which(program) or f"/usr/sbin/{program}",
                    *arguments,
                ],
                env={**_plain(), **self.environment, **(environment or {})},
                stdout=log,
                stderr=log,
                start_new_session=True,
                **more,
            )

    def stop(self) -> None:
        """End everything, and the jobs."""
        with suppress(AssertionError, subprocess.TimeoutExpired):
            self.call("scancel", "--me", check=False)
        for process in self._processes.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._processes.clear()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if str(self.folder).encode() in path.read_bytes():
                    os.kill(int(path.parent.name), signal.SIGKILL)


def _plain() -> dict[str, str]:
    """This process's environment, less the token, with which Slurm's daemons would not
    start.
    """
    return {name: value for name, value in os.environ.items() if name != "SLURM_JWT"}


def _environment(process: psutil.Process) -> dict[str, str]:
    try:
        return process.environ()
    except psutil.Error:
        return {}


def _steps_above(process: psutil.Process) -> list[psutil.Process]:
    """Slurm's steps that run the process; none when it has ended meanwhile."""
    try:
        return [p for p in process.parents() if p.name().startswith("slurmstepd")]
    except psutil.Error:
        return []


def _free_ports(count: int) -> int:
    """The first of so many ports in a row that nobody listens on."""
    for first in range(21000 + secrets.randbelow(8000), 32000, count):
        with suppress(OSError):
            for port in range(first, first + count):
                with socket.socket() as door:
                    door.bind(("127.0.0.1", port))
            return first
    raise OSError("no free ports")


def require_slurm(*more: str) -> None:
    """Fail where one of Slurm's programs is not installed, or `more`."""
    programs = ("slurmctld", "slurmd", "munged", *more)
    path = "/usr/sbin:/usr/bin:/sbin:/bin"
    missing = [name for name in programs if shutil.which(name, path=path) is None]
    require("slurm", not missing and os.geteuid() == 0, " ".join(missing))


@pytest.fixture(scope="session")
def slurm() -> Iterator[SlurmCluster]:
    """A cluster without accounting."""
    require_slurm()
    cluster = SlurmCluster()
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        shutil.rmtree(cluster.folder, ignore_errors=True)


def _worker_number() -> int:
    """0, 1, … for the workers of pytest-xdist; 0 without it."""
    return int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
