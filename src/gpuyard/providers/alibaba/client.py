"""Alibaba Cloud's API through the core of its own SDK: requests as plain parameters,
answers as JSON, and errors as ours.

The SDK of ECS alone has models of a thousand requests, which take 100 MB and two
seconds to import; its core signs and sends the same requests without them. It is
synchronous, so its calls run in threads. The first call imports it.
"""

# The SDK has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
import asyncio
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from pydantic import SecretStr

from gpuyard.domain.errors import ProviderError
from gpuyard.providers.alibaba.config import AlibabaConfig
from gpuyard.providers.alibaba.errors import THROTTLED, RefusedCallError
from gpuyard.providers.instances.call_turns import CallTurns
from gpuyard.providers.kubernetes.fields import Json, text_at

ECS = ("ecs", "2014-05-26")
VPC = ("vpc", "2016-04-28")
BILLING = ("business", "2017-12-14")
# The names of products in rights, where they differ from those in addresses.
_IN_RIGHTS = {"business": "bssapi"}
_THREADS = 8
# The SDK's timeout limits only each silence: a server that sends a byte now and then
# would hold a call forever. A whole call may take this many timeouts.
_MAX_TIMEOUTS = 2.0
# A call that Alibaba refuses for so long as one too many is given up.
_PATIENCE_S = 120.0


