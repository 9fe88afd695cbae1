"""What AWS's errors mean."""

from dataclasses import dataclass

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
TIMEOUT = "TIMEOUT"
NOT_CONNECTED = "NOT_CONNECTED"
REFUSED = "REFUSED"
_LONGEST = 400  # characters of AWS's own words

_KEYS = (
    "See access_key_id, secret_access_key, session_token and profile of providers.aws,"
    " or AWS's own variables and files; a key may have expired."
)
_NETWORK = "See the network."
_CLOCK = "See also whether the clock of this host is right."
_SUBNETS = "See providers.aws.regions.{region}.subnets."
_GROUPS = "See providers.aws.regions.{region}.security_groups."
_IMAGE = "See providers.aws.image and providers.aws.regions.{region}.image."
_QUOTA = "Ask for a higher quota in Service Quotas of {region}."
# By the beginning of AWS's code: our code, and a remedy.
_MEANINGS = (
    ("InsufficientInstanceCapacity", CAPACITY, ""),
    ("InsufficientHostCapacity", CAPACITY, ""),
    ("InsufficientCapacity", CAPACITY, ""),
    ("InsufficientFreeAddressesInSubnet", CAPACITY, _SUBNETS),
    ("Unsupported", CAPACITY, ""),
    ("SpotMaxPriceTooLow", PRICE, "See providers.aws.max_price."),
    ("MaxSpotInstanceCountExceeded", QUOTA, _QUOTA),
    ("VcpuLimitExceeded", QUOTA, _QUOTA),
    ("InstanceLimitExceeded", QUOTA, _QUOTA),
    ("VolumeLimitExceeded", QUOTA, _QUOTA),
    ("MaxIOPSLimitExceeded", QUOTA, _QUOTA),
    ("NetworkInterfaceLimitExceeded", QUOTA, _QUOTA),
    (
        "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
        DENIED,
        "Create the role once: aws iam create-service-linked-role --aws-service-name"
        " spot.amazonaws.com",
    ),
    (
        "UnauthorizedOperation",
        DENIED,
        "`gpuyard cloud check aws` names what is missing.",
    ),
    ("AccessDenied", DENIED, "`gpuyard cloud check aws` names what is missing."),
    ("OptInRequired", DENIED, "The account has to be subscribed to it."),
    ("Blocked", DENIED, "AWS has blocked the account."),
    ("PendingVerification", DENIED, "AWS still verifies the account."),
    ("AuthFailure", CREDENTIALS, f"{_KEYS} {_CLOCK}"),
    ("ExpiredToken", CREDENTIALS, _KEYS),
    ("RequestExpired", CREDENTIALS, f"{_KEYS} {_CLOCK}"),
    ("InvalidClientTokenId", CREDENTIALS, _KEYS),
    ("UnrecognizedClient", CREDENTIALS, _KEYS),
    ("MissingAuthenticationToken", CREDENTIALS, _KEYS),
    ("SignatureDoesNotMatch", CREDENTIALS, f"{_KEYS} {_CLOCK}"),
    ("InvalidSignature", CREDENTIALS, f"{_KEYS} {_CLOCK}"),
    ("InvalidSubnet", SETTING, _SUBNETS),
    ("VPCIdNotSpecified", SETTING, f"There is no default network. {_SUBNETS}"),
    ("DefaultVpcDoesNotExist", SETTING, f"There is no default network. {_SUBNETS}"),
    ("InvalidGroup", SETTING, _GROUPS),
    ("InvalidSecurityGroup", SETTING, _GROUPS),
    ("InvalidAMIID", SETTING, _IMAGE),
    ("ParameterNotFound", SETTING, _IMAGE),
    ("InvalidInstanceType", SETTING, "See providers.aws.types."),
    ("InvalidBlockDeviceMapping", SETTING, "See providers.aws.disk_gb."),
    ("RequestLimitExceeded", THROTTLED, ""),
    ("Throttl", THROTTLED, ""),
    ("TooManyRequests", THROTTLED, ""),
    ("EC2ThrottledException", THROTTLED, ""),
    ("RequestThrottled", THROTTLED, ""),
    ("InternalError", NOT_CONNECTED, ""),
    ("InternalFailure", NOT_CONNECTED, ""),
    ("ServerInternal", NOT_CONNECTED, ""),
    ("ServiceUnavailable", NOT_CONNECTED, ""),
    ("Unavailable", NOT_CONNECTED, ""),
)
# Of botocore's exceptions that no answer has caused, by name.
_OF_CREDENTIALS = frozenset(
    {
        "NoCredentialsError",
        "PartialCredentialsError",
        "CredentialRetrievalError",
        "ProfileNotFound",
        "TokenRetrievalError",
        "SSOError",
        "InvalidConfigError",
    }
)
_OF_TIME = frozenset({"ConnectTimeoutError", "ReadTimeoutError"})
_OF_NETWORK = frozenset(
    {"ConnectionError", "HTTPClientError", "ResponseParserError", "IncompleteReadError"}
)


@dataclass(frozen=True, slots=True)
class Question:
    """What was asked of AWS: `operation` in its words (`RunInstances`)."""

    operation: str
    region: str


class AwsError(ProviderError):
    """An error of AWS. `aws_code` is its own code; empty if no answer came. `why` is in
    AWS's words.
    """

    def __init__(self, message: str, code: str, aws_code: str, why: str) -> None:
        super().__init__(message, "aws", code)
        self.aws_code = aws_code
        self.why = why


def explained(error: Exception, question: Question) -> AwsError:
    """Our error for one that botocore has raised."""
    answer = getattr(error, "response", None)
    if isinstance(answer, dict):
        found = answer.get("Error") or {}  # pyright: ignore
        status = (answer.get("ResponseMetadata") or {}).get("HTTPStatusCode")  # pyright: ignore
        return _answered(
            question,
            str(found.get("Code") or ""),  # pyright: ignore
            str(found.get("Message") or ""),  # pyright: ignore
            int(status or 0),  # pyright: ignore
        )
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & _OF_CREDENTIALS:
        return _error(question, CREDENTIALS, "", str(error), _KEYS)
    if names & _OF_TIME:
        return _error(question, TIMEOUT, "", str(error), _NETWORK)
    if names & _OF_NETWORK or isinstance(error, OSError):
        return _error(question, NOT_CONNECTED, "", str(error), _NETWORK)
    return _error(question, REFUSED, "", str(error), "")


def _answered(question: Question, aws_code: str, why: str, status: int) -> AwsError:
    for prefix, code, remedy in _MEANINGS:
        if aws_code.startswith(prefix):
            return _error(question, code, aws_code, why, remedy)
    code = NOT_CONNECTED if status >= 500 else REFUSED
    return _error(question, code, aws_code, why, "")


def _error(
    question: Question, code: str, aws_code: str, why: str, remedy: str
) -> AwsError:
    details = f" ({aws_code})" if aws_code else ""
    words = " ".join(why.split())[:_LONGEST].rstrip(".")
    message = f"AWS, {question.operation} in {question.region}: {words}{details}."
    remedy = remedy.format(region=question.region)
    return AwsError(f"{message} {remedy}".strip(), code, aws_code, why)
