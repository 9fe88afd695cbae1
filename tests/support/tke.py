"""Tencent Cloud in this process for tests: the part of its API that TKE's users meet,
signatures checked for real.

An error is HTTP 200, as there; actions and their parameters are those that Tencent
documents, and no others.
"""

import base64
import hashlib
import hmac
import json
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

from tests.support.kubernetes import Cluster, Node
from tests.support.tls import Door

Json = dict[str, Any]
POOL = "tke.cloud.tencent.com/nodepool-id"
_CLOCK_S = 300
_FILTERS = {
    "instance-type",
    "instance-charge-type",
    "zone",
    "instance-family",
    "sort-keys",
}


class RefusalError(Exception):
    """Tencent's code and message."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass
class Fault:
    """One thing that goes wrong with the next `left` requests of an action (empty:
    any).

    `what`: `hang`, `drip`, `stall` (in the middle), `cut`, `half`, an HTTP status, or a
    RefusalError.
    """

    what: Any
    action: str = ""
    left: int | None = 1


@dataclass(repr=False)
class Tke:
    """A context manager. `cluster` is what its kubeconfigs lead to; `ahead_s` is how
    wrong its clock is; `calls` are the requests that were let in, `headers` those of
    all. `kubeconfig` may take the place of the real one; `forbidden` are actions that
    the account's policy does not allow.
    """

    cluster: Cluster | None = None
    secret_id: str = "AKIDz8krbsJ5yKBZQpn74WFkmLPx3EXAMPLE"
    secret_key: str = "Gu5t9xGARNpq86cd98joQYCN3EXAMPLE"
    region: str = "ap-guangzhou"
    cluster_id: str = "cls-65r1c5nu"
    pools: list[Json] = field(default_factory=list[Json])
    launches: dict[str, Json] = field(default_factory=dict[str, Json])
    market: list[Json] = field(default_factory=list[Json])
    ahead_s: float = 0.0
    content_type: str = "application/json"
    kubeconfig: Callable[[], str] | None = None
    forbidden: set[str] = field(default_factory=set[str])
    calls: list[tuple[str, Json]] = field(default_factory=list[Any])
    headers: list[Mapping[str, str]] = field(default_factory=list[Any])

    def __post_init__(self) -> None:
        self._faults: list[Fault] = []
        self._over = threading.Event()
        self._lock = threading.Lock()
        self.token = ""

    def __enter__(self) -> "Tke":
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(
            target=self._server.serve_forever, name="tke", daemon=True
        ).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._server.shutdown()
        self._server.server_close()

    def settings(self, home: Path, **more: Any) -> Json:
        """What a provider needs in order to come here."""
        return {
            "home": str(home),
            "secret_id": self.secret_id,
            "secret_key": self.secret_key,
            "region": self.region,
            "cluster_id": self.cluster_id,
            "endpoint": self.endpoint,
            "namespace": "default",
            "poll_s": 0.1,
            "timeout_s": 5.0,
            **more,
        }

    # --- what there is ---

    def add_native_pool(
        self, name: str, *types: str, most: int, scales: bool = True, **fields: Any
    ) -> str:
        """A pool of native nodes; its id."""
        native = {
            "InstanceTypes": list(types),
            "EnableAutoscaling": scales,
            "InstanceChargeType": "POSTPAID_BY_HOUR",
            "Scaling": {"MinReplicas": 0, "MaxReplicas": most},
            "Replicas": 0,
        }
        return self._add_pool(name, {"Type": "Native", "Native": native} | fields)

    def add_regular_pool(
        self,
        name: str,
        *types: str,
        most: int,
        scales: bool = True,
        spot: bool = False,
        **fields: Any,
    ) -> str:
        """A pool of CVM machines, by way of a launch configuration; its id."""
        launch = f"asc-{name}"
        self.launches[launch] = {
            "LaunchConfigurationId": launch,
            "InstanceType": types[0],
            "InstanceTypes": [*types],
            "InstanceChargeType": "SPOTPAID" if spot else "POSTPAID_BY_HOUR",
        }
        regular = {
            "LaunchConfigurationId": launch,
            "AutoscalingGroupStatus": "enabled" if scales else "disabled",
            "MaxNodesNum": most,
            "MinNodesNum": 0,
            "DesiredNodesNum": 0,
        }
        return self._add_pool(name, {"Type": "Regular", "Regular": regular} | fields)

    def _add_pool(self, name: str, fields: Json) -> str:
        self.pools.append(
            {
                "ClusterId": self.cluster_id,
                "NodePoolId": f"np-{name}",
                "Name": name,
                "Labels": None,
                "Taints": None,
                "LifeState": "normal",
                "Unschedulable": False,
                **fields,
            }
        )
        return f"np-{name}"

    def sell(
        self,
        kind: str,
        price: float,
        *,
        spot: bool = False,
        zone: str = "ap-guangzhou-6",
        left: bool = True,
        gpus: float = 1,
        cpus: int = 8,
        memory_gb: int = 32,
    ) -> None:
        """Have an instance type on the market."""
        self.market.append(
            {
                "Zone": zone,
                "InstanceType": kind,
                "InstanceChargeType": "SPOTPAID" if spot else "POSTPAID_BY_HOUR",
                "Cpu": cpus,
                "Memory": memory_gb,
                "Gpu": int(gpus),
                "GpuCount": gpus,
                "Status": "SELL" if left else "SOLD_OUT",
                "Price": {
                    "UnitPrice": price * 1.25,
                    "UnitPriceDiscount": price,
                    "ChargeUnit": "HOUR",
                },
            }
        )

    # --- what goes wrong ---

    def fault(self, what: Any, action: str = "", times: int | None = 1) -> None:
        """See Fault."""
        self._faults.append(Fault(what, action, times))

    def refuse(
        self, code: str, message: str = "no", action: str = "", times: int | None = None
    ) -> None:
        """Answer with this error from now on."""
        self.fault(RefusalError(code, message), action, times)

    def lift(self) -> None:
        """Nothing goes wrong any more."""
        self._faults.clear()

    def meet(self, action: str) -> Any:
        """What goes wrong with this request; None for nothing."""
        with self._lock:
            for fault in self._faults:
                if fault.left != 0 and fault.action in ("", action):
                    fault.left = None if fault.left is None else fault.left - 1
                    return fault.what
        return None

    def wait(self, seconds: float) -> bool:
        """False once all is over."""
        return not self._over.wait(seconds)

    # --- the API ---

    def answer(self, headers: Mapping[str, str], body: bytes) -> Json:
        """What an action returns; RefusalError."""
        service = self._check_signature(headers, body)
        action = headers["X-TC-Action"]
        version = headers["X-TC-Version"]
        serve = _SERVED.get((service, version, action))
        if serve is None:
            raise RefusalError(
                "InvalidAction",
                f"The action {action} of {service} {version} does not exist.",
            )
        work, known = serve
        parameters: Json = json.loads(body)
        unknown = sorted(set(parameters) - known)
        if unknown:
            raise RefusalError(
                "UnknownParameter", f"The parameter `{unknown[0]}` is not recognized."
            )
        if headers.get("X-TC-Region") != self.region:
            raise RefusalError(
                "UnsupportedRegion",
                f"The region {headers.get('X-TC-Region')} is not supported.",
            )
        if action in self.forbidden:
            raise RefusalError(
                "UnauthorizedOperation.CamNoAuth",
                f"you are not authorized to perform operation ({action})",
            )
        self.calls.append((action, parameters))
        return work(self, parameters)

    def _check_signature(self, headers: Mapping[str, str], body: bytes) -> str:
        """As Tencent's "Signature v3" describes it; the service that was signed for."""
        found = re.fullmatch(
            r"TC3-HMAC-SHA256 Credential=([^/]+)/([\d-]+)/(\w+)/tc3_request,"
            r" SignedHeaders=([\w;-]+), "
            r"Signature=([0-9a-f]{64})",
            headers.get("Authorization", ""),
        )
        if not found:
            raise RefusalError(
                "AuthFailure.InvalidAuthorization",
                "The Authorization header is invalid.",
            )
        secret_id, date, service, names, signature = found.groups()
        if secret_id != self.secret_id:
            raise RefusalError(
                "AuthFailure.SecretIdNotFound",
                "The SecretId is not found, please ensure it is correct.",
            )
        stamp = headers["X-TC-Timestamp"]
        if abs(time.time() + self.ahead_s - int(stamp)) > _CLOCK_S:
            raise RefusalError(
                "AuthFailure.SignatureExpire", "The signature is expired."
            )
        if date != datetime.fromtimestamp(int(stamp), UTC).strftime("%Y-%m-%d"):
            raise RefusalError(
                "AuthFailure.SignatureFailure",
                "The date of the credential scope is another.",
            )
        signed = "".join(
            f"{name}:{headers[name].strip()}\n" for name in names.split(";")
        )
        request = f"POST\n/\n\n{signed}\n{names}\n{hashlib.sha256(body).hexdigest()}"
        digest = hashlib.sha256(request.encode()).hexdigest()
        text = f"TC3-HMAC-SHA256\n{stamp}\n{date}/{service}/tc3_request\n{digest}"
        key = f"TC3{self.secret_key}".encode()
        for word in (date, service, "tc3_request"):
            key = hmac.digest(key, word.encode(), "sha256")
        if not hmac.compare_digest(
            hmac.new(key, text.encode(), "sha256").hexdigest(), signature
        ):
            raise RefusalError(
                "AuthFailure.SignatureFailure",
                "The provided credentials could not be validated.",
            )
        return service

    def _in_cluster(self, parameters: Json) -> None:
        if parameters.get("ClusterId") != self.cluster_id:
            raise RefusalError(
                "ResourceNotFound.ClusterNotFound",
                f"cluster {parameters.get('ClusterId')} not found",
            )

    def _kubeconfig(self, parameters: Json) -> Json:
        self._in_cluster(parameters)
        return {
            "Kubeconfig": (
                self.kubeconfig() if self.kubeconfig else self.real_kubeconfig()
            )
        }

    def real_kubeconfig(self, door: Door | None = None, **cluster: Any) -> str:
        """As TKE writes it: with a client's certificate where the cluster is behind a
        door, and with a token.
        """
        assert self.cluster is not None
        name = self.cluster_id
        context = f"{self.cluster_id}-100012345-context-default"
        self.token = self.token or self.cluster.admin_token
        user = {"token": self.token}
        if door is not None:
            cluster = {
                "server": door.address,
                "certificate-authority-data": door.authority,
            }
            user |= {
                "client-certificate-data": door.certificate,
                "client-key-data": door.key,
            }
        return yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": context,
                "preferences": {},
                "clusters": [
                    {
                        "name": name,
                        "cluster": {"server": self.cluster.address, **cluster},
                    }
                ],
                "users": [{"name": "100012345", "user": user}],
                "contexts": [
                    {"name": context, "context": {"cluster": name, "user": "100012345"}}
                ],
            }
        )

    def encoded_kubeconfig(self) -> str:
        """The same in base64."""
        return base64.b64encode(self.real_kubeconfig().encode()).decode()

    def _node_pools(self, parameters: Json) -> Json:
        self._in_cluster(parameters)
        first = parameters.get("Offset", 0)
        count = parameters.get("Limit", 20)
        if count > 100:
            raise RefusalError("InvalidParameter", "Limit is too large")
        return {
            "NodePools": self.pools[first : first + count],
            "TotalCount": len(self.pools),
        }

    def _launch_configurations(self, parameters: Json) -> Json:
        wanted = parameters.get("LaunchConfigurationIds") or list(self.launches)
        found = [self.launches[name] for name in wanted if name in self.launches]
        return {
            "LaunchConfigurationSet": found[: parameters.get("Limit", 20)],
            "TotalCount": len(found),
        }

    def _instance_configs(self, parameters: Json) -> Json:
        filters = {
            one["Name"]: one["Values"] for one in parameters.get("Filters") or ()
        }
        if set(filters) - _FILTERS or any(
            len(values) > 100 for values in filters.values()
        ):
            raise RefusalError(
                "InvalidFilter", "The specified filter is not supported."
            )
        keys = {
            "instance-type": "InstanceType",
            "instance-charge-type": "InstanceChargeType",
            "zone": "Zone",
        }
        found = [
            row
            for row in self.market
            if all(row[keys[name]] in values for name, values in filters.items())
        ]
        return {"InstanceTypeQuotaSet": found}


