"""Starts an attempt's program: makes its folders, restores the checkpoint that it
resumes from, and launches it with its environment, limits and account. Also starts
commands beside it.
"""

import dataclasses
import json
import os
from collections.abc import Sequence
from dataclasses import astuple
from functools import lru_cache
from pathlib import Path

from gpuyard.config.accounts import Account, workers_socket
from gpuyard.domain import wire
from gpuyard.domain.reasons import Reason
from gpuyard.node.code_folder import code_folders
from gpuyard.node.environment import (
    carried_environment,
    job_command,
    job_environment,
)
from gpuyard.node.input_pipe import new_pipe
from gpuyard.node.journal import JournalEntry
from gpuyard.node.launcher import (
    LaunchError,
    LaunchRequest,
    PooledGroup,
    Process,
    ProcessIdentity,
    ProcessLimits,
    Streams,
    spawn,
    spawn_beside,
)
from gpuyard.node.package_environments import PackageEnvironment, add_project
from gpuyard.node.run_facts import has_record, python_facts, run_facts
from gpuyard.node.separation import hand_over, make_closed, make_owned
from gpuyard.node.watch import AgentContext
from gpuyard.storage.code_folders import folder_of
from gpuyard.storage.code_store import CodeMissingError
from gpuyard.storage.environments import EnvironmentMissingError
from gpuyard.storage.untrusted import remove_tree


