"""AWS in this process: moto, with what it lacks added.

moto knows no client tokens, takes any type in any zone and any spot price, and has
neither prices nor quotas. All its images have 15 GB. It also never refuses a call.
"""

import json
import re
import socket
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pytest

from tests.support.cost_explorer import BilledUsage, cost_and_usage
from tests.support.ports import free_port

ACCOUNT = "123456789012"
IMAGE = "ami-03cf127a"
KEYS = {"access_key_id": "AKIAEXAMPLE", "secret_access_key": "a-secret-key"}
SPOT_PRICE = "0.4"
Start = Callable[..., Any]
Application = Callable[[dict[str, Any], Start], Iterable[bytes]]
_REGION = re.compile(r"Credential=[^/]+/\d+/([\w-]+)/")


@dataclass
class Ec2:
    """A region-wide AWS whose answers a test decides.

    `quotas`: vCPUs by code. `denied`: actions the account lacks. `sold_out`: types
    without capacity. `errors`: by operation, the codes of its next answers.
    `lost_replies`: how many replies, by operation, get lost after the call was carried
    out. `image_gb`: how large the root disks of images are. `page`: how many machines,
    or groups of a bill, a page has at most. `calls` and `asked`: how often,
    and with what at last, each operation was called; `launches`: with what machines
    were started; `on_launch` and `on_end` hear of them; `actions`: which permissions all that needs.
    """

    endpoint: str = ""
    on_launch: Callable[[str, dict[str, str]], None] | None = None
    on_end: Callable[[str], None] | None = None
    actions: set[str] = field(default_factory=set[str])
    calls: Counter[str] = field(default_factory=Counter[str])
    quotas: dict[str, float] = field(default_factory=dict[str, float])
    denied: set[str] = field(default_factory=set[str])
    sold_out: set[str] = field(default_factory=set[str])
    prices: dict[str, str] = field(default_factory=lambda: {"g5.xlarge": "1.006"})
    errors: defaultdict[str, deque[str]] = field(
        default_factory=lambda: defaultdict[str, deque[str]](deque)
    )
    lost_replies: Counter[str] = field(default_factory=Counter[str])
    image_gb: int = 15
    page: int = 0
    bill: list[BilledUsage] = field(default_factory=list[BilledUsage])
    asked: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    launches: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    tokens: dict[tuple[str, str], tuple[dict[str, str], bytes]] = field(
        default_factory=dict[tuple[str, str], tuple[dict[str, str], bytes]]
    )

    def settings(self, **values: Any) -> dict[str, Any]:
        """What `[providers.aws]` says to reach it."""
        return {
            **KEYS,
            "endpoint": self.endpoint,
            "regions": ["us-east-1"],
            "types": ["g5.xlarge"],
            **values,
        }

    @property
    def environment(self) -> dict[str, str]:
        """What a gpuyard server needs to reach it, beside `[providers.aws]`."""
        prefix = "GPUYARD_PROVIDERS__AWS__"
        return {
            "GPUYARD_SERVER__AGENTS_LISTEN": f"127.0.0.1:{free_port(2)}",
            f"{prefix}ENDPOINT": self.endpoint,
            **{f"{prefix}{name.upper()}": value for name, value in KEYS.items()},
        }

    def backend(self, region: str = "us-east-1") -> Any:
        """moto's state of a region."""
        from moto.ec2.models import ec2_backends

        return ec2_backends[ACCOUNT][region]

    def machines(self, region: str = "us-east-1") -> list[Any]:
        """All machines of a region, as moto has them."""
        return [
            one
            for reservation in self.backend(region).all_reservations()
            for one in reservation.instances
        ]

    def reset(self) -> None:
        """Be as new, at the same address."""
        self.__dict__.update(Ec2(endpoint=self.endpoint).__dict__)
        self.forget_machines()

    def forget_machines(self) -> None:
        """Forget the machines of all regions; a new moto would take a second."""
        from moto.ec2.models import ec2_backends

        for backend in ec2_backends[ACCOUNT].values():
            backend.reservations.clear()
            backend.volumes.clear()

    def interrupt(self, machine_id: str, region: str = "us-east-1") -> None:
        """Take a spot machine back."""
        backend = self.backend(region)
        backend.terminate_instances([machine_id])
        reason = backend.get_instance(machine_id).state_reason
        reason.code = "Server.SpotInstanceTermination"
        reason.message = "Server.SpotInstanceTermination: Spot instance termination"


