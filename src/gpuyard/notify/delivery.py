"""One try at one delivery, and what the receiver's answer means. Imported late: it is what needs the HTTP client."""

import asyncio
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime

import httpx

from gpuyard.notify.answer import Answer, Outcome
from gpuyard.notify.letter import Letter, headers
from gpuyard.notify.webhook import Webhook

TIMEOUT_S = 10.0
# A receiver may ask for this much patience, and no more.
MAX_RETRY_AFTER_S = 3600.0
# So much of an answer is read, that the connection may be used again; nobody looks at it.
_READ_BYTES, _READ_S = 64 * 1024, 1.0


class Delivery:
    """Sends letters. Redirects are not followed: an address that was not configured is told nothing."""

    def __init__(self, timeout_s: float = TIMEOUT_S, clock: Callable[[], float] = time.time) -> None:
        self._client = httpx.AsyncClient(
            timeout=timeout_s, follow_redirects=False, limits=httpx.Limits(max_connections=None)
        )
        self._timeout_s = timeout_s
        self._clock = clock

    async def deliver(self, hook: Webhook, letter: Letter) -> Answer:
        """Try once. Errors are told by their class: their words may hold the address."""
        head = headers(letter, hook.secret, self._clock())
        try:
            request = self._client.build_request("POST", hook.url, content=letter.body, headers=head)
            async with asyncio.timeout(self._timeout_s):
                answer = await self._client.send(request, stream=True)
        except TimeoutError:
            return Answer(Outcome.RETRIED, f"no answer within {self._timeout_s:g} s")
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            return Answer(Outcome.RETRIED, type(error).__name__)
        try:
            return _meaning(answer, self._clock())
        finally:
            await _leave(answer)

    async def close(self) -> None:
        """Close its connections."""
        await self._client.aclose()


async def _leave(answer: httpx.Response) -> None:
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


def _meaning(answer: httpx.Response, now: float) -> Answer:
    status = answer.status_code
    if answer.is_success:
        return Answer(Outcome.DELIVERED, f"status {status}")
    if status in (408, 429) or status >= 500:
        return Answer(Outcome.RETRIED, f"status {status}", retry_after(answer.headers.get("Retry-After", ""), now))
    why = "a redirect, which is not followed" if answer.is_redirect else "refused"
    return Answer(Outcome.DROPPED, f"status {status}: {why}")


def retry_after(text: str, now: float) -> float:
    """For how many seconds a `Retry-After` asks, as a number or as a date; 0 when it says nothing."""
    try:
        seconds = float(text) if text.strip().isdecimal() else parsedate_to_datetime(text).timestamp() - now
    except (ValueError, OverflowError):
        return 0.0
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_S)
