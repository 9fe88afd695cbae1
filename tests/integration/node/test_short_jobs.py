"""What short jobs do in their first moments: nothing of them outlives them, and their
limits begin whatever else the agent does.
"""

import asyncio
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuyard.config.paths import Home
from gpuyard.config.settings import NodeSettings
from gpuyard.domain import wire
from gpuyard.node.agent import Agent
from gpuyard.node.launcher.hierarchy import hierarchies, remove
from gpuyard.node.launcher.procfs import stat
from gpuyard.storage.blobs import BlobStore
from tests.support.node import Node
from tests.support.wait import wait_until

# Leaves its parent, its session and its environment before its group can hold it.
DAEMON = r"""
#include <fcntl.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int count, char **words) {
  if (count == 3) {
    char text[32];
    int file = open(words[1], O_WRONLY | O_CREAT | O_APPEND, 0600);
    write(file, text, sprintf(text, "%d\n", getpid()));
    for (;;) pause();
  }
  if (fork() == 0) {
    setsid();
    char *again[] = {words[0], words[1], "daemon", 0}, *nothing[] = {0};
    if (fork() == 0) execve(words[0], again, nothing);
    _exit(0);
  }
  wait(0);
  return 3;
}
"""

pytestmark = pytest.mark.real_agent
groups_work = pytest.mark.usefixtures("pids_groups")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("daemon") / "daemon"
    subprocess.run(
        ["gcc", "-O2", "-static", "-w", "-x", "c", "-", "-o", program],
        input=DAEMON,
        text=True,
        check=True,
    )
    return program


@groups_work
def test_a_daemon_that_is_made_before_its_group_holds_it_ends_with_its_job(
    node: Node, daemon: Path
) -> None:
    pids = node.work / "pids"
    for _ in range(20):
        job = node.config("")
        command = (str(daemon), str(pids))
        attempt_id = node.submit(job.model_copy(update={"command": command}))
        assert node.ended(attempt_id).exit_code == 3
    said = [int(pid) for pid in pids.read_text().split()] if pids.exists() else []
    # One that was killed as its job ended may still be on its way out of the kernel.
    wait_until(
        lambda: not [pid for pid in said if (one := stat(pid)) and not one.dead],
        what="the daemons to be gone",
    )


@groups_work
def test_limits_begin_though_all_threads_of_the_agent_are_busy(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.create()
    start = wire.StartAttempt(
        "attempt_settles", 1, 1, "job_1", ["sleep", "1000"], {"PATH": "/bin:/usr/bin"}
    )
    done = threading.Event()

    async def scenario() -> None:
        agent = Agent(home, NodeSettings(), BlobStore(home.blobs), home.workspaces)
        loop = asyncio.get_running_loop()
        busy = [loop.run_in_executor(None, done.wait, 60) for _ in range(64)]
        agent.attempts.begin(start)
        attempt = agent.attempts.find("attempt_settles")
        assert attempt is not None
        try:
            await until(lambda: bool(attempt.process and attempt.process.settled))
        finally:
            done.set()
            await asyncio.gather(*busy)
            attempt.stop("cancelled")
            await until(lambda: not attempt.live)

    asyncio.run(scenario())


async def until(condition: Callable[[], bool]) -> None:
    """`wait_until` beside what else this loop has to do."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


IN_THE_GROUP = """
import os, select, sys, uuid
from pathlib import Path
from gpuyard.node.launcher import GroupPool, LaunchRequest, ProcessLimits, spawn

Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
pool = GroupPool(f"node_{uuid.uuid4().hex}", 20)
for code in sys.argv[2:]:
    name = f"att_{uuid.uuid4().hex}"
    launch = LaunchRequest(
        name,
        (sys.executable, "-c", code),
        {"GPUYARD_ATTEMPT_ID": name},
        Path.cwd(),
        Path("log"),
        ProcessLimits(processes=20),
        first_group=pool.take(),
    )
    process = spawn(launch)
    select.select([process], [], [])
    end = process.exit()
    print(end.code, end.signal, end.out_of_memory)
    process.kill_all()
    process.reap()
    process.cleanup()
pool.close()
"""


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group whose processes may have 300 MB together."""
    tree = next(tree for tree in hierarchies() if "memory" in tree.controllers)
    group = tree.root / f"small-{uuid.uuid4().hex}"
    group.mkdir()
    files = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.max"]
    for name in files:
        if (group / name).exists():
            (group / name).write_text(str(300 << 20))
    if (group / "memory.swap.max").exists():
        (group / "memory.swap.max").write_text("0")
    yield group
    wait_until(lambda: remove(group), what="the group to be empty")


@pytest.mark.usefixtures("pids_groups", "memory_groups")
def test_a_kill_for_lack_of_memory_in_the_first_moment_is_told(
    tmp_path: Path, small_group: Path
) -> None:
    greedy = "memory = b'x' * (600 << 20)"
    parent = (
        f'import subprocess, sys; subprocess.run([sys.executable, "-c", "{greedy}"])'
    )
    codes = [greedy, "raise SystemExit(3)", parent, "raise SystemExit(4)"]
    done = subprocess.run(
        [sys.executable, "-c", IN_THE_GROUP, str(small_group), *codes],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "None 9 True",
        "3 None False",
        "0 None False",
        "4 None False",
    ]
