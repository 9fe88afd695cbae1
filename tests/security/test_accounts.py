"""Jobs under their owners' accounts: what a job of one cannot do to another, to the
agent and to gpuyard, and what still works for it.

The agent runs as root, and the accounts are real ones of this machine.
"""

import json
import os
import signal
import stat
import tempfile
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpuyard.config.accounts import Account, make_passable, workers_socket
from gpuyard.domain import stream_frames as frames
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.jobconfig import GpuSpec
from gpuyard.domain.jobspec import CheckpointSpec
from gpuyard.node.launcher.hierarchy import groups_of
from gpuyard.storage import account_work
from gpuyard.storage.blobs import BlobStore
from gpuyard.storage.code_snapshots import CodeLimits
from gpuyard.storage.code_store import CodeStore
from gpuyard.storage.contents import folder_stores
from tests.support.accounts import PYTHON, real_account
from tests.support.forkserver import REAL_PYTHON
from tests.support.job_stream import Stream
from tests.support.node import Node, gone, make_node, wait_for
from tests.support.nvml import FakeGpus

FIRST = "GPU-11111111"
SECOND = "GPU-22222222"
# Prints what each attempt to do something ended with.
TRY = """
import json, os, sys
def attempt(what):
    try:
        return f"did: {what()}"
    except OSError as failed:
        return os.strerror(failed.errno)
"""
DENIED = {"Permission denied", "Operation not permitted"}
SLEEP = "import time; print('ready', flush=True); time.sleep(600)"


@dataclass
class NodeOfTwo:
    """A node, and the accounts of the two projects `ann` and `bob` on it."""

    node: Node
    ann: Account
    bob: Account

    def start(self, project: str, code: str, *words: object, **fields: Any) -> str:
        """Run a Python snippet as a job of the project, in a folder of its own."""
        snippet = textwrap.dedent(code)
        command = (PYTHON, "-I", "-S", "-c", snippet, *map(str, words))
        fields = {"workdir": None, "command": command, "project": project, **fields}
        return self.node.start("", **fields)

    def sleeping(self, project: str, **fields: Any) -> psutil.Process:
        """A job that does nothing, once it runs."""
        attempt_id = self.start(project, SLEEP, **fields)
        self.node.says(attempt_id, "ready")
        return psutil.Process(self.node.started(attempt_id).pid)

    def answers(self, attempt_id: str) -> Any:
        """The JSON document that the job printed, once it has ended well."""
        ended = self.node.ended(attempt_id)
        assert ended.exit_code == 0, (ended, self.node.output(attempt_id))
        return json.loads(self.node.output(attempt_id))


@pytest.fixture(scope="module")
def people() -> Iterator[tuple[Account, Account]]:
    with real_account() as ann, real_account() as bob:
        yield ann, bob


@contextmanager
def make_pair(
    people: tuple[Account, Account], environment: Mapping[str, str]
) -> Iterator[NodeOfTwo]:
    ann, bob = people
    with tempfile.TemporaryDirectory(prefix="gy-jobs-", dir="/tmp") as folder:
        Path(folder).chmod(0o711)
        # A forked agent would show the fork server's environment, not its own.
        with make_node(
            {**environment, REAL_PYTHON: "1"},
            real_agent=True,
            accounts=f'{{ ann = "{ann.name}", bob = "{bob.name}" }}',
            accounts_folder=f'"{folder}/jobs"',
        ) as node:
            yield NodeOfTwo(node, ann, bob)


@pytest.fixture
def pair(people: tuple[Account, Account]) -> Iterator[NodeOfTwo]:
    with make_pair(people, {"A_SECRET_OF_ROOT": "s3cr3t"}) as made:
        yield made


