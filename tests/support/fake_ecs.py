"""Alibaba Cloud's ECS in this process for tests: the actions that a renter of machines
meets, with real signatures, stock, quotas, prices, tags and tokens.

Actions, parameters and error codes are those that Alibaba documents, and no others. A
machine is only a record; `on_launch` may start something that plays it.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from typing import Any

from tests.support import fake_ecs_actions, fake_ecs_http
from tests.support.acs3 import SignatureError, check_signature
from tests.support.fake_ecs_machines import ZONES, Json, Machine, RefusalError


@dataclass
class Fault:
    """What goes wrong with the next `left` requests of an action (empty: of any).

    `what`: `hang`; `cut`: the request is carried out and the connection is closed
    without an answer; `lose`: closed before; an HTTP status, whose body is HTML; or a
    RefusalError.
    """

    what: Any
    action: str = ""
    left: int | None = 1


@dataclass(repr=False)
class FakeEcs:
    """A context manager; clients come to `endpoint`.

    `stock` is how many machines of a type a zone has left, by zone, type and whether it
    is spot; what is not in it is without end. `not_sold` are zones with types that they
    never have. `prices` are per hour by type,
    `spot_prices` by zone and type. `forbidden` are actions, such as
    `ecs:DeleteInstances`, that the account may not call. `quota` is how many vCPUs it
    may have, on demand and spot each. `per_s` is how many requests a second each action
    takes. `latency_s` is how long an answer takes.

    `bill` are the items of bills (tests/support/fake_ecs_bills.py), `bill_refusal` is
    the code with which they are refused.

    `calls` are the requests that were let in, `refused` counts error codes, `actions`
    are the rights that were used.
    """

    access_key_id: str = "LTAI5tFakeKeyOfTests"
    access_key_secret: str = "the-secret-of-the-fake-key"
    security_token: str = ""
    region: str = "cn-hangzhou"
    stock: dict[tuple[str, str, bool], int] = field(default_factory=dict[Any, int])
    not_sold: set[tuple[str, str]] = field(default_factory=set[Any])
    prices: dict[str, float] = field(default_factory=dict[str, float])
    spot_prices: dict[tuple[str, str], float] = field(default_factory=dict[Any, float])
    forbidden: set[str] = field(default_factory=set[str])
    quota: int = 1000
    per_s: float | None = None
    latency_s: float = 0.0
    ahead_s: float = 0.0
    on_launch: Callable[[Machine, str], None] | None = None
    on_end: Callable[[Machine], None] | None = None
    bill: list[Json] = field(default_factory=list[Json])
    bill_refusal: str = ""
    machines: dict[str, Machine] = field(default_factory=dict[str, Machine])
    calls: list[tuple[str, Json]] = field(default_factory=list[Any])
    refused: Counter[str] = field(default_factory=Counter[str])
    actions: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        self.lock = threading.RLock()
        self.tokens: dict[str, tuple[Mapping[str, str], list[str]]] = {}
        self.expired = False
        self.security_groups = {
            region: f"sg-{region.replace('-', '')}" for region in ZONES
        }
        self.vswitches = {
            f"vsw-{zone.replace('-', '')}": zone
            for zones in ZONES.values()
            for zone in zones
        }
        self._faults: list[Fault] = []
        self._over = threading.Event()
        self._nonces: set[str] = set()
        self._allowed: dict[str, tuple[float, float]] = {}

    def __enter__(self) -> "FakeEcs":
        self._server = ThreadingHTTPServer(
            ("127.0.0.1", 0), fake_ecs_http.handler(self)
        )
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(
            target=self._server.serve_forever, args=(0.02,), name="ecs", daemon=True
        ).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()

    def settings(self, **more: Any) -> Json:
        """What `[providers.alibaba]` says in order to come here."""
        return {
            "access_key_id": self.access_key_id,
            "access_key_secret": self.access_key_secret,
            "region_id": self.region,
            "security_group_id": self.security_groups[self.region],
            "vswitch_id": next(iter(self.vswitches)),
            "endpoint": self.endpoint,
            "timeout_s": 10.0,
            **more,
        }

    def both_zones(self) -> Json:
        """The setting `vswitches` for all zones of the region."""
        return {
            zone: vswitch
            for vswitch, zone in self.vswitches.items()
            if zone in ZONES[self.region]
        }

    # --- what happens to machines ---

    def named(self, owner: str) -> list[Machine]:
        """The machines that have the tag of this owner."""
        return [
            machine
            for machine in self.machines.values()
            if machine.tags.get("gpuyard-owner") == owner
        ]

    def run(self, machine: Machine) -> None:
        """It has booted."""
        machine.status = "Running"
        machine.next_statuses.clear()

    def power_off(self, machine: Machine) -> None:
        """Its system shuts down by itself. It stays, and costs."""
        machine.status = "Stopping"
        machine.next_statuses = ["Stopped"]

    def interrupt(self, machine: Machine) -> None:
        """A spot machine is to be taken back; that is told five minutes before."""
        machine.locked_for = "Recycling"

    def end(self, machine: Machine) -> None:
        """It is deleted: by its renter, by its release time, or taken back."""
        if self.machines.pop(machine.id, None) is None:
            return
        key = (machine.zone, machine.type, machine.spot)
        if key in self.stock:
            self.stock[key] += 1
        if self.on_end is not None:
            self.on_end(machine)

    def release_due(self, now: float) -> None:
        """Delete the machines whose release time has come."""
        for machine in list(self.machines.values()):
            if machine.released_at is not None and machine.released_at <= now:
                self.end(machine)

    # --- what goes wrong ---

    def fault(self, what: Any, action: str = "", times: int | None = 1) -> None:
        """See Fault."""
        self._faults.append(Fault(what, action, times))

    def refuse(self, code: str, action: str = "", times: int | None = 1) -> None:
        """Answer with this error."""
        self.fault(RefusalError(code), action, times)

    def meet(self, action: str) -> Any:
        """What goes wrong with this request; None for nothing."""
        with self.lock:
            for fault in self._faults:
                if fault.left != 0 and fault.action in ("", action):
                    fault.left = None if fault.left is None else fault.left - 1
                    return fault.what
        return None

    def wait(self, seconds: float) -> None:
        """Let time pass, unless all is over."""
        self._over.wait(seconds)

    # --- the API ---

    def answer(self, target: str, headers: Mapping[str, str], body: bytes) -> Json:
        """What an action returns; RefusalError. `headers` have names in small letters.

        The body is empty: arguments are in the query.
        """
        self._check_caller(target, headers, body)
        action = headers.get("x-acs-action", "")
        version = headers.get("x-acs-version", "")
        serve = fake_ecs_actions.SERVED.get((action, version))
        if serve is None:
            raise RefusalError(
                "InvalidAction.NotFound", f"There is no action {action} {version}.", 404
            )
        parameters = fake_ecs_http.parameters(target, body)
        unknown = sorted(
            name for name in parameters if name.split(".")[0] not in serve.parameters
        )
        if unknown:
            raise RefusalError("UnknownParameter", f"{action} takes no {unknown[0]}.")
        self._throttle(action)
        right = f"{serve.product}:{action}"
        self._check_right(right)
        with self.lock:
            self.calls.append((action, parameters))
            self.actions.add(right)
        return serve.work(self, parameters)

    def _check_caller(
        self, target: str, headers: Mapping[str, str], body: bytes
    ) -> None:
        now = time.time() + self.ahead_s
        secrets = {self.access_key_id: self.access_key_secret}
        try:
            check_signature("POST", target, headers, body, secrets, now)
        except SignatureError as error:
            status = 404 if error.code.endswith("NotFound") else 400
            raise RefusalError(error.code, error.message, status) from None
        nonce = headers.get("x-acs-signature-nonce", "")
        with self.lock:
            if not nonce or nonce in self._nonces:
                raise RefusalError("SignatureNonceUsed", "The nonce was used already.")
            self._nonces.add(nonce)
        if headers.get("x-acs-security-token", "") != self.security_token:
            raise RefusalError("InvalidSecurityToken.Malformed", "No such token.")
        if self.expired:
            raise RefusalError(
                "InvalidSecurityToken.Expired", "Specified SecurityToken is expired."
            )

    def _throttle(self, action: str) -> None:
        """A bucket for each action, which holds the requests of one second."""
        if self.per_s is None:
            return
        now = time.monotonic()
        with self.lock:
            (left, seen) = self._allowed.get(action, (self.per_s, now))
            left = min(left + (now - seen) * self.per_s, self.per_s)
            is_allowed = left >= 1
            self._allowed[action] = (left - is_allowed, now)
        if not is_allowed:
            raise RefusalError(
                "Throttling.User",
                "Request was denied due to user flow control.",
            )

    def _check_right(self, right: str) -> None:
        if right in self.forbidden:
            raise RefusalError(
                "Forbidden.RAM",
                "User not authorized to operate on the specified resource, or this API"
                " doesn't support RAM.",
                403,
                AccessDeniedDetail={"AuthAction": right},
            )
