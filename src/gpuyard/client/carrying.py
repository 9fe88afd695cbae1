"""Hands the environment of this process over to the server, for the jobs that a client
submits: once as long as it stays the same, however many jobs there are.
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

from gpuyard.client.bodies import OTHER_FORMS
from gpuyard.client.calls import Call, Json
from gpuyard.client.connection import Address
from gpuyard.config.dialling import is_loopback, loopback_id
from gpuyard.domain.carried_environment import CarriedEnvironment, carried_from
from gpuyard.domain.own_nodes import OWN_NODES

# The server keeps an environment for a day after it was handed over, and longer while
# there are jobs that carry it.
_AGAIN_S = 3600.0


@dataclass(frozen=True, slots=True)
class Stored:
    """What the server at `address` stored at the time `at` (monotonic seconds).

    `digest` is None where jobs carry no environment.
    """

    environment: CarriedEnvironment
    address: Address
    at: float
    digest: str | None


class EnvironmentCarrier:
    """What one client has handed over; `stored` is the answer to `request`."""

    def __init__(self) -> None:
        self.stored: Stored | None = None

    def request(self, address: Address, bodies: Sequence[Any]) -> Call[Stored] | None:
        """The call to make before `bodies` are submitted; None if none is needed."""
        if not any(_takes_environment(address, body) for body in bodies):
            return None
        environment = carried_from(os.environ)
        if self._is_stored(environment, address):
            return None

        def read(answer: Any) -> Stored:
            return Stored(environment, address, time.monotonic(), answer["digest"])

        body = {
            "host": loopback_id(),
            "variables": environment.variables,
            "keys": environment.keys,
        }
        path = "/api/v1/environments"
        return Call("POST", path, read, body=body, done_once=True, submits=True)

    def _is_stored(self, environment: CarriedEnvironment, address: Address) -> bool:
        stored = self.stored
        if stored is None or stored.address != address:
            return False
        is_recent = time.monotonic() - stored.at < _AGAIN_S
        return is_recent and stored.environment == environment

    def filled_in(self, bodies: Sequence[Any]) -> list[Any]:
        """`bodies`, each job with the environment that it carries."""
        stored = self.stored
        if stored is None or stored.digest is None:
            return list(bodies)
        return [
            {**body, "carried_environment": stored.digest}
            if _takes_environment(stored.address, body)
            else body
            for body in bodies
        ]


def runs_on_this_host(address: Address, body: Any) -> bool:
    """Whether it is a command that can run as a process of this host, if the server at
    `address` is here.
    """
    if not isinstance(body, Mapping) or OTHER_FORMS & set(cast("Json", body)):
        return False
    given = cast("Json", body)
    is_elsewhere = given.get("image") or given.get("provider") not in (None, OWN_NODES)
    return bool(given.get("command")) and not is_elsewhere and _is_here(address)


def _takes_environment(address: Address, body: Any) -> bool:
    if not runs_on_this_host(address, body):
        return False
    return not (body.get("clean_env") or "carried_environment" in body)


def _is_here(address: Address) -> bool:
    if address.socket:
        return True
    try:
        return is_loopback(urlsplit(address.url).hostname)
    except ValueError:
        return False  # the call itself says what is wrong with it
