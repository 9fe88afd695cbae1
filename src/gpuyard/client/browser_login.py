"""How a command signs in through a browser, on this machine or any other (RFC 8628)."""

import socket
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import httpx

from gpuyard.client.connection import Address
from gpuyard.client.problems import error_of
from gpuyard.client.transport import options
from gpuyard.domain.errors import (
    ForbiddenError,
    GpuyardError,
    UnauthorizedError,
    UnreachableError,
)
from gpuyard.domain.sign_in import DeviceCode, DeviceToken, SignInWays

_FORM = {"Content-Type": "application/x-www-form-urlencoded"}
_SLOWER_S = 5.0
# What the server shows on a terminal must not steer it.
_LONGEST = 300


class BrowserLogin:
    """The sign-in of one command at the server `url`, from which it has no token yet.
    GpuyardError as the server says; UnreachableError.
    """

    def __init__(self, url: str, transport: httpx.BaseTransport | None = None) -> None:
        self._http = httpx.Client(
            base_url=url.rstrip("/"), **options(Address(url, ""), transport)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.close()

    def ways(self) -> SignInWays:
        """How one can sign in there; only with a token if the server is older."""
        answer = self._ask("GET", "/api/v1/sign-in")
        if answer.status_code in (401, 404):
            return SignInWays()
        return SignInWays.model_validate(_checked(answer).json())

    def begin(self) -> DeviceCode:
        """What to show to the person who signs in."""
        host = socket.gethostname()[:100]
        answer = self._ask("POST", "/auth/device", {"host": host})
        code = DeviceCode.model_validate(_checked(answer).json())
        for text in (code.user_code, code.verification_uri_complete):
            if not text.isprintable() or len(text) > _LONGEST:
                raise GpuyardError("The server answers with a code that is none.")
        return code

    def wait(
        self, code: DeviceCode, sleep: Callable[[float], None] = time.sleep
    ) -> str:
        """The token, once somebody has said yes. ForbiddenError if they said no;
        UnauthorizedError if nobody said anything in time.
        """
        interval_s = max(float(code.interval), 1.0)
        deadline = time.monotonic() + code.expires_in
        while time.monotonic() < deadline:
            sleep(interval_s)
            answer = self._ask(
                "POST", "/auth/device/token", {"device_code": code.device_code}
            )
            if answer.is_success:
                return DeviceToken.model_validate(answer.json()).access_token
            error = _error_in(answer)
            if error == "slow_down":
                interval_s += _SLOWER_S
            elif error == "access_denied":
                raise ForbiddenError(
                    "The sign-in was refused in the browser.",
                    "Start `gpuyard login` again.",
                )
            elif error == "expired_token":
                break
            elif error != "authorization_pending":
                _checked(answer)
        raise UnauthorizedError(
            "Nobody has signed in with this code in time.",
            "Start `gpuyard login` again.",
        )

    def _ask(
        self, method: str, path: str, form: dict[str, str] | None = None
    ) -> httpx.Response:
        headers = _FORM if form else None
        try:
            return self._http.request(method, path, data=form, headers=headers)
        except httpx.HTTPError as error:
            raise UnreachableError(
                f"No server answers at {self._http.base_url}: {error}.",
                "Check the address.",
            ) from None


def _checked(answer: httpx.Response) -> httpx.Response:
    if answer.is_error:
        raise error_of(answer.status_code, answer.content)
    return answer


def _error_in(answer: httpx.Response) -> str:
    """The error of RFC 8628 that an answer has; empty if it has another one."""
    try:
        found: Any = answer.json()
    except ValueError:
        return ""
    error: Any = found.get("error") if isinstance(found, dict) else ""  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return error if isinstance(error, str) else ""
