"""Tencent Cloud's API through Tencent's SDK: requests as plain JSON, and errors as
ProviderError.

The SDK is synchronous, so its calls run in threads. The first call imports it.
"""

# The SDK has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any, NoReturn, cast

from gpuyard.domain.errors import InsufficientResourcesError, ProviderError
from gpuyard.providers.kubernetes.fields import Json, object_at, objects_at, text_at
from gpuyard.providers.tencent.config import TencentConfig

_ACTIONS = {
    "DescribeClusterKubeconfig": ("tke", "2018-05-25"),
    "DescribeNodePools": ("tke", "2022-05-01"),
    "DescribeLaunchConfigurations": ("as", "2018-04-19"),
    "DescribeZoneInstanceConfigInfos": ("cvm", "2017-03-12"),
}
_PAGE = 100
# The SDK's timeout limits only each silence: a server that sends a byte now and then
# would hold a call forever. A whole call may take this many timeouts.
_MAX_TIMEOUTS = 2.0
_CREDENTIALS = (
    "See TENCENTCLOUD_SECRET_ID and TENCENTCLOUD_SECRET_KEY"
    " (providers.tencent.secret_id and secret_key) and whether the key is enabled."
)
# By the beginning of Tencent's error code: our code, and a remedy. NOT_CONNECTED also
# stands for errors that a person has to repair: jobs keep waiting until then.
_MEANINGS = (
    (
        "AuthFailure.SignatureExpire",
        "NOT_CONNECTED",
        (
            "This host's clock and Tencent's are more than five minutes apart: set the"
            " clock, best by NTP."
        ),
    ),
    (
        "AuthFailure.UnauthorizedOperation",
        "NOT_CONNECTED",
        "Its CAM policy has to allow {action}.",
    ),
    ("UnauthorizedOperation", "NOT_CONNECTED", "Its CAM policy has to allow {action}."),
    ("AuthFailure", "NOT_CONNECTED", _CREDENTIALS),
    ("InvalidCredential", "NOT_CONNECTED", _CREDENTIALS),
    ("RequestLimitExceeded", "THROTTLED", ""),
    (
        "ResourceNotFound",
        "NOT_CONNECTED",
        "See providers.tencent.cluster_id ({cluster}) and region ({region}).",
    ),
    (
        "InvalidParameter.ClusterNotFound",
        "NOT_CONNECTED",
        "See providers.tencent.cluster_id ({cluster}) and region ({region}).",
    ),
    ("UnsupportedRegion", "NOT_CONNECTED", "See providers.tencent.region ({region})."),
    ("InternalError", "NOT_CONNECTED", ""),
    ("ServiceUnavailable", "NOT_CONNECTED", ""),
    ("ServerNetworkError", "NOT_CONNECTED", ""),
    ("ClientNetworkError", "NOT_CONNECTED", ""),
)
_SOLD_OUT = (
    "ResourceInsufficient",
    "ResourcesSoldOut",
    "LimitExceeded",
    "QuotaLimit",
    "ResourceUnavailable",
)