@pytest.fixture
def shared(people: tuple[Account, Account]) -> Iterator[Path]:
    """A folder where everybody may write."""
    with tempfile.TemporaryDirectory(prefix="gy-shared-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o1777)
        yield folder


def test_a_job_reaches_nothing_of_others(pair: NodeOfTwo) -> None:
    node = pair.node
    victim = pair.sleeping("bob")
    work = Path(victim.cwd())
    (work / "result").write_text("of bob")
    node.home.token.write_text("the token")
    (group, *_) = [path for path in groups_of(victim.pid) if "attempt" in path.name]
    attempts = node.home.node / "attempts"
    answers = pair.answers(
        pair.start(
            "ann",
            TRY
            + """
            victim, agent, keeper = map(int, sys.argv[1:4])
            work, home, token, attempts, group = sys.argv[4:]
            print(json.dumps({
                "list its folder": attempt(lambda: os.listdir(work)),
                "read its file": attempt(lambda: open(work + "/result").read()),
                "its environment": attempt(lambda: open(f"/proc/{victim}/environ").read()),
                "its memory": attempt(lambda: open(f"/proc/{victim}/mem", "rb")),
                "its files": attempt(lambda: os.listdir(f"/proc/{victim}/fd")),
                "signal it": attempt(lambda: os.kill(victim, 0)),
                "signal the agent": attempt(lambda: os.kill(agent, 0)),
                "signal the keeper": attempt(lambda: os.kill(keeper, 0)),
                "environment of the agent": attempt(lambda: open(f"/proc/{agent}/environ").read()),
                "list the home": attempt(lambda: os.listdir(home)),
                "the token": attempt(lambda: open(token).read()),
                "logs": attempt(lambda: os.listdir(attempts)),
                "its own log": attempt(lambda: open("/proc/self/fd/1").read()),
                "become root": attempt(lambda: os.setuid(0)),
                "leave its group": attempt(lambda: open(group, "w").write("0")),
                "a device": attempt(lambda: os.mknod("zero", 0o20666, os.makedev(1, 5))),
            }))
            """.replace("\n            ", "\n"),
            victim.pid,
            node.pid("agent"),
            node.pid("keeper"),
            work,
            node.home.root,
            node.home.token,
            attempts,
            group / "cgroup.procs",
        )
    )
    reached = {what: how for what, how in answers.items() if how not in DENIED}
    assert reached == {}
    assert victim.is_running()


def test_a_job_has_its_accounts_environment_and_nothing_of_roots(
    pair: NodeOfTwo,
) -> None:
    code = "import json, os; print(json.dumps([dict(os.environ), os.getcwd()]))"
    attempt_id = pair.start("ann", code, environment={"OWN": "1"})
    environment, folder = pair.answers(attempt_id)
    assert environment["HOME"] == pair.ann.home
    assert environment["USER"] == environment["LOGNAME"] == pair.ann.name
    assert environment["OWN"] == "1"
    assert environment["PATH"] == "/usr/local/bin:/usr/bin:/bin"
    expected = ("GPUYARD_", "CUDA_", "ROCR_", "LC_", "LANG", "TZ", "PYTHON", "OMP_")
    login = {"HOME", "USER", "LOGNAME", "SHELL", "PATH", "OWN", "COLUMNS"}
    others = [name for name in environment if not name.startswith(expected)]
    assert set(others) == login
    status = Path(folder).stat()
    assert (status.st_uid, stat.S_IMODE(status.st_mode)) == (pair.ann.uid, 0o700)


def test_input_exit_code_and_the_end_of_a_job_are_as_ever(pair: NodeOfTwo) -> None:
    code = "import sys; print(sys.stdin.read()); sys.exit(7)"
    attempt_id = pair.start("ann", code, args_via_stdin=b"in")
    assert pair.node.ended(attempt_id).exit_code == 7
    assert pair.node.output(attempt_id) == "in\n"

    late = pair.start("ann", SLEEP, timeout_minutes=0.01)
    assert pair.node.ended(late).stopped == "timed_out"

    # A process of its own session and without our variables ends with it, too.
    spawning = """
        import os, subprocess, sys, time
        child = subprocess.Popen(["sleep", "600"], env={}, start_new_session=True)
        print("child", child.pid, flush=True)
        time.sleep(600)
    """
    cancelled = pair.start("bob", spawning)
    pair.node.says(cancelled, "child")
    child = int(pair.node.output(cancelled).split()[1])
    pair.node.stop(cancelled)
    assert pair.node.ended(cancelled).stopped == "cancelled"
    gone(child)


def test_a_checkpoint_is_kept_and_handed_over_to_the_next_attempt(
    pair: NodeOfTwo,
) -> None:
    save = """
        import os
        os.mkdir("step-1")
        open("step-1/state", "w").write("state of ann")
    """
    checkpoint = CheckpointSpec(path="step-*")
    first = pair.start("ann", save, checkpoint=checkpoint)
    saved = pair.node.checkpoint(first, "step-1")
    assert pair.node.ended(first).exit_code == 0
    resume = """
        import json, os
        folder = os.environ["GPUYARD_RESUME_FROM"]
        with open(folder + "/state", "a") as state:
            state.write(", and more")
        status = os.stat(folder + "/state")
        print(json.dumps([open(folder + "/state").read(), status.st_uid, status.st_gid]))
    """
    second = pair.start(
        "ann",
        resume,
        resume_sha256=saved.sha256,
        resume_name="step-1",
        resume_directory=True,
    )
    ann = pair.ann
    assert pair.answers(second) == ["state of ann, and more", ann.uid, ann.gid]


def test_no_file_of_others_is_kept_as_a_checkpoint(
    pair: NodeOfTwo, shared: Path, tmp_path: Path
) -> None:
    (shared / "step-1").write_text("a secret of root")
    (shared / "step-1").chmod(0o600)
    code = """
        import os, time
        os.symlink("step-1", "step-2")
        os.mkdir("step-3")
        open("step-3/state", "w").write("1")
        open("step-4", "w").write("own")
        print("ready", flush=True)
        while not os.path.exists("go"):
            time.sleep(0.05)
    """
    checkpoint = CheckpointSpec(path="step-*")
    attempt_id = pair.start("ann", code, workdir=str(shared), checkpoint=checkpoint)
    pair.node.says(attempt_id, "ready")
    # So that root's files are new ones.
    os.utime(shared / "step-1")
    (shared / "step-3" / "of-root").write_text("2")
    (shared / "go").touch()
    pair.node.ended(attempt_id)
    saved = {item.path: item for item in pair.node.checkpoints(attempt_id)}
    assert sorted(saved) == ["step-3", "step-4"]
    restored = tmp_path / "step-3"
    blobs = BlobStore(pair.node.home.blobs)
    blobs.restore(saved["step-3"].sha256, restored, directory=True)
    assert [path.name for path in restored.iterdir()] == ["state"]


def test_a_project_without_an_account_and_a_closed_folder_are_told(
    pair: NodeOfTwo,
) -> None:
    refused = pair.node.ended(pair.start("carol", SLEEP))
    assert refused.reason == "account_refused"
    assert "node.accounts.carol" in refused.message

    closed = pair.node.ended(pair.start("ann", SLEEP, workdir=pair.bob.home))
    assert closed.reason == "workdir_missing"
    assert pair.ann.name in closed.message
    assert pair.bob.home in closed.message


def test_after_kills_of_agent_and_keeper_the_jobs_go_on(pair: NodeOfTwo) -> None:
    node = pair.node
    waiting = """
        import os, sys, time
        print("ready", flush=True)
        while not os.path.exists("go"):
            time.sleep(0.05)
        sys.exit(3)
    """
    first = pair.start("ann", waiting)
    second = pair.start("bob", waiting)
    for attempt_id in (first, second):
        node.says(attempt_id, "ready")
    folders = {
        attempt_id: Path(f"/proc/{node.started(attempt_id).pid}/cwd").readlink()
        for attempt_id in (first, second)
    }
    agent = node.pid("agent")
    node.kill("agent")
    node.next_agent(agent)
    (folders[first] / "go").touch()
    assert node.ended(first).exit_code == 3

    node.kill("keeper", "agent")
    node.linked(len(node.sink.hellos) + 1)
    node.stop(second)
    assert node.ended(second).stopped == "cancelled"


def test_a_process_that_claims_an_attempt_of_others_is_not_taken_for_it(
    pair: NodeOfTwo, shared: Path
) -> None:
    """The agent and the keeper look for a process by its environment, if the agent was
    killed before it noted the pid. Anybody may write any environment.
    """
    node = pair.node
    victim = pair.start("bob", SLEEP)
    node.says(victim, "ready")
    pid = node.started(victim).pid
    # Some live on, and some end with a code of their own. All are the keeper's children.
    claim = """
        import os, sys, time
        variables = {"GPUYARD_ATTEMPT_ID": sys.argv[1]}
        ending = "while ! test -e go; do sleep 0.05; done; exit 5"
        for script in ["sleep 600"] * 2 + [ending] * 6:
            if os.fork() == 0:
                if os.fork() == 0:
                    os.setsid()
                    os.execve("/bin/sh", ["sh", "-c", script], variables)
                os._exit(0)
            os.wait()
        print("ready", flush=True)
        time.sleep(600)
    """
    attacker = pair.start("ann", claim, victim, workdir=str(shared))
    node.says(attacker, "ready")
    exits = node.home.node / "exits"
    with node.without_agent():
        (shared / "go").touch()
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda: len(list(exits.glob("*.json"))) == 7, "seven exits")
        # As if it had been killed before it noted the pid.
        kept = [line for line in node.journal(victim) if "pid" not in line]
        node.rewrite_journal(victim, kept)
    assert node.ended(victim).signal == signal.SIGKILL


