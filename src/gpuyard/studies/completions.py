"""A client for OpenAI-compatible endpoints, with rate limits and retries."""

import asyncio
import math
import random
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from gpuyard.domain.errors import (
    GpuyardError,
    InvalidInputError,
    RefusedError,
    UnauthorizedError,
    UnreachableError,
)
from gpuyard.studies.rate_limiter import RateLimiter, RequestClock
from gpuyard.studies.study import BaselineSection, plain_name

if TYPE_CHECKING:
    from openai import AsyncOpenAI

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
# A header may ask for hours, which is a refusal.
_LONGEST_WISH_S = 600.0
_CHARACTERS_PER_TOKEN = 4
# What an endpoint may add to a model's name; `-instruct` or another number is another
# model.
_REVISION = re.compile(
    r"(?:[-_:](?:\d{4}(?:-?\d{2}-?\d{2})?|v\d[\w.]*|latest|[0-9a-f]{7,40}))?"
)


@dataclass(frozen=True, slots=True)
class Completion:
    """An answer.

    `latency_ms` is the latency of the successful request. Token counts are the
    endpoint's.
    """

    text: str
    latency_ms: float
    tokens: int | None
    prompt_tokens: int | None
    model: str
    finish_reason: str = ""


_PATHS = {"chat": "/chat/completions", "completions": "/completions"}


class NoCompletionError(GpuyardError):
    """The endpoint gave no answer to one prompt; others may fare better."""

    code = "no_answer"
    exit_code = 4


class OpenAICompletionClient:
    """Asks one model at one endpoint, at most `concurrency` prompts at a time."""

    def __init__(
        self,
        settings: BaselineSection,
        environment: Mapping[str, str],
        clock: RequestClock | None = None,
    ) -> None:
        """Read the API key from `environment`; InvalidInputError when it is not set."""
        self.settings = settings
        self._clock = clock or RequestClock()
        self._pace = RateLimiter(
            settings.requests_per_minute, settings.tokens_per_minute, self._clock
        )
        self._places = asyncio.Semaphore(settings.concurrency)
        self._heard = False
        self._client = _connect(settings, _key(settings, environment))

    async def complete_prompt(
        self, prompt: str, prompt_tokens: int | None = None
    ) -> Completion:
        """Return the model's answer to one prompt.

        Without `prompt_tokens`, the number of tokens is estimated from the text.
        NoCompletionError when this prompt gets no answer. Any other GpuyardError means
        that no prompt will get one: wrong key, model or quota, or an endpoint that
        never answered.
        """
        import openai

        guess = prompt_tokens or len(prompt.encode()) // _CHARACTERS_PER_TOKEN + 1
        async with self._places:
            for attempt in range(self.settings.retries + 1):
                ticket = await self._pace.enter(guess + self.settings.max_tokens)
                try:
                    answer = await self._ask(prompt)
                except (openai.OpenAIError, _NothingError) as error:
                    self._heard = self._heard or not isinstance(
                        error, openai.APIConnectionError
                    )
                    pause = _pause_after(error, attempt)
                    if pause is None or attempt == self.settings.retries:
                        raise _explained(error, self.settings, self._heard) from error
                    await self._clock.sleep(pause)
                else:
                    self._heard = True
                    self._pace.settle(
                        ticket, (answer.prompt_tokens or 0) + (answer.tokens or 0)
                    )
                    return answer
        raise AssertionError("a loop of at least one round returns or raises")

    async def complete_batch(
        self, prompts: Sequence[str]
    ) -> list[Completion | NoCompletionError]:
        """Return an answer or an error for each prompt, in their order."""

        async def one(prompt: str) -> Completion | NoCompletionError:
            try:
                return await self.complete_prompt(prompt)
            except NoCompletionError as error:
                return error

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(prompt)) for prompt in prompts]
        except* GpuyardError as errors:
            raise errors.exceptions[0] from None
        return [task.result() for task in tasks]

    async def close(self) -> None:
        """Let go of the connections."""
        await self._client.close()

    async def _ask(self, prompt: str) -> Completion:
        began = time.monotonic()
        try:
            response = await self._request(prompt)
        except ValueError:
            raise _NothingError("the endpoint's answer is no JSON") from None
        answer = self.normalize_response(response, 1000 * (time.monotonic() - began))
        _check_model(answer.model, self.settings)
        return answer

    async def _request(self, prompt: str) -> Any:
        wanted = self.settings
        if wanted.api == "completions":
            return await self._client.completions.create(
                model=wanted.model,
                prompt=prompt,
                max_tokens=wanted.max_tokens,
                temperature=wanted.temperature,
            )
        return await self._client.chat.completions.create(
            model=wanted.model,
            messages=[{"role": "user", "content": prompt}],
            max_tokens=wanted.max_tokens,
            temperature=wanted.temperature,
        )

    @staticmethod
    def normalize_response(response: Any, latency_ms: float) -> Completion:
        """Convert the SDK's response into a Completion.

        _NothingError when it has no choice, NoCompletionError when it has no text.
        """
        choices = getattr(response, "choices", None)
        if not choices:
            raise _NothingError("the endpoint answered without a choice")
        message = getattr(choices[0], "message", None)
        text = (
            getattr(choices[0], "text", None)
            if message is None
            else getattr(message, "content", None)
        )
        if not text:
            raise NoCompletionError(
                "the endpoint answered without text (finish_reason"
                f" {choices[0].finish_reason})"
            )
        usage = getattr(response, "usage", None)
        return Completion(
            text=_whole_characters(str(text)),
            latency_ms=round(latency_ms, 3),
            tokens=getattr(usage, "completion_tokens", None),
            prompt_tokens=getattr(usage, "prompt_tokens", None),
            model=str(getattr(response, "model", None) or ""),
            finish_reason=str(choices[0].finish_reason or ""),
        )


