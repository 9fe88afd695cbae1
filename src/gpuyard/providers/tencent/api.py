"""Tencent Cloud's API, by Tencent's own SDK: requests as plain JSON, and errors in our own words.

The SDK is synchronous, so its calls run in threads; it is imported with the first of them.
"""

# The SDK has no types.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false
import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NoReturn, cast

from gpuyard.domain.errors import InsufficientResourcesError, ProviderError
from gpuyard.providers.kubernetes.fields import Json, rows, table, text
from gpuyard.providers.tencent.config import TencentConfig

_ACTIONS = {
    "DescribeClusterKubeconfig": ("tke", "2018-05-25"),
    "DescribeNodePools": ("tke", "2022-05-01"),
    "DescribeLaunchConfigurations": ("as", "2018-04-19"),
    "DescribeZoneInstanceConfigInfos": ("cvm", "2017-03-12"),
}
_PAGE = 100
# The SDK's own timeout is for each silence; a server that sends a byte now and then would hold it for ever.
_LONGEST = 2.0
_CREDENTIALS = (
    "See TENCENTCLOUD_SECRET_ID and TENCENTCLOUD_SECRET_KEY (providers.tencent.secret_id and secret_key) and whether "
    "the key is enabled."
)
# What the beginning of Tencent's code means: our code, and a remedy. Where nothing can be done before somebody has
# mended something, nothing is lost either: what waits for it goes on waiting.
_MEANINGS = (
    ("AuthFailure.SignatureExpire", "NOT_CONNECTED",
     "This host's clock and Tencent's are more than five minutes apart: set the clock, best by NTP."),
    ("AuthFailure.UnauthorizedOperation", "NOT_CONNECTED", "Its CAM policy has to allow {action}."),
    ("UnauthorizedOperation", "NOT_CONNECTED", "Its CAM policy has to allow {action}."),
    ("AuthFailure", "NOT_CONNECTED", _CREDENTIALS),
    ("InvalidCredential", "NOT_CONNECTED", _CREDENTIALS),
    ("RequestLimitExceeded", "THROTTLED", ""),
    ("ResourceNotFound", "NOT_CONNECTED", "See providers.tencent.cluster_id ({cluster}) and region ({region})."),
    ("InvalidParameter.ClusterNotFound", "NOT_CONNECTED",
     "See providers.tencent.cluster_id ({cluster}) and region ({region})."),
    ("UnsupportedRegion", "NOT_CONNECTED", "See providers.tencent.region ({region})."),
    ("InternalError", "NOT_CONNECTED", ""),
    ("ServiceUnavailable", "NOT_CONNECTED", ""),
    ("ServerNetworkError", "NOT_CONNECTED", ""),
    ("ClientNetworkError", "NOT_CONNECTED", ""),
)  # fmt: skip
_NOTHING_LEFT = ("ResourceInsufficient", "ResourcesSoldOut", "LimitExceeded", "QuotaLimit", "ResourceUnavailable")


