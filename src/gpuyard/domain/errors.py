"""The errors of gpuyard, as a tree. Each carries a stable `code`, a one-line message
and what to do next.

GpuyardError
├── InvalidInputError          bad input: field, fault, remedy            422  exit 2
├── NotFoundError              no such job, checkpoint, …                 404  exit 3
├── RefusedError               valid, but not in the present state        409  exit 4
│   ├── IllegalMoveError       the state table forbids it
│   ├── ClosedPortError        nothing listens at the port
│   └── CapacityError          no node will ever have what is asked for
├── IsArrayError               an array, where one job is meant           409  exit 2
├── UnauthorizedError          missing or wrong token                     401  exit 4
├── ForbiddenError             not for the holder of this token           403  exit 4
├── RequestRefusedError        the server does not take the request       400  exit 4
│   ├── WrongMethodError       the address is asked with another method  405
│   ├── TooSlowError           it arrives too slowly                      408
│   ├── TooLargeError          its body is over the limit                 413
│   ├── WrongHostError         it names a host that is not this server    421
│   ├── TooManyRequestsError   its client asks too much                   429
│   │   └── RateLimitedError   its user asks more than it may
│   └── ServerBusyError        the server has too much to do              503
├── UnreachableError           no server answers                          503  exit 5
├── LedgerError                the ledger cannot be opened or written     500  exit 4
│   ├── LedgerLockedError, LedgerTooNewError, NetworkFilesystemError
│   ├── LedgerUnreachableError its database does not answer              503
│   │   └── LedgerBusyError    another program holds it locked
│   ├── FencedError            another server leads now                  503
│   └── DiskFullError                                                     507
├── BucketError                blobs' bucket cannot be used (storage)     502  exit 4
└── ProviderError              a provider failed                          502  exit 4
    ├── JobNotFoundError
    └── InsufficientResourcesError
"""

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

_brief = reprlib.Repr()
_brief.maxstring = _brief.maxother = _brief.maxlong = 60


def quoted(value: Any) -> str:
    """`value` as an error shows it: its repr, which escapes control characters, cut to
    60 characters.
    """
    text = _brief.repr(value)
    return text if len(text) <= 60 else f"{text[:59]}…"


def is_text(value: str) -> bool:
    """False for bytes that are no UTF-8, as a shell may pass them on."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


class GpuyardError(Exception):
    """An error that gpuyard can explain.

    `str(error)` is the whole explanation, including the remedy.
    """

    code: ClassVar[str] = "internal_error"
    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1
    # If not 0: after how many seconds the request may be sent again (Retry-After).
    retry_after: ClassVar[int] = 0

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(f"{message} {remedy}".strip())
        self.message = message
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of an input: the field's path, what is wrong, and what would be
    right.
    """

    field: str
    fault: str
    remedy: str = ""

    def __str__(self) -> str:
        text = f"{self.field}: {self.fault}"
        return f"{text} ({self.remedy})" if self.remedy else text


class InvalidInputError(GpuyardError):
    """The input is wrong; `faults` lists every wrong field."""

    code = "invalid_input"
    status = 422
    exit_code = 2

    def __init__(self, faults: Sequence[Fault]) -> None:
        super().__init__("; ".join(str(fault) for fault in faults))
        self.faults = tuple(faults)

    @classmethod
    def of(cls, field: str, fault: str, remedy: str = "") -> "InvalidInputError":
        """The error for a single field."""
        return cls([Fault(field, fault, remedy)])


class NotFoundError(GpuyardError):
    """Nothing has this name or id."""

    code = "not_found"
    status = 404
    exit_code = 3


class RefusedError(GpuyardError):
    """The request is valid but cannot be granted in the present state."""

    code = "refused"
    status = 409
    exit_code = 4


class IllegalMoveError(RefusedError):
    """The table of legal moves forbids this change of state."""

    code = "illegal_move"


class ClosedPortError(RefusedError):
    """Nothing listens at the port of the job."""

    code = "closed_port"


class CapacityError(RefusedError):
    """No node will ever have what the job asks for."""

    code = "insufficient_resources"
    status = 422


