"""For how long the server has been silent.

On a rented machine, what ends the machine when that is too long reads it from a file:
it must work when this agent does not (`providers/instances/cloud_init.py`).
"""

import time
from contextlib import suppress
from pathlib import Path

from gpuyard.config.boot_clock import boot_clock_s
from gpuyard.node.agent_files import last_contact
from gpuyard.node.link import Heartbeat


class ServerContact:
    """When the server last said something.

    The time is kept in the file `kept`, so that the count continues if the agent is
    killed, and on a rented machine in `heartbeat_file`, on the boot clock.
    """

    def __init__(self, kept: Path, heartbeat_file: Path | None = None) -> None:
        self._kept = kept
        self._heartbeat_file = heartbeat_file
        self._silent_since = last_contact(kept)
        self._heartbeat: Heartbeat | None = None

    @property
    def is_linked(self) -> bool:
        """Whether a server has welcomed this agent on the link that it has."""
        return self._heartbeat is not None

    def welcomed(self, heartbeat: Heartbeat) -> None:
        """A link has begun; these are its heartbeats."""
        self._heartbeat = heartbeat
        self.note()

    def received(self) -> None:
        """Note that a message was received; ConnectionError when that is too late."""
        if self._heartbeat:
            self._heartbeat.received()

    def link_ended(self) -> None:
        """The link has ended."""
        self.note()
        self._heartbeat = None

    def note(self) -> None:
        """Keep the time of the last message in the files. On a full disk it is lost
        with this agent.
        """
        if self._heartbeat is None:
            return
        self._silent_since = self._heartbeat.last_received_at
        with suppress(OSError):
            self._kept.write_text(str(self._silent_since))
        if self._heartbeat_file:
            heard_at = boot_clock_s() - self.silent_s()
            with suppress(OSError):
                _replace(self._heartbeat_file, f"{heard_at:.2f}\n")

    def silent_s(self) -> float:
        """For how many seconds the server has said nothing."""
        if self._heartbeat:
            self._silent_since = self._heartbeat.last_received_at
        return time.monotonic() - self._silent_since


def _replace(path: Path, text: str) -> None:
    """Whoever reads the file sees the old text or the new one."""
    draft = path.with_name(f"{path.name}.new")
    draft.write_text(text)
    draft.rename(path)