def test_a_process_of_others_holds_up_no_checkpoint(
    pair: NodeOfTwo, shared: Path
) -> None:
    """A file that a process of the job writes is not complete; who may say so?"""
    saving = """
        import os, time
        open("m.pt", "w").write("weights")
        os.chmod("m.pt", 0o666)
        print("ready", flush=True)
        while not os.path.exists("go"):
            time.sleep(0.05)
    """
    checkpoint = CheckpointSpec(path="*.pt")
    victim = pair.start("bob", saving, workdir=str(shared), checkpoint=checkpoint)
    pair.node.says(victim, "ready")
    writing = "exec 9>>m.pt; echo writes; exec sleep 600"
    claim = f"""
        import os, sys
        variables = {{"GPUYARD_ATTEMPT_ID": sys.argv[1], "PATH": "/usr/bin:/bin"}}
        os.execve("/bin/sh", ["sh", "-c", {writing!r}], variables)
    """
    attacker = pair.start("ann", claim, victim, workdir=str(shared))
    pair.node.says(attacker, "writes")
    (shared / "go").touch()
    assert pair.node.ended(victim).exit_code == 0
    assert [item.path for item in pair.node.checkpoints(victim)] == ["m.pt"]


def test_a_command_beside_a_job_has_its_account_and_its_group(pair: NodeOfTwo) -> None:
    node = pair.node
    attempt_id = pair.start("ann", SLEEP)
    node.says(attempt_id, "ready")
    of_the_job = groups_of(node.started(attempt_id).pid)
    stream = Stream(node, attempt_id)
    code = """
import os, time
alone = set(os.getgroups()) <= {os.getgid()}
print(os.getuid(), alone, os.stat(0).st_uid, os.getpid(), flush=True)
time.sleep(600)
"""
    command = [PYTHON, "-I", "-S", "-c", code]
    stream.send(frames.RunCommand(command, terminal="xterm"))
    uid, alone, owner, pid = stream.until(b"\n").split()
    assert (int(uid), alone, int(owner)) == (pair.ann.uid, b"True", pair.ann.uid)
    assert groups_of(int(pid)) == of_the_job
    node.stop(attempt_id)
    node.ended(attempt_id)
    gone(int(pid))


