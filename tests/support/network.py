"""Network namespaces, each with a cable to this machine that can be cut: other machines,
as far as the network is concerned.
"""

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.support.components import require
from tests.support.programs import run_program


class Namespace:
    """A namespace. Its cable ends here at `address`, and there at `own_address`."""

    def __init__(self, number: int) -> None:
        self.name = f"gy-{uuid.uuid4().hex[:8]}"
        # Beyond what a private network of the test machine is likely to use.
        self.number = number
        self._net = f"198.18.{number}"
        self.address = f"{self._net}.1"
        self.own_address = f"{self._net}.2"
        self._cable = f"gy{self.name[3:]}"

    @property
    def prefix(self) -> Sequence[str]:
        """The words that put a program into it."""
        return ("ip", "netns", "exec", self.name)

    def make(self) -> None:
        far = f"{self._cable}x"
        _ip("netns", "add", self.name)
        _ip("link", "add", self._cable, "type", "veth", "peer", "name", far)
        _ip("link", "set", far, "netns", self.name)
        _ip("addr", "add", f"{self.address}/24", "dev", self._cable)
        _ip("-n", self.name, "addr", "add", f"{self.own_address}/24", "dev", far)
        _ip("-n", self.name, "link", "set", "lo", "up")
        _ip("-n", self.name, "link", "set", far, "up")
        self.mend()

    def cut(self) -> None:
        """Cut the cable: packets are lost, and nobody is told."""
        _ip("link", "set", self._cable, "down")

    def mend(self) -> None:
        """Mend the cable."""
        _ip("link", "set", self._cable, "up")

    def connect(self, other: "Namespace") -> None:
        """Lay a cable to another namespace, over which both reach each other."""
        near = f"to{other.number}"
        far = f"to{self.number}"
        ends = ("type", "veth", "peer", "name", far, "netns", other.name)
        _ip("link", "add", near, "netns", self.name, *ends)
        for one, end, peer in ((self, near, other), (other, far, self)):
            _ip("-n", one.name, "link", "set", end, "up")
            route = (f"{peer.own_address}/32", "dev", end, "src", one.own_address)
            _ip("-n", one.name, "route", "add", *route)

    def remove(self) -> None:
        for words in (("link", "del", self._cable), ("netns", "del", self.name)):
            # What is gone already is well.
            subprocess.run(["ip", *words], check=False, capture_output=True)


def _ip(*words: str) -> None:
    run_program(["ip", *words])


@contextmanager
def namespaces(count: int) -> Iterator[list[Namespace]]:
    """Some namespaces, removed afterwards."""
    is_root = os.geteuid() == 0
    require("network-namespaces", is_root and shutil.which("ip") is not None)
    # Tests may run beside each other.
    first = os.getpid() % 60 * 4
    made = [Namespace(first + number) for number in range(count)]
    try:
        for one in made:
            one.make()
        yield made
    finally:
        for one in made:
            one.remove()