class AlibabaClient:
    """The API, with the account of the key. Calls may come at once."""

    def __init__(self, settings: AlibabaConfig) -> None:
        self._settings = settings
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="alibaba")
        # The time of a call begins with its thread: it does not wait for one.
        self._places = asyncio.Semaphore(_THREADS)
        # By region and action: Alibaba limits each by itself.
        self._turns: dict[tuple[str, str], CallTurns] = {}
        self._clients: dict[tuple[str, str], Any] = {}
        self._lock = threading.Lock()

    async def call(
        self,
        region: str,
        action: str,
        parameters: Mapping[str, Any],
        *,
        product: tuple[str, str] = ECS,
    ) -> Json:
        """The answer to a request; lists in `parameters` become `Name.1`, `Name.2`, ….

        While Alibaba refuses it as one too many it is sent again, later.
        RefusedCallError when it was not carried out, a transient ProviderError when
        nobody knows whether it was.
        """
        turns = self._turns.setdefault((region, action), CallTurns())
        refused_since: float | None = None
        while True:
            sent_at = await turns.wait()
            try:
                answer = await self._send(region, action, parameters, product)
            except RefusedCallError as error:
                now = time.monotonic()
                if error.error_code != THROTTLED:
                    turns.pace.accepted(now)
                    raise
                turns.pace.refused(now, sent_at)
                refused_since = refused_since or now
                if now - refused_since > _PATIENCE_S:
                    raise
            else:
                turns.pace.accepted(time.monotonic())
                return answer

    def close(self) -> None:
        """Shut down the threads; a call that hangs ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _send(
        self,
        region: str,
        action: str,
        parameters: Mapping[str, Any],
        product: tuple[str, str],
    ) -> Json:
        limit_s = _MAX_TIMEOUTS * self._settings.timeout_s
        async with self._places:
            work = asyncio.get_running_loop().run_in_executor(
                self._threads, self._call, region, action, parameters, product
            )
            try:
                return await asyncio.wait_for(work, limit_s)
            except TimeoutError:
                raise self._no_answer(
                    action, "it does not answer in time", "TIMEOUT"
                ) from None

    # --- in a thread ---

    def _call(
        self,
        region: str,
        action: str,
        parameters: Mapping[str, Any],
        product: tuple[str, str],
    ) -> Json:
        from alibabacloud_tea_openapi.exceptions import AlibabaCloudException
        from alibabacloud_tea_openapi.utils import Utils
        from alibabacloud_tea_openapi.utils_models import OpenApiRequest, Params
        from darabonba.runtime import RuntimeOptions

        (name, version) = product
        params = Params(
            action=action,
            version=version,
            protocol="HTTPS",
            pathname="/",
            method="POST",
            auth_type="AK",
            style="RPC",
            req_body_type="formData",
            body_type="json",
        )
        given = {"RegionId": region, **parameters}
        request = OpenApiRequest(query=Utils.query(given))
        client = self._client(region, name)
        try:
            answer = client.call_api(params, request, RuntimeOptions())
        except AlibabaCloudException as error:
            raise self._refused(right_for(name, action), error) from None
        except Exception as error:  # noqa: BLE001  the SDK has no base of its errors
            raise self._not_sent(action, error) from None
        found = answer.get("body")
        if not isinstance(found, dict):
            raise self._no_answer(action, "the answer is not Alibaba's")
        body = cast("Json", found)
        if body.get("Success") is False:
            # Billing refuses in an answer that is well otherwise.
            raise RefusedCallError(
                self._settings.provider,
                right_for(name, action),
                text_at(body, "Code"),
                text_at(body, "Message"),
                text_at(body, "RequestId"),
            )
        return body

    def _client(self, region: str, product: str) -> Any:
        with self._lock:
            found = self._clients.get((region, product))
            if found is None:
                found = self._new_client(region, product)
                self._clients[region, product] = found
            return found

    def _new_client(self, region: str, product: str) -> Any:
        from alibabacloud_tea_openapi.client import Client
        from alibabacloud_tea_openapi.utils_models import Config

        settings = self._settings
        scheme, separator, host = settings.endpoint.rpartition("://")
        milliseconds = int(settings.timeout_s * 1000)
        token = settings.security_token or SecretStr("")
        config = Config(
            access_key_id=settings.access_key_id.get_secret_value(),
            access_key_secret=settings.access_key_secret.get_secret_value(),
            security_token=token.get_secret_value(),
            region_id=region,
            protocol=scheme or "https",
            endpoint=host if separator else host_of(product, region, settings),
            read_timeout=milliseconds,
            connect_timeout=milliseconds,
            max_idle_conns=_THREADS,
        )
        return Client(config)

    # --- errors ---

    def _no_answer(
        self, action: str, why: str, code: str = "NOT_CONNECTED"
    ) -> ProviderError:
        message = (
            f"Alibaba Cloud, {action}: {why}. See providers.alibaba.region_id, endpoint"
            " and the network."
        )
        return ProviderError(message, self._settings.provider, code)

    def _not_sent(self, action: str, error: Exception) -> ProviderError:
        why = str(error)[:300] or type(error).__name__
        if "timed out" in why.lower():
            return self._no_answer(action, "it does not answer in time", "TIMEOUT")
        if isinstance(error, ValueError) or "JSON" in why:
            why = "the answer is not Alibaba's"
        return self._no_answer(action, why)

    def _refused(self, action: str, error: Any) -> ProviderError:
        """The SDK's error. Alibaba may name another right than that of the action."""
        data = error.data if isinstance(error.data, dict) else {}
        code = str(error.code or "")
        said = text_at(data, "Message") or str(error.message or "")
        if (error.status_code or 0) >= 500:
            return self._no_answer(action, f"{said.strip()[:300]} ({code})")
        right = text_at(data, "AccessDeniedDetail", "AuthAction") or action
        request_id = text_at(data, "RequestId")
        return RefusedCallError(self._settings.provider, right, code, said, request_id)


def right_for(product: str, action: str) -> str:
    """What a RAM policy calls the right to an action, such as `ecs:RunInstances`."""
    return f"{_IN_RIGHTS.get(product, product)}:{action}"


def host_of(product: str, region: str, settings: AlibabaConfig) -> str:
    """Where a product of a region answers. Billing has two places: one for the accounts
    of China, and one for those of the rest of the world.
    """
    if product != BILLING[0]:
        return f"{product}.{region}.aliyuncs.com"
    place = "" if settings.bills_in_china else "ap-southeast-1."
    return f"{product}.{place}aliyuncs.com"