@pytest.fixture
def project(people: tuple[Account, Account]) -> Iterator[Path]:
    """A folder of ann that only she may enter."""
    ann, _ = people
    with tempfile.TemporaryDirectory(dir=ann.home) as name:
        folder = Path(name)
        (folder / "train.py").write_text(TRAIN)
        (folder / "data.txt").write_text("data")
        (folder / "out").mkdir()
        for path in (folder, *folder.iterdir()):
            os.chown(path, ann.uid, ann.gid)
        yield folder


TRAIN = """
import os
print(open("data.txt").read(), os.stat(__file__).st_uid == os.getuid())
open("out/step-1", "w").write("state")
"""


def stored(pair: NodeOfTwo, folder: Path) -> str:
    """The digest of the folder's code, stored for ann."""
    store = CodeStore(folder_stores(pair.node.home.root))
    limits = CodeLimits(files=10, bytes=10_000)
    return account_work.take_code(store, pair.ann, folder, limits, Path("/nowhere"))


def test_a_job_runs_the_code_that_its_account_submitted(
    pair: NodeOfTwo, project: Path
) -> None:
    digest = stored(pair, project)
    command = (PYTHON, "-I", "-S", "train.py")
    given = {"command": command, "workdir": str(project), "code": digest}
    ann = {"project": "ann", **given}
    unchanged = pair.node.start("", **ann)
    assert pair.node.ended(unchanged).exit_code == 0
    (project / "train.py").write_text("print('changed')")

    checkpoint = CheckpointSpec(path="out/step-*")
    changed = pair.node.start("", checkpoint=checkpoint, **ann)
    assert pair.node.ended(changed).exit_code == 0, pair.node.output(changed)
    assert pair.node.output(changed) == "data True\n"
    assert [item.path for item in pair.node.checkpoints(changed)] == ["out/step-1"]

    # The code of others is no way to read it.
    of_bob = {**given, "project": "bob", "workdir": pair.bob.home}
    refused = pair.node.ended(pair.node.start("", **of_bob))
    assert refused.reason == "code_missing"
    assert "another account" in refused.message


