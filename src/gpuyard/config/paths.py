"""The layout of `$GPUYARD_HOME`: the one object that knows where each file lives. Standard library only."""

import hashlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

# A unix socket's path must fit sockaddr_un, 108 bytes on Linux.
_MAX_SOCKET_PATH = 100


@dataclass(frozen=True, slots=True)
class Home:
    """A gpuyard home. `Home.find()` is the user's: `$GPUYARD_HOME`, by default `~/.gpuyard`."""

    root: Path

    @classmethod
    def find(cls) -> "Home":
        """The home of this environment; it need not exist yet."""
        return cls(Path(os.environ.get("GPUYARD_HOME") or "~/.gpuyard").expanduser().absolute())

    def create(self) -> None:
        """Make the home, readable by its owner only: logs and the token are private."""
        for folder in (self.root, self.node, self.blobs, self.logs):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    @property
    def settings(self) -> Path:
        """`gpuyard.toml`; `$GPUYARD_CONFIG` names another."""
        return Path(os.environ.get("GPUYARD_CONFIG") or self.root / "gpuyard.toml")

    @property
    def ledger(self) -> Path:
        """The SQLite ledger."""
        return self.root / "ledger.db"

    @property
    def database(self) -> Path:
        """The address of a PostgreSQL ledger, mode 0600; there is none where the ledger is SQLite's."""
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
        """`{"url", "pid", "version"}` of the running server."""
        return self.root / "server.json"

    @property
    def server_id(self) -> Path:
        """The id by which this home's server stands on the roll of those that share a database."""
        return self.root / "server.id"

    @property
    def token(self) -> Path:
        """The bearer token, mode 0600."""
        return self.root / "token"

    @property
    def logs(self) -> Path:
        """Logs of gpuyard's own processes."""
        return self.root / "logs"

    @property
    def blobs(self) -> Path:
        """The local blob store."""
        return self.root / "blobs"

    @property
    def workspaces(self) -> Path:
        """The folders that outlive jobs, unless the settings name another place."""
        return self.root / "workspaces"

    @property
    def verification(self) -> Path:
        """What verification keeps: its database and its blobs, with prompts and seeds that nobody else may see."""
        return self.root / "verification"

    @property
    def node(self) -> Path:
        """The local agent's own folder: journal, exits, attempts with their logs."""
        return self.root / "node"

    @property
    def peers(self) -> Path:
        """Where this home's agent finds the yard's other servers: `{"urls", "token"}`, mode 0600."""
        return self.node / "peers.json"

    @property
    def runs(self) -> Path:
        """Working directories of templates run by name."""
        return self.root / "runs"

    @property
    def socket(self) -> Path:
        """The agents' unix socket; in a private temporary folder when the home's path is too long for one."""
        path = self.root / "agent.sock"
        if len(os.fsencode(path)) <= _MAX_SOCKET_PATH:
            return path
        digest = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"gpuyard-{os.getuid()}-{digest}" / "agent.sock"
