"""The script that a node of a pool in an external queue runs, in real shells."""

import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpuyard.config.pools import PoolSettings
from gpuyard.domain.offers import Offer
from gpuyard.providers.pool_hands import PoolMachine, PoolOrder
from gpuyard.providers.queue_pool import QueuePool
from tests.support.fake_pool import FakeOwner
from tests.support.wait import wait_until

ORDER = PoolOrder("poolnode_1", "warm-1", "https://127.0.0.1:7434", "print.secret")
# What stands in for gpuyard: it saves its work before it leaves, and ends by itself if
# nobody ends it.
PROGRAM = """\
trap 'sleep 0.3; echo left > "$WORK/left"; exit 0' TERM
code=$(stat -c %a "$4")-$(cat "$4")
echo "$1 $2 $3 $code $5" > "$WORK/said"
turn=0
while [ $turn -lt 1200 ]; do sleep 0.05; turn=$((turn + 1)); done
"""


class AnyQueue(QueuePool):
    """A queue that nobody asks."""

    async def offers(self) -> Sequence[Offer]:
        raise NotImplementedError

    async def submit(self, order: PoolOrder, offer: Offer) -> str:
        raise NotImplementedError

    async def machines(self) -> Sequence[PoolMachine]:
        raise NotImplementedError

    async def end(self, reference: str) -> None:
        raise NotImplementedError


def script(command: str) -> str:
    pool: dict[str, Any] = {"provider": "slurm", "command": command}
    queue = AnyQueue("slurm", PoolSettings(**pool), 1.0, "USD", FakeOwner(), "/home/me")
    return queue.script(ORDER, ORDER.join_code)


@pytest.mark.parametrize("shell", ["bash", "dash"])
@pytest.mark.parametrize("before", ["", "true && "])
def test_a_node_that_is_ended_lets_gpuyard_leave_first(
    shell: str, before: str, tmp_path: Path
) -> None:
    if not shutil.which(shell):
        pytest.skip(f"there is no {shell}")
    program = tmp_path / "gpuyard"
    program.write_text(f"#!/bin/sh\n{PROGRAM}")
    program.chmod(0o755)
    file = tmp_path / "script"
    file.write_text(script(f"{before}{program}"))
    said = tmp_path / "said"
    node = subprocess.Popen(
        [shell, str(file)],
        env={"WORK": str(tmp_path), "PATH": "/usr/bin:/bin"},
        start_new_session=True,
    )
    try:
        wait_until(lambda: said.exists() and said.read_text(), what="it to join")
        # Only its own user can read the code, and no argument has it.
        code = "--code-file 600-print.secret"
        assert said.read_text() == f"join {ORDER.join_url} {code} --foreground\n"
        node.send_signal(signal.SIGTERM)
        assert node.wait(30) == 0
        assert (tmp_path / "left").exists()
    finally:
        node.kill()