def _whole_characters(text: str) -> str:
    """Replace lone surrogates by question marks: JSON can hold them, UTF-8 cannot."""
    return text.encode(errors="replace").decode()


class _NothingError(Exception):
    """A response without an answer, which is worth another try."""


def _key(settings: BaselineSection, environment: Mapping[str, str]) -> str:
    name = settings.api_key_env
    if not name:
        return "none"
    key = environment.get(name, "").strip()
    if not key:
        remedy = (
            'export it, or set api_key_env = "" for an endpoint that asks for no key'
        )
        raise InvalidInputError.of(
            "baseline.api_key_env", f"the variable {name} is not set", remedy
        )
    if not key.isascii() or not key.isprintable():
        raise InvalidInputError.of(
            "baseline.api_key_env", f"{name} holds what no key can hold", "set it anew"
        )
    return key


def _connect(settings: BaselineSection, key: str) -> "AsyncOpenAI":
    try:
        from openai import AsyncOpenAI
    except ImportError:
        raise InvalidInputError.of(
            "baseline", "needs OpenAI's SDK", "pip install 'gpuyard[studies]'"
        ) from None
    return AsyncOpenAI(
        base_url=settings.base_url,
        api_key=key,
        timeout=settings.timeout_s,
        max_retries=0,
    )


def _check_model(answered: str, settings: BaselineSection) -> None:
    """Raise InvalidInputError when another model answered than the one asked for.

    Endpoints may add a date or a revision to the name, or drop the owner.
    """
    wanted = [
        plain_name(name) for name in (settings.model, settings.answers_as) if name
    ]
    given = plain_name(answered)
    if not answered or any(
        given.startswith(name) and _REVISION.fullmatch(given[len(name) :])
        for name in wanted
    ):
        return
    fault = (
        f"{settings.base_url} answered as {answered!r} when it was asked for"
        f" {settings.model!r}"
    )
    raise InvalidInputError.of(
        "baseline.model",
        fault,
        f"ask for what it serves, or set answers_as = {answered!r}",
    )