def test_workers_find_the_server_where_only_root_makes_entries(
    people: tuple[Account, Account], shared: Path
) -> None:
    folder = shared / "jobs"
    make_passable(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o711
    assert workers_socket(folder, shared / "one") != workers_socket(folder, shared)
    ann, _ = people
    os.chown(folder, ann.uid, ann.gid)
    with pytest.raises(InvalidInputError, match="others than root may change"):
        make_passable(folder)
    os.chown(folder, 0, 0)
    folder.chmod(0o777)
    with pytest.raises(InvalidInputError, match="others than root may change"):
        make_passable(folder)


def test_a_job_opens_its_own_gpu_only(
    people: tuple[Account, Account], fake_gpus: FakeGpus, shared: Path
) -> None:
    fake_gpus.add(FIRST)
    fake_gpus.add(SECOND)
    for name, minor in (("nvidia0", 0), ("nvidia1", 1), ("nvidiactl", 255)):
        device = os.makedev(195, minor)
        os.mknod(shared / name, stat.S_IFCHR | 0o666, device)
        (shared / name).chmod(0o666)
    code = (
        TRY
        + """
DENIED = "Operation not permitted"
names = ("nvidia0", "nvidia1", "nvidiactl")
print(json.dumps([n for n in names if attempt(lambda: os.open(n, 2)) == DENIED]))
"""
    )
    with make_pair(people, fake_gpus.env()) as pair:
        assert pair.node.linked().separation == "accounts and devices"
        refused = {
            gpus: pair.answers(
                pair.start(
                    "ann",
                    code,
                    workdir=str(shared),
                    node_id=pair.node.linked().node_id,
                    gpu_uuids=gpus,
                    gpu_spec=GpuSpec(gpu_count=len(gpus)),
                )
            )
            for gpus in ((FIRST,), (SECOND,), (), (FIRST, SECOND))
        }
    assert refused == {
        (FIRST,): ["nvidia1"],
        (SECOND,): ["nvidia0"],
        (): ["nvidia0", "nvidia1"],
        (FIRST, SECOND): [],
    }