class TencentApi:
    """The API, with the account of the key."""

    def __init__(self, settings: TencentConfig) -> None:
        self._settings = settings
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="tencent")

    async def kubeconfig(self) -> str:
        """The account's kubeconfig for the cluster."""
        answer = await self.call(
            "DescribeClusterKubeconfig",
            ClusterId=self._settings.cluster_id,
            IsExtranet=self._settings.extranet,
        )
        return text_at(answer, "Kubeconfig")

    async def node_pools(self) -> list[Json]:
        """All node pools of the cluster, regular and native."""
        found: list[Json] = []
        while True:
            page = await self.call(
                "DescribeNodePools",
                ClusterId=self._settings.cluster_id,
                Offset=len(found),
                Limit=_PAGE,
            )
            pools = objects_at(page, "NodePools")
            found += pools
            total = int(page.get("TotalCount") or 0)
            if not pools or len(found) >= total:
                return found

    async def launch_configurations(self, ids: list[str]) -> list[Json]:
        """The launch configurations from which regular pools make their nodes."""
        found: list[Json] = []
        for first in range(0, len(ids), _PAGE):
            page = ids[first : first + _PAGE]
            answer = await self.call(
                "DescribeLaunchConfigurations", LaunchConfigurationIds=page, Limit=_PAGE
            )
            found += objects_at(answer, "LaunchConfigurationSet")
        return found

    async def instance_types(self, names: list[str]) -> list[Json]:
        """The size, price and availability of these types, by zone and payment mode."""
        found: list[Json] = []
        for first in range(0, len(names), _PAGE):
            filters = [
                {"Name": "instance-type", "Values": names[first : first + _PAGE]},
                {
                    "Name": "instance-charge-type",
                    "Values": ["POSTPAID_BY_HOUR", "SPOTPAID"],
                },
            ]
            answer = await self.call("DescribeZoneInstanceConfigInfos", Filters=filters)
            found += objects_at(answer, "InstanceTypeQuotaSet")
        return found

    async def call(self, action: str, **parameters: Any) -> Json:
        """The answer to a request; ProviderError says why there is none."""
        work = asyncio.get_running_loop().run_in_executor(
            self._threads, self._call, action, parameters
        )
        limit_s = _MAX_TIMEOUTS * self._settings.timeout_s
        try:
            return await asyncio.wait_for(work, limit_s)
        except TimeoutError:
            raise self._timeout(action) from None

    def close(self) -> None:
        """Shut down the threads; a call that hangs ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    # --- in a thread ---

    def _call(self, action: str, parameters: Json) -> Json:
        from requests.exceptions import RequestException
        from tencentcloud.common.exception.tencent_cloud_sdk_exception import (
            TencentCloudSDKException,
        )

        # At debug level the SDK would log whole answers, including kubeconfigs.
        logging.getLogger("tencentcloud_sdk_common").setLevel(logging.INFO)
        try:
            answer = self._client(action).call_json(action, parameters)
            found = cast("Json", answer["Response"])
        except TencentCloudSDKException as error:
            code = str(error.code or "")
            request = str(error.requestId or "")
            self._raise_error(action, code, error.message, request)
        except RequestException as error:  # in the middle of an answer
            self._raise_error(action, "ClientNetworkError", error, "")
        except (ValueError, KeyError, TypeError):
            why = "an answer that is not Tencent's"
            self._raise_error(action, "ServerNetworkError", why, "")
        # The SDK finds errors only in answers of exactly one content type.
        if object_at(found, "Error"):
            self._raise_error(
                action,
                text_at(found, "Error", "Code"),
                text_at(found, "Error", "Message"),
                text_at(found, "RequestId"),
            )
        return found

    def _client(self, action: str) -> Any:
        from tencentcloud.common.common_client import CommonClient
        from tencentcloud.common.credential import Credential
        from tencentcloud.common.profile.client_profile import ClientProfile
        from tencentcloud.common.profile.http_profile import HttpProfile

        settings = self._settings
        (service, version) = _ACTIONS[action]
        scheme, separator, host = settings.endpoint.rpartition("://")
        http = HttpProfile(
            protocol=scheme or "https",
            endpoint=host if separator else None,
            rootDomain=None if separator else settings.endpoint,
            reqTimeout=cast("int", settings.timeout_s),
        )
        credential = Credential(
            settings.secret_id.get_secret_value(),
            settings.secret_key.get_secret_value(),
        )
        profile = ClientProfile(httpProfile=http, language="en-US")
        if service == "tke":
            module = import_module(
                f"tencentcloud.tke.v{version.replace('-', '')}.tke_client"
            )
            return module.TkeClient(credential, settings.region, profile)
        return CommonClient(service, version, credential, settings.region, profile)

    # --- errors ---

    def _timeout(self, action: str) -> ProviderError:
        message = (
            f"Tencent Cloud does not answer in time ({action}). See"
            " providers.tencent.endpoint and the network."
        )
        return ProviderError(message, self._settings.provider, "TIMEOUT")

    def _raise_error(
        self, action: str, code: str, why: object, request: str
    ) -> NoReturn:
        """Raise our error for a code of Tencent's API or SDK."""
        if code == "ServerNetworkError" and isinstance(why, bytes):
            why = "an error of the server"  # most likely the HTML page of a gateway
        if code == "ClientNetworkError" and "timed out" in str(why).lower():
            raise self._timeout(action)
        details = ", ".join(part for part in (code, request) if part)
        message = f"Tencent Cloud, {action}: {str(why)[:300]} ({details})."
        if code.startswith(_SOLD_OUT):
            raise InsufficientResourcesError(message, self._settings.provider)
        our_code, remedy = _meaning(code)
        remedy = remedy.format(
            action=action,
            cluster=self._settings.cluster_id,
            region=self._settings.region,
        )
        message = f"{message} {remedy}".strip()
        raise ProviderError(message, self._settings.provider, our_code)


def _meaning(code: str) -> tuple[str, str]:
    """Our code for one of Tencent's, and a remedy."""
    for prefix, our_code, remedy in _MEANINGS:
        if code.startswith(prefix):
            return our_code, remedy
    return "REFUSED", ""