class TencentApi:
    """The API, as the account of the key."""

    def __init__(self, settings: TencentConfig) -> None:
        if find_spec("tencentcloud") is None:  # said now, since it is imported late
            message = "Provider tencent lacks Tencent's SDK. Install its extra: pip install 'gpuyard[tencent]'."
            raise ProviderError(message, settings.provider, "IMPORT")
        self._settings = settings
        self._threads = ThreadPoolExecutor(max_workers=4, thread_name_prefix="tencent")

    async def kubeconfig(self) -> str:
        """The account's kubeconfig for the cluster."""
        answer = await self.call("DescribeClusterKubeconfig", ClusterId=self._settings.cluster_id,
                                 IsExtranet=self._settings.extranet)  # fmt: skip
        return text(answer, "Kubeconfig")

    async def node_pools(self) -> list[Json]:
        """All node pools of the cluster, regular and native."""
        found: list[Json] = []
        while True:
            page = await self.call("DescribeNodePools", ClusterId=self._settings.cluster_id, Offset=len(found),
                                   Limit=_PAGE)  # fmt: skip
            found += rows(page, "NodePools")
            if not rows(page, "NodePools") or len(found) >= int(page.get("TotalCount") or 0):
                return found

    async def launch_configurations(self, ids: list[str]) -> list[Json]:
        """What regular pools make their nodes from."""
        found: list[Json] = []
        for first in range(0, len(ids), _PAGE):
            some = ids[first : first + _PAGE]
            answer = await self.call("DescribeLaunchConfigurations", LaunchConfigurationIds=some, Limit=_PAGE)
            found += rows(answer, "LaunchConfigurationSet")
        return found

    async def instance_types(self, names: list[str]) -> list[Json]:
        """What each of these types has, costs and whether it can be had, by zone and way to pay."""
        found: list[Json] = []
        for first in range(0, len(names), _PAGE):
            filters = [{"Name": "instance-type", "Values": names[first : first + _PAGE]},
                       {"Name": "instance-charge-type", "Values": ["POSTPAID_BY_HOUR", "SPOTPAID"]}]  # fmt: skip
            answer = await self.call("DescribeZoneInstanceConfigInfos", Filters=filters)
            found += rows(answer, "InstanceTypeQuotaSet")
        return found

    async def call(self, action: str, **parameters: Any) -> Json:
        """The answer to a request; ProviderError says why there is none."""
        work = asyncio.get_running_loop().run_in_executor(self._threads, self._ask, action, parameters)
        try:
            return await asyncio.wait_for(work, _LONGEST * self._settings.timeout_s)
        except TimeoutError:
            raise self._silent(action) from None

    def close(self) -> None:
        """Let go; a call that hangs ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    # --- in a thread ---

    def _ask(self, action: str, parameters: Json) -> Json:
        from requests.exceptions import RequestException
        from tencentcloud.common.exception.tencent_cloud_sdk_exception import TencentCloudSDKException

        # At debug level the SDK would write down whole answers, kubeconfigs among them.
        logging.getLogger("tencentcloud_sdk_common").setLevel(logging.INFO)
        try:
            answer = self._client(action).call_json(action, parameters)
            found = cast("Json", answer["Response"])
        except TencentCloudSDKException as error:
            self._refuse(action, str(error.code or ""), error.message, str(error.requestId or ""))
        except RequestException as error:  # in the middle of an answer
            self._refuse(action, "ClientNetworkError", error, "")
        except (ValueError, KeyError, TypeError):
            self._refuse(action, "ServerNetworkError", "an answer that is not Tencent's", "")
        if table(found, "Error"):  # the SDK sees it only in answers of exactly one content type
            self._refuse(
                action, text(found, "Error", "Code"), text(found, "Error", "Message"), text(found, "RequestId")
            )
        return found

    def _client(self, action: str) -> Any:
        from tencentcloud.common.common_client import CommonClient
        from tencentcloud.common.credential import Credential
        from tencentcloud.common.profile.client_profile import ClientProfile
        from tencentcloud.common.profile.http_profile import HttpProfile

        settings, (service, version) = self._settings, _ACTIONS[action]
        scheme, separator, host = settings.endpoint.rpartition("://")
        http = HttpProfile(
            protocol=scheme or "https", endpoint=host if separator else None,
            rootDomain=None if separator else settings.endpoint, reqTimeout=cast("int", settings.timeout_s),
        )  # fmt: skip
        credential = Credential(settings.secret_id.get_secret_value(), settings.secret_key.get_secret_value())
        profile = ClientProfile(httpProfile=http, language="en-US")
        if service == "tke":
            module = import_module(f"tencentcloud.tke.v{version.replace('-', '')}.tke_client")
            return module.TkeClient(credential, settings.region, profile)
        return CommonClient(service, version, credential, settings.region, profile)

    # --- what went wrong ---

    def _silent(self, action: str) -> ProviderError:
        message = f"Tencent Cloud does not answer in time ({action}). See providers.tencent.endpoint and the network."
        return ProviderError(message, self._settings.provider, "TIMEOUT")

    def _refuse(self, action: str, code: str, said: object, request: str) -> NoReturn:
        """Raise what Tencent's (or its SDK's) code means."""
        if code == "ServerNetworkError" and isinstance(said, bytes):
            said = "an error of the server"  # the page of a gateway, most likely
        if code == "ClientNetworkError" and "timed out" in str(said).lower():
            raise self._silent(action)
        told = f"Tencent Cloud, {action}: {str(said)[:300]} ({', '.join(filter(None, (code, request)))})."
        if code.startswith(_NOTHING_LEFT):
            raise InsufficientResourcesError(told, self._settings.provider)
        ours, remedy = next(((ours, remedy) for prefix, ours, remedy in _MEANINGS if code.startswith(prefix)),
                            ("REFUSED", ""))  # fmt: skip
        remedy = remedy.format(action=action, cluster=self._settings.cluster_id, region=self._settings.region)
        raise ProviderError(f"{told} {remedy}".strip(), self._settings.provider, ours)