_SERVED: dict[tuple[str, str, str], tuple[Callable[[Tke, Json], Json], set[str]]] = {
    ("tke", "2018-05-25", "DescribeClusterKubeconfig"): (
        Tke._kubeconfig,
        {"ClusterId", "IsExtranet"},
    ),
    ("tke", "2022-05-01", "DescribeNodePools"): (
        Tke._node_pools,
        {"ClusterId", "Filters", "Offset", "Limit"},
    ),
    ("as", "2018-04-19", "DescribeLaunchConfigurations"): (
        Tke._launch_configurations,
        {"LaunchConfigurationIds", "Filters", "Offset", "Limit"},
    ),
    ("cvm", "2017-03-12", "DescribeZoneInstanceConfigInfos"): (
        Tke._instance_configs,
        {"Filters"},
    ),
}


def _handler(tke: Tke) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            tke.headers.append(dict(self.headers))
            what = tke.meet(self.headers.get("X-TC-Action", ""))
            if what == "hang":
                while tke.wait(0.05):
                    pass
            elif what == "cut":
                self.connection.close()
            elif isinstance(what, int):
                self._send(what, b"<html>Bad Gateway</html>", "text/html")
            elif what in ("drip", "half", "stall"):
                self._slowly(what)
            else:
                self._answer(what, body)

        def _answer(self, refusal: RefusalError | None, body: bytes) -> None:
            request = {"RequestId": "eac6b301-a322-493a-8e36-83b295459397"}
            try:
                if refusal is not None:
                    raise refusal
                said = tke.answer(self.headers, body) | request
            except RefusalError as error:
                said = {
                    "Error": {"Code": error.code, "Message": error.message}
                } | request
            self._send(200, json.dumps({"Response": said}).encode(), tke.content_type)

        def _slowly(self, what: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", "100000")
            self.end_headers()
            self.wfile.write(b'{"Response": ')
            while what != "half" and tke.wait(0.05):
                self.wfile.write(b" " if what == "drip" else b"")
                self.wfile.flush()

        def _send(self, status: int, data: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *_: object) -> None:
            return

    return Handler


@contextmanager
def tke_cluster() -> Iterator[Tke]:
    """A cluster as users have it: a namespace `gpuyard`, a pool with GPUs and one that
    has none at the moment.
    """
    nodes = [
        Node(
            "gpu-1",
            gpus=2,
            cpus=16,
            memory_gb=64,
            labels={POOL: "np-t4"},
            instance_type="GN7.10XLARGE160",
        ),
        Node("cpu-1", cpus=16, memory_gb=64, instance_type="S5.4XLARGE64"),
    ]
    with Cluster(nodes) as cluster, Tke(cluster) as tke:
        cluster.create(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpuyard"}}
        )
        tke.add_native_pool("t4", "GN7.10XLARGE160", most=2)
        tke.add_regular_pool("a100", "GT4.4XLARGE96", most=1, spot=True)
        tke.sell("GN7.10XLARGE160", 19.0)
        tke.sell("GT4.4XLARGE96", 6.0, spot=True)
        yield tke