class Gaps:
    """Answers what moto cannot, and passes everything else on."""

    def __init__(self, application: Application, ec2: Ec2) -> None:
        self._application = application
        self._ec2 = ec2
        self._one = threading.Lock()

    def __call__(self, environ: dict[str, Any], start: Start) -> Iterable[bytes]:
        ec2 = self._ec2
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = BytesIO(body)
        (service, operation, fields) = _question(environ, body)
        with self._one:
            ec2.calls[operation] += 1
            ec2.asked[operation] = fields
            code = self._refusal(service, operation, fields)
            if code:
                return _refuse(start, service, code)
            answer = self._answered(environ, operation, fields)
            if answer is None:
                answer = self._passed_on(environ, operation, fields)
            if ec2.lost_replies[operation] > 0:
                ec2.lost_replies[operation] -= 1
                _cut(environ)
        (status, headers, data) = answer
        start(status, headers)
        return [data]

    def _refusal(self, service: str, operation: str, fields: dict[str, str]) -> str:
        ec2 = self._ec2
        action = f"{service}:{operation}"
        ec2.actions.add(action)
        if "TagSpecification.1.ResourceType" in fields:
            ec2.actions.add("ec2:CreateTags")
        if action in ec2.denied:
            return f"UnauthorizedOperation/{action}"
        if ec2.errors[operation]:
            return ec2.errors[operation].popleft()
        if operation != "RunInstances":
            return ""
        if "ec2:CreateTags" in ec2.denied:
            return "UnauthorizedOperation/ec2:CreateTags"
        if "DryRun" in fields and fields["DryRun"] == "true":
            return ""
        return self._unfit(fields)

    def _unfit(self, fields: dict[str, str]) -> str:
        """Why EC2 would not start this machine now."""
        name = fields["InstanceType"]
        if name in self._ec2.sold_out:
            return "InsufficientInstanceCapacity"
        limit = fields.get("InstanceMarketOptions.SpotOptions.MaxPrice")
        if limit is not None and float(limit) < float(SPOT_PRICE):
            return "SpotMaxPriceTooLow"
        zone = fields.get("Placement.AvailabilityZone", "")
        return "Unsupported" if zone and not _offers(name, zone) else ""

    def _answered(
        self, environ: dict[str, Any], operation: str, fields: dict[str, str]
    ) -> Any:
        """What moto has no answer for."""
        ec2 = self._ec2
        if operation == "GetParameter":
            return _json({"Parameter": {"Name": fields["Name"], "Value": IMAGE}})
        if operation == "GetServiceQuota":
            value = ec2.quotas.get(fields["QuotaCode"], 1000.0)
            return _json({"Quota": {"Value": value}})
        if operation == "GetCostAndUsage":
            return _json(cost_and_usage(ec2.bill, fields, ec2.page))
        if operation == "GetProducts":
            return _json({"PriceList": list(_products(ec2.prices))})
        return None

    def _passed_on(
        self, environ: dict[str, Any], operation: str, fields: dict[str, str]
    ) -> Any:
        """moto's answer; the first one again to a client token that it has had."""
        ec2 = self._ec2
        if ec2.page and operation == "DescribeInstances":
            body = urlencode({**fields, "MaxResults": str(ec2.page)}).encode()
            environ["wsgi.input"] = BytesIO(body)
            environ["CONTENT_LENGTH"] = str(len(body))
        if operation != "RunInstances" or fields.get("DryRun") == "true":
            (status, headers, data) = self._moto(environ)
            if status.startswith("200"):
                self._tell(operation, fields, data)
            if operation == "DescribeImages":
                size = f"<volumeSize>{ec2.image_gb}<".encode()
                data = data.replace(b"<volumeSize>15<", size)
            return status, headers, data
        key = _region(environ), fields["ClientToken"]
        known = ec2.tokens.get(key)
        if known is not None:
            (before, data) = known
            if before != fields:
                return _error("ec2", "IdempotentParameterMismatch")
            return "200 OK", [("Content-Type", "text/xml")], data
        answer = self._moto(environ)
        if answer[0].startswith("200"):
            self._tell(operation, fields, answer[2])
            ec2.tokens[key] = fields, answer[2]
            ec2.launches.append(fields)
        return answer

    def _tell(self, operation: str, fields: dict[str, str], answer: bytes) -> None:
        """Let the machines of the test start or end."""
        ec2 = self._ec2
        machines = re.findall(r"<instanceId>(i-\w+)<", answer.decode())
        if operation == "RunInstances" and ec2.on_launch:
            ec2.on_launch(machines[0], fields)
        if operation == "TerminateInstances" and ec2.on_end:
            for machine in machines:
                ec2.on_end(machine)

    def _moto(self, environ: dict[str, Any]) -> tuple[str, list[Any], bytes]:
        said: list[Any] = []

        def start(status: str, headers: list[Any], *_: Any) -> None:
            said[:] = [status, headers]

        data = b"".join(self._application(environ, start))
        data = data.replace(b"0.00001<", f"{SPOT_PRICE}<".encode())
        headers = [one for one in said[1] if one[0].lower() != "content-length"]
        return said[0], headers, data


