"""The layout of `$GPUYARD_HOME`: where each file is.

Standard library only.
"""

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path

_FOR_ALL_USERS = frozenset({"/tmp", "/var/tmp", "/dev/shm"})


@dataclass(frozen=True, slots=True)
class Home:
    """A gpuyard home.

    `Home.find()` is the user's: `$GPUYARD_HOME`, by default `~/.gpuyard`.
    """

    root: Path

    @classmethod
    def find(cls) -> "Home":
        """The home of this environment; it need not exist yet."""
        path = Path(os.environ.get("GPUYARD_HOME") or "~/.gpuyard")
        return cls(path.expanduser().absolute())

    def create(self) -> None:
        """Make the home, readable by its owner only: logs and the token are private. In
        one that exists already others lose the right to write.

        PermissionError when the home belongs to another user, or to all like `/tmp`.
        """
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._close()
        for folder in (self.node, self.blobs, self.logs):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def _close(self) -> None:
        status = self.root.stat()
        if status.st_uid not in (os.getuid(), 0):
            fault = "belongs to another user, who could read and change everything"
            raise PermissionError(errno.EPERM, fault, str(self.root))
        if os.fspath(self.root.resolve()) in _FOR_ALL_USERS:
            fault = "is a folder for all users: name one of your own"
            raise PermissionError(errno.EPERM, fault, str(self.root))
        writable_by_others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if writable_by_others and status.st_uid == os.getuid():
            self.root.chmod(status.st_mode & ~(stat.S_IWGRP | stat.S_IWOTH))

    @property
    def settings(self) -> Path:
        """The file that `$GPUYARD_CONFIG` names, else the one that was given last to
        `gpuyard up --config`, else `gpuyard.toml`.
        """
        named = os.environ.get("GPUYARD_CONFIG") or self._remembered_settings()
        return Path(named) if named else self.own_settings

    def _remembered_settings(self) -> str:
        try:
            return self.settings_name.read_text().strip()
        except OSError:
            return ""

    @property
    def own_settings(self) -> Path:
        """The settings of a home to which no other file was given."""
        return self.root / "gpuyard.toml"

    @property
    def settings_name(self) -> Path:
        """The path of the settings that `gpuyard up --config` was given; absent if it
        was given none.
        """
        return self.root / "config"

    @property
    def ledger(self) -> Path:
        """The SQLite ledger."""
        return self.root / "ledger.db"

    @property
    def reserve(self) -> Path:
        """The file that keeps room for the ledger on a full disk."""
        return self.root / "reserve"

    @property
    def database(self) -> Path:
        """The address of a PostgreSQL ledger, mode 0600; absent if the ledger is in
        SQLite.
        """
        return self.root / "database"

    @property
    def gpu_state(self) -> Path:
        """What each GPU is doing, for other programs to read."""
        return self.root / "gpu_state.json"

    @property
    def lock(self) -> Path:
        """Held by the one server of this home."""
        return self.root / "server.lock"

    @property
    def server(self) -> Path:
        """`{"url", "pid", "version", "socket"}` of the running server."""
        return self.root / "server.json"

    @property
    def agent_version(self) -> Path:
        """The version of this home's agent."""
        return self.node / "agent.version"

    @property
    def server_socket(self) -> Path:
        """The server's Unix socket, for everything on this host that has the token."""
        return self.root / "server.sock"

    @property
    def worker_socket(self) -> Path:
        """Where the agent of a machine that has joined listens for workers of
        batches.
        """
        return self.root / "workers.sock"

    @property
    def server_id(self) -> Path:
        """The id of this home's server among those that share a database."""
        return self.root / "server.id"

    @property
    def token(self) -> Path:
        """The bearer token, mode 0600."""
        return self.root / "token"

    @property
    def login(self) -> Path:
        """The server that `gpuyard login` was given, with the token, mode 0600; absent
        without.
        """
        return self.root / "login.json"

    @property
    def secrets(self) -> Path:
        """The store of secrets and its key, unless the settings name another path."""
        return self.root / "secrets"

    @property
    def backups(self) -> Path:
        """Backups of the ledger, unless the settings name another path."""
        return self.root / "backups"

    @property
    def logs(self) -> Path:
        """Logs of gpuyard's own processes."""
        return self.root / "logs"

    @property
    def copied_logs(self) -> Path:
        """Copies of the output of attempts in external queues."""
        return self.logs / "attempts"

    @property
    def audit_log(self) -> Path:
        """Who was admitted and refused, and who changed what; mode 0600."""
        return self.logs / "audit.log"

    def audit_logs(self) -> list[Path]:
        """The audit log and its older files, the newest first."""
        older = sorted(
            self.logs.glob(f"{self.audit_log.name}.*"),
            key=lambda path: int(path.suffix[1:]) if path.suffix[1:].isdigit() else 0,
        )
        return [path for path in (self.audit_log, *older) if path.is_file()]

    @property
    def blobs(self) -> Path:
        """The local blob store."""
        return self.root / "blobs"

    @property
    def environments(self) -> Path:
        """The environments that jobs carry; files of mode 0600."""
        return self.root / "environments"

    @property
    def code(self) -> Path:
        """The code that waiting jobs were submitted with."""
        return self.root / "code"

    @property
    def workspaces(self) -> Path:
        """The folders that outlive jobs, unless the settings name another path."""
        return self.root / "workspaces"

    @property
    def verification(self) -> Path:
        """The database and the blobs of verification, with prompts and seeds that must
        stay secret.
        """
        return self.root / "verification"

    @property
    def node(self) -> Path:
        """The local agent's own folder: journal, exits, attempts with their logs."""
        return self.root / "node"

    @property
    def fetched(self) -> Path:
        """What the local agent has fetched from its server: environments and code of
        jobs, laid out as in a home.
        """
        return self.node / "fetched"

    @property
    def authority(self) -> Path:
        """The certificate authority by which machines join (`server/authority.py`)."""
        return self.root / "authority"

    @property
    def membership(self) -> Path:
        """Of a machine that has joined an instance: its certificate, and where the
        server is (`config/joined.py`).
        """
        return self.root / "joined"

    @property
    def peers(self) -> Path:
        """The addresses of the instance's other servers, for this home's agent:
        `{"urls", "token"}`, mode 0600.
        """
        return self.node / "peers.json"

    @property
    def runs(self) -> Path:
        """Working directories of templates run by name."""
        return self.root / "runs"

    @property
    def observed_runs(self) -> Path:
        """What the server saw of the attempts in external queues."""
        return self.root / "observed_runs"

    @property
    def socket(self) -> Path:
        """The agents' Unix socket. Its path may be longer than a socket's address
        (`config/sockets.py`).
        """
        return self.root / "agent.sock"
