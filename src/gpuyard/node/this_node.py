"""What the agent knows of its node before it has read the GPUs."""

from dataclasses import dataclass
from pathlib import Path

from gpuyard.config.accounts import Accounts, job_folder
from gpuyard.config.joined import read_membership
from gpuyard.config.paths import Home
from gpuyard.config.settings import NodeSettings
from gpuyard.devices.host import HostReading, read_host
from gpuyard.node.agent_files import node_id


@dataclass(frozen=True, slots=True)
class ThisNode:
    """The node of this host. `accounts`: None where all jobs run as the agent does.
    `is_joined`: its machine has joined an instance, so it has no home or store in
    common with the server.
    """

    id: str
    home: Home
    settings: NodeSettings
    host: HostReading
    accounts: Accounts | None
    is_joined: bool

    @classmethod
    def of(cls, home: Home, settings: NodeSettings) -> "ThisNode":
        """The node of this home, which gets its id at the first call.
        InvalidInputError: see `Accounts.of`.
        """
        return cls(
            id=node_id(home.node / "id"),
            home=home,
            settings=settings,
            host=read_host(),
            accounts=Accounts.of(settings),
            is_joined=read_membership(home) is not None,
        )

    @property
    def job_folder(self) -> Path | None:
        """Where jobs have their folders that run under accounts of their own."""
        if self.accounts is None:
            return None
        return job_folder(self.settings.accounts_folder, self.id)

    @property
    def name_in_gpus(self) -> str:
        """What tells simulated GPUs of machines apart that have joined."""
        return self.id[-8:] if self.is_joined else ""