class AttemptStarter:
    """Starts one attempt: `prepare`, then `spawn`. Both block."""

    def __init__(self, record: JournalEntry, context: AgentContext) -> None:
        start = record.start
        self._record = record
        self._start = start
        self._context = context
        self.workdir = Path(start.workdir) if start.workdir else self._private / "work"
        self._runs_script = start.command[0] == wire.SCRIPT
        self._stdin = start.stdin
        if start.code and not self._runs_script and folder_of(self._private).is_dir():
            self.workdir = folder_of(self._private)  # an earlier agent made it
        self._workspace = (
            context.workspaces / start.workspace if start.workspace else None
        )
        self._account: Account | None = None
        self._packages: PackageEnvironment | None = None

    @property
    def _private(self) -> Path:
        """The attempt's own folder."""
        return self._context.journal.private(self._start.attempt_id)

    def prepare(self) -> None:
        """Find the attempt's account, and make the folders of its own.

        Raises LaunchError or OSError.
        """
        if self._context.accounts:
            self._account = self._context.accounts.account_of(self._start)
        elif self._start.user and os.geteuid() == 0:
            raise LaunchError(
                Reason.ACCOUNT_REFUSED,
                f"this agent would run the job of {self._start.user} as root: set"
                " [node] run_as_submitter",
            )
        if self._account:
            # Which files are the attempt's must be known after a crash, too.
            self._record.uid = self._account.uid
            self._context.journal.note(self._start.attempt_id, uid=self._account.uid)
        if self._start.code and self._runs_script:
            self._stdin = self._order_with_code()
        elif self._start.code:
            self.workdir = self._with_code(self.workdir)
        if self._start.packages and self._context.packages:
            self._packages = self._context.packages.prepare(
                self._start.packages, self._account, self._private
            )
        if not self._start.workdir:
            self._make(self.workdir)
        if self._workspace:
            self._make(self._workspace)

    def _order_with_code(self) -> bytes:
        """The order of a script's worker, which names the script's file as it was
        submitted; LaunchError, OSError.
        """
        order = json.loads(self._start.stdin or b"{}")
        file = Path(order["file"])
        # The worker of a batch loads the file again after a crash.
        folder = self._with_code(file.parent, always=bool(order.get("batch")))
        order["file"] = str(folder / file.name)
        return json.dumps(order).encode()

    def _with_code(self, live: Path, *, always: bool = False) -> Path:
        """Where the program finds the code that it was submitted with: in `live`, or in
        a folder of its own, if that has changed or `always`. LaunchError, OSError.
        """
        folders = code_folders(self._context.home)
        identity = self._identity()
        try:
            return folders.prepare(
                self._start.code,
                live,
                self._private,
                identity,
                always=always or self._context.is_joined,
                is_elsewhere=self._context.is_joined,
            )
        except CodeMissingError as error:
            raise LaunchError(Reason.CODE_MISSING, str(error)) from None

    def _make(self, folder: Path) -> None:
        if self._account:
            make_owned(folder, self._account)
        else:
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103  (a Path takes three times as long)

    def restore(self) -> Path | None:
        """Restore the checkpoint that the attempt resumes from, if there is one;
        returns its path. Raises OSError or tarfile.TarError.
        """
        start = self._start
        if not start.resume_sha256:
            return None
        target = self._resume_path
        folder = target.parent
        if self._account:
            # Nobody else can enter it until all of it belongs to the account.
            remove_tree(folder)
            make_closed(folder)
        self._context.blobs_of(start.attempt_id).restore(
            start.resume_sha256, target, directory=start.resume_directory
        )
        if self._account:
            hand_over(folder, self._account)
        return target

    @property
    def _resume_path(self) -> Path:
        """Where the checkpoint is that the attempt resumes from."""
        return self._private / "resume" / (self._start.resume_name or "checkpoint")

    def spawn(
        self, resume_from: Path | None, first_group: PooledGroup | None = None
    ) -> Process:
        """Start the process, in a group of the pool if it is given. Raises LaunchError
        or ValueError.
        """
        context = self._context
        socket = None
        if self._account:
            socket = workers_socket(context.settings.accounts_folder, context.home)
        command = job_command(
            self._start,
            resume_from,
            context.home,
            socket,
            is_joined=context.is_joined,
        )
        try:
            command = self._after_its_packages(command)
            request = self._request(command, resume_from, first_group)
            if has_record(self._start):
                self._record.facts = self._facts(request)
            if self._start.interactive:
                return self._spawn_with_pipe(request)
            return spawn(request)
        except LaunchError as error:
            workspace = self._workspace
            is_of_others = error.reason == Reason.ACCOUNT_REFUSED and workspace
            if is_of_others and str(workspace) in str(error):
                message = (
                    f"{error}, a workspace of the account that used it first; name a"
                    " --project to have one of your own"
                )
                raise LaunchError(error.reason, message) from None
            raise

    @property
    def packages(self) -> PackageEnvironment | None:
        """The environment of its packages, if it has some: the one that it was started
        with, even if the program has changed it since.
        """
        if self._packages:
            return self._packages
        digest = self._start.packages
        if not digest or self._context.packages is None:
            return None
        return self._context.packages.find(digest, self._record.uid)

    def _after_its_packages(self, command: Sequence[str]) -> Sequence[str]:
        """The command, or one that installs its packages first. LaunchError."""
        found = self.packages
        if found is None or self._context.packages is None:
            return command
        return self._context.packages.command(
            found, self._start.packages, self._private, command
        )

    def _spawn_with_pipe(self, request: LaunchRequest) -> Process:
        """Start the process with a pipe that people write to. Raises LaunchError."""
        attempt_id = request.attempt_id
        journal = self._context.journal
        group = self._account.gid if self._account else None
        try:
            with new_pipe(attempt_id, group) as (reader, holder):
                # Before the start: if the agent is killed right after it, the next one
                # must be able to end the input.
                self._record.input_holder = astuple(holder)
                journal.note(attempt_id, input_holder=self._record.input_holder)
                return spawn(dataclasses.replace(request, stdin=reader))
        except OSError as error:
            message = f"there is no pipe for its input: {error.strerror}"
            raise LaunchError(Reason.SPAWN_FAILED, message) from None

    def spawn_beside(
        self, process: Process, command: Sequence[str], streams: Streams, terminal: str
    ) -> Process:
        """Start a command beside the attempt's `process`, as whatever agent started
        that would have. `terminal`: the kind (`TERM`) of the one that `streams` are;
        empty for none. Raises LaunchError or ValueError.
        """
        self._account = self._account_now()
        # A group of the pool may go back to it while the command starts.
        process.settle(self.limits)
        resumes = self._start.resume_sha256
        request = self._request(command, self._resume_path if resumes else None)
        if terminal:
            environment = {**request.environment, "TERM": terminal}
            # The width that output to a log file has is not that of the terminal.
            if "COLUMNS" not in self._start.environment:
                environment.pop("COLUMNS", None)
            request = dataclasses.replace(request, environment=environment)
            if self._account:
                os.fchown(streams.stdin, self._account.uid, -1)
        return spawn_beside(
            request,
            process.cgroup,
            self._record.limits,
            streams,
            terminal=bool(terminal),
        )

    def _account_now(self) -> Account | None:
        """The account that the attempt runs under; LaunchError unless a new process may
        have that, too.

        The agent may have been restarted with other settings since.
        """
        account = None
        if self._context.accounts:
            account = self._context.accounts.account_of(self._start)
        if self._record.uid != (account.uid if account else None):
            raise LaunchError(
                Reason.ACCOUNT_REFUSED,
                "the accounts in the node's settings have changed since the job began",
            )
        return account

    @property
    def limits(self) -> ProcessLimits:
        """What the attempt may use of the host."""
        return _limits(
            self._start.memory_gb,
            self._start.cpus,
            self._context.settings.max_processes,
            self._context.default_memory_gb,
        )

    def _request(
        self,
        command: Sequence[str],
        resume_from: Path | None,
        first_group: PooledGroup | None = None,
    ) -> LaunchRequest:
        """How to start a command with all that the attempt has. Raises LaunchError or
        ValueError.
        """
        start = self._start
        context = self._context
        # A job must not get the agent's key to a bucket: its spec can give it its own.
        withheld = context.blobs.variables
        environment = job_environment(
            start,
            context.node,
            resume_from,
            self._workspace,
            withheld,
            self._account,
            self._carried(withheld),
        )
        if start.datasets and context.datasets:
            environment |= context.datasets.variables(start.datasets)
        self._point_to_code(environment)
        if packages := self.packages:
            packages.set_variables(environment)
            add_project(environment, self.workdir)
        devices = None
        if self._account and context.accounts:
            devices = context.accounts.device_rules(start.gpu_uuids)
        return LaunchRequest(
            start.attempt_id,
            tuple(command),
            environment,
            self.workdir,
            context.journal.log_path(start.attempt_id),
            self.limits,
            self._stdin,
            first_group=first_group,
            reaper=context.reaper,
            identity=self._identity(),
            devices=devices,
        )

    def _facts(self, request: LaunchRequest) -> dict[str, str]:
        """With what the program runs."""
        context = self._context
        facts = run_facts(self._start, context.node, context.gpus())
        if self._account is None:  # or the agent would look at files of others
            facts |= python_facts(
                self._start.command, request.environment, request.workdir
            )
        return facts

    def _identity(self) -> ProcessIdentity | None:
        """What the attempt's process becomes; None if it stays the agent's user."""
        accounts = self._context.accounts
        if self._account is None or accounts is None:
            return None
        return accounts.identity(self._account, self._workspace)

    def _point_to_code(self, environment: dict[str, str]) -> None:
        """Let Python find in the folder with the code what it would find in the live
        one.
        """
        live = self._start.workdir
        search_path = environment.get("PYTHONPATH")
        if not live or not search_path or str(self.workdir) == live:
            return
        environment["PYTHONPATH"] = ":".join(
            f"{self.workdir}{place[len(live) :]}" if is_below(place, live) else place
            for place in search_path.split(":")
        )

    def _carried(self, withheld: tuple[str, ...]) -> dict[str, str] | None:
        """The environment that the job carries, if any; as a shell would, it says where
        the program begins. Raises LaunchError.
        """
        digest = self._start.carried_environment
        if not digest:
            return None
        try:
            carried = carried_environment(self._context.home, digest, withheld)
        except EnvironmentMissingError as error:
            raise LaunchError(Reason.ENVIRONMENT_MISSING, str(error)) from None
        return {**carried, "PWD": str(self.workdir)}


@lru_cache(maxsize=64)
def _limits(
    memory_gb: float | None,
    cpus: float | None,
    processes: int,
    default_memory_gb: float | None,
) -> ProcessLimits:
    """The limits of many jobs are the same."""
    return ProcessLimits(
        _in_bytes(memory_gb), cpus, processes, _in_bytes(default_memory_gb)
    )


def _in_bytes(gigabytes: float | None) -> int | None:
    return int(gigabytes * (1 << 30)) if gigabytes else None


def is_below(place: str, folder: str) -> bool:
    """Whether a path is the folder, or in it."""
    return place == folder or place.startswith(f"{folder}/")
