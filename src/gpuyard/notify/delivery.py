"""One attempt at one delivery, and what the receiver's answer means.

Imported late, because only this module needs the HTTP client.
"""

import asyncio
import ssl
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime

import httpcore
import httpx

from gpuyard.notify.delivery_result import DeliveryOutcome, DeliveryResult
from gpuyard.notify.name_lookups import NameLookups
from gpuyard.notify.payload import Payload, headers
from gpuyard.notify.webhook import Webhook

TIMEOUT_S = 10.0
# A receiver may ask for this much patience, and no more.
MAX_RETRY_AFTER_S = 3600.0
# This much of an answer is read, so that the connection can be used again. Its content
# does not matter.
_READ_BYTES = 64 * 1024
_READ_S = 1.0
# The client looks at each of them for each delivery.
_IDLE_CONNECTIONS = 32
_IDLE_S = 5.0


class _Client(httpx.AsyncClient):
    """Looks up names with `lookups`, except that of a proxy."""

    def __init__(
        self, timeout_s: float, lookups: NameLookups, *, through_proxy: bool
    ) -> None:
        context = httpx.create_ssl_context()
        # With a transport among the arguments, it would not look for proxies.
        super().__init__(
            verify=context,
            timeout=timeout_s,
            follow_redirects=False,
            trust_env=through_proxy,
        )
        self._transport = _Transport(context, lookups)


class _Transport(httpx.AsyncHTTPTransport):
    def __init__(self, context: ssl.SSLContext, lookups: NameLookups) -> None:
        super().__init__(verify=context)
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=context,
            max_connections=None,
            max_keepalive_connections=_IDLE_CONNECTIONS,
            keepalive_expiry=_IDLE_S,
            network_backend=lookups,
        )


class Delivery:
    """Sends payloads by HTTP.

    Redirects are not followed: an address that was not configured receives nothing.
    `public_only`: nor does any host that is not of the public internet. Then it goes
    through no proxy: that would look up the name itself, and reach what it can.
    """

    def __init__(
        self,
        timeout_s: float = TIMEOUT_S,
        clock: Callable[[], float] = time.time,
        *,
        public_only: bool = False,
    ) -> None:
        self._lookups = NameLookups(public_only=public_only)
        self._client = _Client(timeout_s, self._lookups, through_proxy=not public_only)
        self._timeout_s = timeout_s
        self._clock = clock

    async def deliver(self, hook: Webhook, payload: Payload) -> DeliveryResult:
        """Try once.

        Errors are named by their class only: their text may hold the address.
        """
        head = headers(payload, hook.secret, self._clock())
        try:
            request = self._client.build_request(
                "POST", hook.url, content=payload.body, headers=head
            )
            async with asyncio.timeout(self._timeout_s):
                answer = await self._client.send(request, stream=True)
        except TimeoutError:
            return DeliveryResult(
                DeliveryOutcome.RETRIED, f"no answer within {self._timeout_s:g} s"
            )
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            return DeliveryResult(DeliveryOutcome.RETRIED, type(error).__name__)
        try:
            return _interpret(answer, self._clock())
        finally:
            await _discard(answer)

    async def close(self) -> None:
        """Close its connections."""
        await self._client.aclose()
        self._lookups.close()


async def _discard(answer: httpx.Response) -> None:
    size = 0
    try:
        async with asyncio.timeout(_READ_S):
            async for part in answer.aiter_raw():
                size += len(part)
                if size > _READ_BYTES:
                    break
    except (httpx.HTTPError, TimeoutError, OSError):
        pass
    finally:
        await answer.aclose()


def _interpret(answer: httpx.Response, now: float) -> DeliveryResult:
    status = answer.status_code
    if answer.is_success:
        return DeliveryResult(DeliveryOutcome.DELIVERED, f"status {status}")
    if status in (408, 429) or status >= 500:
        return DeliveryResult(
            DeliveryOutcome.RETRIED,
            f"status {status}",
            retry_after(answer.headers.get("Retry-After", ""), now),
        )
    why = "a redirect, which is not followed" if answer.is_redirect else "refused"
    return DeliveryResult(DeliveryOutcome.DROPPED, f"status {status}: {why}")


def retry_after(text: str, now: float) -> float:
    """The seconds that a `Retry-After` asks for, as a number or as a date.

    0 when it cannot be read.
    """
    try:
        if text.strip().isdecimal():
            seconds = float(text)
        else:
            seconds = parsedate_to_datetime(text).timestamp() - now
    except (ValueError, OverflowError):
        return 0.0
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_S)
