"""The engine `openai`: an endpoint for OpenAI's chat completions, asked all at once.

`url` is its base (with `/v1`). `key_variable` names the executor's environment variable
that has its key.
"""

import json
import os
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Optional

from . import EngineError, request_seed, required
from .fingerprints import PrintedAnswer

_TRIES = 4
_FIRST_PAUSE_S = 0.2
_WAIT_STEP_S = 10.0
_LONGEST_BODY = 1 << 24
# These are retried: too many requests, or a server that is not ready yet.
_PASSING = {408, 409, 425, 429, 500, 502, 503, 504}


class OpenAISolverEngine:
    """One model at one endpoint."""

    def __init__(
        self, engine: dict[str, Any], settings: dict[str, Any], count: int
    ) -> None:
        self._url = required(engine, "url").rstrip("/")
        self._model = required(engine, "model")
        self._timeout_s = float(engine.get("timeout_s", 150))
        self._at_once = int(engine.get("at_once", count))
        self._key = os.environ.get(engine.get("key_variable") or "OPENAI_API_KEY", "")
        self._sampling = {
            name: settings[name] for name in ("temperature", "top_p", "max_tokens")
        }

    def wait(self, within_s: float) -> None:
        """Wait for the endpoint; its server may still be loading the model."""
        deadline = time.monotonic() + within_s
        while True:
            try:
                self._ask("/models", None, _WAIT_STEP_S)
                return
            except urllib.error.HTTPError as error:
                if error.code not in _PASSING:
                    return  # It answers; not every endpoint lists its models.
                reason = str(error)
            except (OSError, ValueError) as error:
                reason = str(error)
            if time.monotonic() > deadline:
                raise EngineError(f"engine.url: {self._url} does not answer: {reason}")
            time.sleep(_FIRST_PAUSE_S)

    def answer(self, prompts: list[str], seed: int) -> list[str]:
        """Ask all prompts at once: sampling is repeatable only in one batch size."""
        with ThreadPoolExecutor(max_workers=max(1, self._at_once)) as threads:
            return list(threads.map(self._one, prompts, [seed] * len(prompts)))

    def fingerprints(
        self, prompts: list[str], seed: int, tokens: Optional[list[list[int]]]
    ) -> list[PrintedAnswer]:
        """EngineError: an endpoint cannot follow given tokens."""
        raise EngineError(
            "engine.kind: the engine openai has no fingerprints; use transformers or"
            " vllm, or remove the class from [verification.tolerances]"
        )

    def runtime(self) -> dict[str, str]:
        """An endpoint does not say it."""
        return {}

    def close(self) -> None:
        """It holds nothing here."""

    def _one(self, prompt: str, seed: int) -> str:
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": prompt}],
            "seed": request_seed(seed, prompt),
            "n": 1,
            **self._sampling,
        }
        for attempt in range(_TRIES):
            last = attempt == _TRIES - 1
            try:
                return _text(self._ask("/chat/completions", body, self._timeout_s))
            except urllib.error.HTTPError as error:
                if last or error.code not in _PASSING:
                    raise EngineError(
                        f"the endpoint answers {error.code}: {_shown(error)}"
                    ) from error
            except (OSError, ValueError) as error:
                if last:
                    raise EngineError(
                        f"the endpoint gives no answer: {error}"
                    ) from error
            time.sleep(_FIRST_PAUSE_S * 2**attempt)
        raise AssertionError("the last try returns or raises")

    def _ask(self, path: str, body: Optional[dict[str, Any]], timeout_s: float) -> Any:
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, headers)
        with urllib.request.urlopen(request, timeout=timeout_s) as reply:
            return json.loads(reply.read(_LONGEST_BODY))


def _text(reply: Any) -> str:
    """The answer in a completion; empty without content."""
    try:
        content = reply["choices"][0]["message"]["content"]
    except (KeyError, IndexError, TypeError) as error:
        raise EngineError(
            "the endpoint does not answer as OpenAI's chat completions do"
        ) from error
    return "" if content is None else str(content)


def _shown(error: urllib.error.HTTPError) -> str:
    return error.read(300).decode("utf-8", "replace")


def load(
    engine: dict[str, Any], settings: dict[str, Any], count: int
) -> OpenAISolverEngine:
    """Waits `wait_s` (300) for the endpoint. Raises `EngineError`."""
    found = OpenAISolverEngine(engine, settings, count)
    found.wait(float(engine.get("wait_s", 300)))
    return found
