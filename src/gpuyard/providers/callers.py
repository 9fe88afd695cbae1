"""Machines that have joined: what their agents may do on a connection.

Who calls is known by its certificate, before the agent has said anything.
"""

from pathlib import Path
from typing import Protocol

from gpuyard.domain import wire
from gpuyard.domain.joining import Machine
from gpuyard.storage.blobs import Blobs


class Caller(Protocol):
    """The machine at the other end. What it may not do is a RefusedError."""

    @property
    def machine(self) -> Machine: ...

    @property
    def name(self) -> str: ...

    @property
    def blobs(self) -> Blobs:
        """Where its checkpoints are stored."""
        ...

    @property
    def scratch(self) -> Path:
        """A folder for a checkpoint until it is whole: it may be larger than what the
        system has for temporary files.
        """
        ...

    def is_removed(self) -> bool:
        """Whether it is no longer part of the instance."""
        ...

    def check_fetch(self, request: wire.FetchContents) -> None:
        """May it have these contents?"""
        ...

    def check_store(self, request: wire.StoreBlob) -> None:
        """May it store this checkpoint?"""
        ...

    def stored(self, request: wire.StoreBlob) -> None:
        """It has stored this checkpoint."""
        ...

    async def take_item(self, request: wire.TakeItem) -> wire.ItemGiven:
        """Its worker has done an item and wants the next one."""
        ...

    def blob_to_resume(self, attempt_id: str) -> str:
        """The SHA-256 of the checkpoint from which its attempt resumes."""
        ...
