"""Alibaba's error codes as ours, each with a remedy."""

from gpuyard.domain.errors import ProviderError
from gpuyard.providers.instances.api import (
    CAPACITY,
    CREDENTIALS,
    DENIED,
    PRICE,
    QUOTA,
    SETTING,
)

THROTTLED = "THROTTLED"
NOT_CONNECTED = "NOT_CONNECTED"
NOT_THERE = "InvalidInstanceId.NotFound"
"""Alibaba's code for a machine that has been deleted."""
OTHER_ORDER = "IdempotentParameterMismatch"
"""Alibaba's code for a client token that was used for something else."""
NOT_READY = "IncorrectInstanceStatus"
"""Alibaba's code for a machine that cannot be ended yet."""

_KEY = (
    "See ALIBABA_CLOUD_ACCESS_KEY_ID and ALIBABA_CLOUD_ACCESS_KEY_SECRET"
    " (providers.alibaba.access_key_id and access_key_secret) and whether the key is"
    " enabled."
)
_TOKEN = (
    "Get new temporary keys, set ALIBABA_CLOUD_ACCESS_KEY_ID,"
    " ALIBABA_CLOUD_ACCESS_KEY_SECRET and ALIBABA_CLOUD_SECURITY_TOKEN, and restart the"
    " server; or use an AccessKey that does not expire."
)
_CLOCK = (
    "This host's clock and Alibaba's are more than 15 minutes apart: set the clock,"
    " best by NTP."
)
_BALANCE = "See the balance and the payment method of the Alibaba Cloud account."
_SITE = (
    "The bills of an account are at the site where it was opened: set"
    ' providers.alibaba.site to "china" (aliyun.com) or "international"'
    " (alibabacloud.com)."
)
# By the beginning of Alibaba's code, the first that fits.
_MEANINGS = (
    ("Throttling", THROTTLED, ""),
    ("ServiceUnavailable", NOT_CONNECTED, ""),
    ("InternalError", NOT_CONNECTED, ""),
    ("UnknownError", NOT_CONNECTED, ""),
    ("IdempotentProcessing", NOT_CONNECTED, ""),
    ("LastTokenProcessing", NOT_CONNECTED, ""),
    ("IncorrectInstanceStatus", NOT_CONNECTED, ""),
    ("SignatureNonceUsed", NOT_CONNECTED, ""),
    ("InvalidAccessKeyId", CREDENTIALS, _KEY),
    ("InvalidAccessKeySecret", CREDENTIALS, _KEY),
    ("SignatureDoesNotMatch", CREDENTIALS, _KEY),
    ("IncompleteSignature", CREDENTIALS, _KEY),
    ("InvalidTimeStamp", CREDENTIALS, _CLOCK),
    ("InvalidSecurityToken", CREDENTIALS, _TOKEN),
    ("MissingSecurityToken", CREDENTIALS, _TOKEN),
    ("Forbidden.RAM", DENIED, "Its RAM policy has to allow {action}."),
    ("NoPermission", DENIED, "Its RAM policy has to allow {action}."),
    ("NotAuthorized", DENIED, "Its RAM policy has to allow {action}."),
    ("Forbidden", DENIED, "{action} is forbidden."),
    ("UnauthorizedOperation", DENIED, "Its RAM policy has to allow {action}."),
    ("OperationDenied.NoStock", CAPACITY, ""),
    ("OperationDenied.ZoneNotAllowed", CAPACITY, ""),
    ("Zone.NotOnSale", CAPACITY, ""),
    ("Zone.NotOpen", CAPACITY, ""),
    ("ResourceNotAvailable", CAPACITY, ""),
    ("InvalidResourceType.NotSupported", CAPACITY, ""),
    ("InvalidInstanceType.ZoneNotSupported", CAPACITY, ""),
    ("InvalidInstanceType.NotSupported", CAPACITY, ""),
    ("InvalidVSwitchId.IpNotEnough", CAPACITY, "The vSwitch has no free address."),
    ("QuotaExceed", QUOTA, "Ask for more in Alibaba's Quota Center."),
    ("InstanceQuotaExceed", QUOTA, "Ask for more in Alibaba's Quota Center."),
    ("InvalidSpotPriceLimit.LowerThanPublicPrice", PRICE, "See max_price."),
    ("InvalidSpotPriceLimit", PRICE, "See max_price."),
    ("Account.Arrearage", QUOTA, _BALANCE),
    ("InvalidAccountStatus", QUOTA, _BALANCE),
    ("InvalidSecurityGroup", SETTING, "See providers.alibaba.security_group_id."),
    ("InvalidVSwitch", SETTING, "See providers.alibaba.vswitch_id and vswitches."),
    ("InvalidImageFamily", SETTING, "See providers.alibaba.image_family."),
    ("InvalidImage", SETTING, "See providers.alibaba.image and image_family."),
    ("NotApplicable", SETTING, _SITE),
    ("InvalidRegionId", SETTING, "See providers.alibaba.region_id."),
    ("InvalidInstanceType", SETTING, "See providers.alibaba.types."),
    (
        "InvalidSystemDiskCategory",
        SETTING,
        "See providers.alibaba.disk_category: this type takes another.",
    ),
    ("InvalidDiskCategory", SETTING, "See providers.alibaba.disk_category."),
    ("InvalidSystemDiskSize", SETTING, "See providers.alibaba.disk_gb."),
)


class RefusedCallError(ProviderError):
    """Alibaba does not carry out a request.

    `action` is the right that it needs, such as `ecs:RunInstances`, `cloud_code` is
    Alibaba's code, and `error_code` what that means for us.
    """

    def __init__(
        self, provider: str, action: str, cloud_code: str, said: str, request_id: str
    ) -> None:
        (code, remedy) = _meaning(cloud_code)
        said = said.strip().rstrip(".")[:300]
        details = ", ".join(part for part in (cloud_code, request_id) if part)
        message = f"Alibaba Cloud, {action}: {said} ({details})."
        remedy = remedy.format(action=action)
        super().__init__(f"{message} {remedy}".strip(), provider, code)
        self.action = action
        self.cloud_code = cloud_code


def _meaning(code: str) -> tuple[str, str]:
    """Our code for one of Alibaba's, and a remedy."""
    for prefix, our_code, remedy in _MEANINGS:
        if code.startswith(prefix):
            return our_code, remedy
    return "REFUSED", ""
