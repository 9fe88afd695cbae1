"""Who the instance is for the machines that it starts, and where they join it."""

from typing import Protocol

from gpuyard.domain.errors import ProviderError

_NO_DOOR = (
    "server.agents_listen is not set, so machines have nowhere to join; set it in"
    ' [server], such as "0.0.0.0:7433", where they reach it'
)


class InstanceIdentity(Protocol):
    """What makes an instance the one that its machines have joined."""

    @property
    def fingerprint(self) -> str:
        """That of the instance's authority."""
        ...

    def secret_for(self, purpose: str) -> str:
        """A secret that is the same for each call, and that nobody else can know."""
        ...


class JoiningDoor(InstanceIdentity, Protocol):
    """Where machines join: the listener of the server that leads."""

    async def url_for_machines(self) -> str:
        """Where machines dial that are invited, once somebody listens there."""
        ...


class InstanceDoor:
    """The identity of the instance and its door, as far as there are any.

    The identity stays when a setting has closed the door: machines that have joined
    before are found by it, and ended.
    """

    def __init__(self) -> None:
        self._identity: InstanceIdentity | None = None
        self._door: JoiningDoor | None = None

    def identify(self, identity: InstanceIdentity) -> None:
        """Machines may have joined, and none may join now."""
        self._identity = identity

    def open(self, door: JoiningDoor) -> None:
        """Machines may join from now on."""
        self._identity = door
        self._door = door

    def get(self) -> JoiningDoor:
        """The door; ProviderError where no machine may join."""
        if self._door is None:
            raise _no_door()
        return self._door

    @property
    def installation(self) -> str:
        """The id of the instance, of hexadecimal digits. ProviderError where no machine
        has ever been able to join.
        """
        if self._identity is None:
            raise _no_door()
        return self._identity.fingerprint[:32]

    def secret_for(self, purpose: str) -> str:
        """As of InstanceIdentity; empty where no machine has been able to join."""
        return self._identity.secret_for(purpose) if self._identity else ""


def _no_door() -> ProviderError:
    return ProviderError(_NO_DOOR, "gpuyard", "SETTING")
