"""An instance of a test's own: a home under a short temporary path, the real command,
and nothing left behind.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from gpuyard.client.connection import Address, running_server
from gpuyard.client.sync import Client
from gpuyard.config.paths import Home
from gpuyard.node.launcher.hierarchy import hierarchies
from tests.support.forkserver import fast_python, study_python
from tests.support.groups import remove_groups
from tests.support.wait import wait_until

# For a terminal of its own, and whatever else is about processes.
REAL_GPUYARD = [sys.executable, "-m", "gpuyard.cli.entry"]
# Settings of what a killed server would leave behind.
_ELSEWHERE = ("providers", "pools", "ledger", "accounts", "tests_real_")
_OURS = ("GPUYARD_", "TESTS_")
# So long one question for the end of a job may take.
_LONG_S = 20.0


def gpuyard(command: str = "") -> list[str]:
    """The first words of the command; `command` is the next one, as far as known."""
    python = study_python() if command == "study" else fast_python()
    return [python, "-m", "gpuyard.cli.entry"]


class TestInstance:
    """`run` is the command `gpuyard`; `client` the SDK; `pid` and `kill` reach the
    instance's own processes.
    """

    __test__ = False

    def __init__(self, root: Path, environment: Mapping[str, str]) -> None:
        self.home = Home(root / "home")
        self.work = root / "work"
        self.work.mkdir(parents=True)
        self.environment = {
            **os.environ,
            "GPUYARD_HOME": str(self.home.root),
            "NO_COLOR": "1",
            # A test that kills the server says when there is one again.
            "GPUYARD_SERVER__RESTART": "false",
            # Hundreds of homes need none.
            "GPUYARD_DISK__RESERVE_MB": "0",
            **environment,
        }
        self.environment.pop("GPUYARD_URL", None)

    def run(
        self, *words: str, timeout: float = 90, **more: Any
    ) -> subprocess.CompletedProcess[str]:
        """`gpuyard WORDS`, in the work folder; output as text."""
        return subprocess.run(
            [*gpuyard(*words[:1]), *words],
            cwd=more.pop("cwd", self.work),
            env=self.environment | more.pop("env", {}),
            capture_output=True,
            text=True,
            timeout=timeout,
            **more,
        )

    def ok(self, *words: str, **more: Any) -> str:
        """Standard output of a command that must succeed."""
        done = self.run(*words, **more)
        assert done.returncode == 0, (
            f"gpuyard {' '.join(words)} left with {done.returncode}: {done.stderr}"
        )
        return done.stdout

    def json(self, *words: str) -> Any:
        """The one JSON document that a command prints."""
        return json.loads(self.ok(*words, "--json"))

    def popen(self, *words: str, **more: Any) -> subprocess.Popen[str]:
        """`gpuyard WORDS` in the background."""
        return subprocess.Popen(
            [*gpuyard(*words[:1]), *words],
            cwd=self.work,
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **more,
        )

    def address(self) -> Address:
        """Where the server is; it must run."""
        found = running_server(self.home)
        assert found, "no server runs"
        return found

    def client(self) -> Client:
        """The SDK on this instance; the server is started when none runs."""
        if running_server(self.home) is None:
            self.ok("up")
        return Client(self.address())

    def submit(self, command: list[str], **fields: Any) -> str:
        """Queue a command through the SDK; returns its id."""
        with self.client() as instance:
            return instance.run(
                {"command": command, "workdir": str(self.work), **fields}
            ).id

    def job(self, job_id: str) -> Any:
        """The job's resource."""
        with self.client() as instance:
            return instance.job(job_id).info

    def wait(self, job_id: str, *states: str, timeout: float = 60) -> Any:
        """Wait until the job is in one of `states` (default: over)."""
        wanted = states or ("completed", "failed", "cancelled", "timed_out")

        def there() -> Any:
            with suppress(Exception), self.client() as instance:
                if not states:
                    # One question that is answered at the end costs less than many.
                    with suppress(TimeoutError):
                        instance.wait_for(job_id, timeout=min(timeout, _LONG_S))
                job = instance.job(job_id).info
                return job if job.state in wanted else None
            return None

        return wait_until(there, timeout, f"job {job_id} to be {' or '.join(wanted)}")

    def newest_logs(self, lines: int = 40) -> str:
        """What each of its processes wrote last, for whoever reads a failure."""
        parts: list[str] = []
        for path in sorted(self.home.root.rglob("*.log")):
            written = path.read_text(errors="replace").splitlines()
            parts += [f"{path.name}:", *written[-lines:]]
        return "\n".join(parts)

    # --- the instance's own processes ---

    def pid(self, which: str) -> int | None:
        """The pid of `server`, `agent` or `keeper`, as it wrote it into its lock
        file.
        """
        path = {
            "server": self.home.lock,
            "agent": self.home.node / "agent.lock",
            "keeper": self.home.node / "keeper.lock",
        }[which]
        try:
            pid = int(path.read_text().strip())
            return pid if psutil.pid_exists(pid) else None
        except (OSError, ValueError):
            return None

    def kill(self, *which: str) -> None:
        """`kill -9`, all found first and then killed at once."""
        pids = [pid for name in which if (pid := self.pid(name))]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in pids:
            wait_until(lambda pid=pid: _gone(pid), what=f"process {pid} to be gone")
        if "server" in which:
            # Its last threads let go of the lock a moment after the process has become
            # a zombie.
            wait_until(
                lambda: running_server(self.home) is None,
                what="the server's lock to be free",
            )

    def close(self) -> None:
        """End the jobs, the server, the agent and the keeper, however the test left
        them.
        """
        names = ("keeper", "agent", "server")
        if self._reaches_elsewhere() and any(self.pid(name) for name in names):
            with suppress(subprocess.TimeoutExpired, OSError):
                self.run("down", "--running", "cancel", timeout=30)
        self.kill(*names)
        for pid in _processes_with(str(self.home.root)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        remove_groups(self.home)

    def _reaches_elsewhere(self) -> bool:
        """Whether something may be left that is not in a control group of its node:
        then the server is asked to stop, which takes much longer than to kill it.
        """
        settings = self.home.settings
        words = [*(name for name in self.environment if name.startswith(_OURS))]
        if settings.exists():
            words.append(settings.read_text())
        told = " ".join(words).lower()
        return not hierarchies() or any(place in told for place in _ELSEWHERE)


def _processes_with(words: str) -> Iterator[int]:
    """Processes in whose command `words` stand."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        # It may end meanwhile.
        with suppress(OSError):
            if words.encode() in file.read_bytes():
                yield int(file.parent.name)


def _gone(pid: int) -> bool:
    """Ended, and its locks with it; a zombie that nobody has reaped counts."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@contextmanager
def make_instance(**environment: str) -> Iterator[TestInstance]:
    """An instance under a short path (unix sockets want one), ended and removed
    afterwards.
    """
    root = Path(tempfile.mkdtemp(prefix="gy-", dir="/tmp"))
    instance = TestInstance(root, environment)
    try:
        yield instance
    finally:
        instance.close()
        shutil.rmtree(root, ignore_errors=True)


def keeper_looks(instance: TestInstance, times: int) -> None:
    """Wait until the keeper has looked around so often."""
    pulse = instance.home.node / "keeper.pulse"
    for _ in range(times):
        before = pulse.stat().st_mtime_ns
        wait_until(
            lambda before=before: pulse.stat().st_mtime_ns != before,
            what="the keeper to look around",
        )