class IsArrayError(GpuyardError):
    """What is meant is an array, where only one job can be."""

    code = "is_array"
    status = 409
    exit_code = 2


class UnauthorizedError(GpuyardError):
    """The bearer token is missing or wrong."""

    code = "unauthorized"
    status = 401
    exit_code = 4


class ForbiddenError(GpuyardError):
    """The token is known, but not for this."""

    code = "forbidden"
    status = 403
    exit_code = 4


class RequestRefusedError(GpuyardError):
    """The server does not take the request."""

    code = "request_refused"
    status = 400
    exit_code = 4


class WrongMethodError(RequestRefusedError):
    """The address is not asked with this method."""

    code = "method_not_allowed"
    status = 405


class TooSlowError(RequestRefusedError):
    """The request arrives too slowly."""

    code = "too_slow"
    status = 408


class TooLargeError(RequestRefusedError):
    """The body of the request is over the limit."""

    code = "too_large"
    status = 413


class WrongHostError(RequestRefusedError):
    """The request names a host that is not this server."""

    code = "wrong_host"
    status = 421


class TooManyRequestsError(RequestRefusedError):
    """This client asks too much."""

    code = "too_many_requests"
    status = 429
    retry_after = 2


class RateLimitedError(TooManyRequestsError):
    """This user sends more requests than it may."""

    code = "rate_limited"
    retry_after = 1


class ServerBusyError(RequestRefusedError):
    """The server has too much to do at the moment."""

    code = "server_busy"
    status = 503
    retry_after = 2


class UnreachableError(GpuyardError):
    """No server answers at the address."""

    code = "unreachable"
    status = 503
    exit_code = 5


class LedgerError(GpuyardError):
    """The ledger cannot be opened or written."""

    code = "ledger_error"
    exit_code = 4


class LedgerLockedError(LedgerError):
    """Another server has this ledger open."""

    code = "ledger_locked"


class LedgerTooNewError(LedgerError):
    """The ledger was written by a newer gpuyard."""

    code = "ledger_too_new"


class NetworkFilesystemError(LedgerError):
    """SQLite's locks cannot be trusted on a network file system."""

    code = "network_filesystem"


class LedgerUnreachableError(LedgerError):
    """The database does not answer. What was acknowledged is safe."""

    code = "ledger_unreachable"
    status = 503
    retry_after = 1


class LedgerBusyError(LedgerUnreachableError):
    """Another program holds the ledger locked. What was acknowledged is safe."""

    code = "ledger_busy"


class FencedError(LedgerError):
    """Another server leads now, so this one may not write any more."""

    code = "fenced"
    status = 503


class DiskFullError(LedgerError):
    """Nothing can be written: the disk is full.

    What was acknowledged before is safe. If the text names a job, `job_id` is it, and
    `unnamed` says the same without it.
    """

    code = "disk_full"
    status = 507
    job_id: str | None = None
    unnamed: "DiskFullError | None" = None


class ProviderError(GpuyardError):
    """A provider failed.

    `error_code` is the provider's own or a generic word such as `SUBMIT_FAILED`.
    """

    code = "provider_error"
    status = 502
    exit_code = 4

    def __init__(self, message: str, provider: str = "", error_code: str = "") -> None:
        super().__init__(message)
        self.provider = provider
        self.error_code = error_code


class JobNotFoundError(ProviderError):
    """The provider does not know the job."""

    code = "job_not_found"
    status = 404
    exit_code = 3

    def __init__(self, job_id: str, provider: str = "") -> None:
        super().__init__(
            f"{provider or 'the provider'} knows no job {job_id!r}.",
            provider,
            "JOB_NOT_FOUND",
        )
        self.job_id = job_id


class InsufficientResourcesError(ProviderError):
    """The provider cannot supply the `requested_spec`."""

    code = "insufficient_resources"
    status = 409

    def __init__(
        self, message: str, provider: str = "", requested_spec: Any = None
    ) -> None:
        super().__init__(message, provider, "INSUFFICIENT_RESOURCES")
        self.requested_spec = requested_spec