def _pause_after(error: Exception, attempt: int) -> float | None:
    """Seconds until it is worth trying again; None when it is not."""
    import openai

    if isinstance(error, openai.APIStatusError):
        if _quota_is_used_up(error) or not (
            error.status_code in (408, 409, 429) or error.status_code >= 500
        ):
            return None
        wish = retry_after(error.response.headers, time.time())
        if wish is not None:
            return wish if wish <= _LONGEST_WISH_S else None
    elif not isinstance(
        error,
        openai.APIConnectionError | openai.APIResponseValidationError | _NothingError,
    ):
        return None
    pause = min(_FIRST_PAUSE_S * 2**attempt, _LONGEST_PAUSE_S)
    return pause * random.uniform(0.75, 1.25)


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds that `retry-after-ms` or `retry-after` asks to wait."""
    for name, unit in (("retry-after-ms", 1000), ("retry-after", 1)):
        with suppress(ValueError):
            wish = float(headers.get(name, "nan")) / unit
            if not math.isnan(wish):
                return max(wish, 0.0)
    try:
        at = parsedate_to_datetime(headers.get("retry-after", ""))
    except ValueError:
        return None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return max((at - datetime.fromtimestamp(now, UTC)).total_seconds(), 0.0)


def _quota_is_used_up(error: Any) -> bool:
    return getattr(error, "code", None) == "insufficient_quota"


def _explained(
    error: Exception, settings: BaselineSection, heard: bool
) -> GpuyardError:
    """Convert an SDK's error into ours.

    A NoCompletionError concerns one prompt; every other error concerns all of them.
    `heard` says whether the endpoint has answered before.
    """
    import openai

    where = settings.base_url
    if isinstance(error, openai.AuthenticationError | openai.PermissionDeniedError):
        return _bad_key(error.status_code, settings)
    if isinstance(error, openai.NotFoundError):
        path = _PATHS[settings.api]
        fault = f"{where} knows no model {settings.model!r}, or has no {path}"
        remedy = "correct baseline.model or baseline.base_url"
        return InvalidInputError.of("baseline.model", fault, remedy)
    if _quota_is_used_up(error):
        message = f"{where} says that the key's quota is used up."
        return RefusedError(message, "Raise it, then run again.")
    if isinstance(error, openai.APITimeoutError):
        return NoCompletionError(f"no answer within {settings.timeout_s:g} s")
    if isinstance(error, openai.APIConnectionError):
        what = f"the connection failed: {error.__cause__ or error}"
        if heard:
            return NoCompletionError(what)
        return UnreachableError(f"{where} cannot be reached: {what}.", "Is it up?")
    if isinstance(error, openai.APIStatusError):
        return _failed_request(error)
    return NoCompletionError(_brief(str(error)))


def _bad_key(status_code: int, settings: BaselineSection) -> UnauthorizedError:
    what = f"{settings.base_url} asks for a key"
    if settings.api_key_env:
        what = f"{settings.base_url} refuses the key in {settings.api_key_env}"
    remedy = "Put a valid key into that variable."
    return UnauthorizedError(f"{what} (HTTP {status_code}).", remedy)


def _failed_request(error: Any) -> NoCompletionError:
    """Describe an HTTP error, and a wait that is too long."""
    wait_s = retry_after(error.response.headers, time.time()) or 0.0
    wait = ""
    if wait_s > _LONGEST_WISH_S:
        wait = f" (it asks to wait for {wait_s / 3600:.1f} h)"
    message = _brief(_own_words(error))
    return NoCompletionError(f"HTTP {error.status_code}: {message}{wait}")


def _own_words(error: Any) -> str:
    """What the endpoint says of its error, without what surrounds it."""
    match error.body:
        case {"message": str(told)}:
            return told
        case _:
            return str(error.message)


def _brief(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 200 else f"{line[:199]}…"