def _question(environ: dict[str, Any], body: bytes) -> tuple[str, str, dict[str, str]]:
    """The service, the operation and its parameters."""
    target = environ.get("HTTP_X_AMZ_TARGET", "")
    if not target:
        fields = dict(parse_qsl(body.decode()))
        return "ec2", fields.get("Action", ""), fields
    (name, _, operation) = target.partition(".")
    services = {
        "AmazonSSM": "ssm",
        "AWSPriceListService": "pricing",
        "AWSInsightsIndexService": "ce",
    }
    return services.get(name, "servicequotas"), operation, json.loads(body or b"{}")


def _region(environ: dict[str, Any]) -> str:
    found = _REGION.search(environ.get("HTTP_AUTHORIZATION", ""))
    return found[1] if found else ""


def _offers(name: str, zone: str) -> bool:
    from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS

    rows = INSTANCE_TYPE_OFFERINGS["availability-zone"].get(zone[:-1], ())
    return any(row["InstanceType"] == name and row["Location"] == zone for row in rows)


def _products(prices: dict[str, str]) -> Iterator[str]:
    for name, price in prices.items():
        dimension = {"unit": "Hrs", "pricePerUnit": {"USD": price}}
        product = {
            "product": {"attributes": {"instanceType": name}},
            "terms": {"OnDemand": {"A.B": {"priceDimensions": {"A.B.C": dimension}}}},
        }
        yield json.dumps(product)


def _json(answer: Any, status: str = "200 OK") -> tuple[str, list[Any], bytes]:
    headers = [("Content-Type", "application/x-amz-json-1.1")]
    return status, headers, json.dumps(answer).encode()


def _error(service: str, code: str) -> tuple[str, list[Any], bytes]:
    (code, _, action) = code.partition("/")
    status = {
        "UnauthorizedOperation": "403 Forbidden",
        "RequestLimitExceeded": "503 Service Unavailable",
        "InternalError": "500 Internal Server Error",
    }.get(code, "400 Bad Request")
    why = f"said {code}"
    if action:
        why = (
            "You are not authorized to perform this operation. User:"
            f" arn:aws:iam::{ACCOUNT}:user/ana is not authorized to perform: {action} on"
            " resource: * because no identity-based policy allows it"
        )
    if service != "ec2":
        name = "AccessDeniedException" if action else code
        return _json({"__type": name, "message": why}, status)
    text = (
        f"<Response><Errors><Error><Code>{code}</Code><Message>{why}</Message></Error>"
        "</Errors><RequestID>1</RequestID></Response>"
    )
    return status, [("Content-Type", "text/xml")], text.encode()


def _refuse(start: Start, service: str, code: str) -> Iterable[bytes]:
    (status, headers, data) = _error(service, code)
    start(status, headers)
    return [data]


def _cut(environ: dict[str, Any]) -> None:
    """End the connection without a reply."""
    with suppress(OSError):
        environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
    raise ConnectionError("the reply is lost")


@contextmanager
def _served(ec2: Ec2) -> Iterator[None]:
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log(self, type: str, message: str, *arguments: Any) -> None:
            """Nothing: a lost reply would write a traceback."""

    application = Gaps(DomainDispatcherApplication(create_backend_app), ec2)
    server = make_server(
        "127.0.0.1", 0, application, threaded=True, request_handler=Quiet
    )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    ec2.endpoint = f"http://127.0.0.1:{server.server_port}"
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="session")
def ec2_server() -> Iterator[Ec2]:
    made = Ec2()
    with _served(made):
        yield made


@pytest.fixture
def ec2(ec2_server: Ec2, monkeypatch: pytest.MonkeyPatch) -> Ec2:
    """An account of AWS without machines."""
    for name in ("CONFIG_FILE", "SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(f"AWS_{name}", "/nonexistent")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    ec2_server.reset()
    return ec2_server
