"""Requests that come at a rate, whether or not the earlier ones are answered.

The times between them are drawn from an exponential distribution, so arrivals are a
Poisson process. The same seed gives every strategy the same requests.
"""

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from .generated_answer import GeneratedAnswer
from .prompts import Prompt

_MOST_AT_ONCE = 512


@dataclass(frozen=True)
class TimedRequest:
    """A prompt that comes `at_s` seconds after the start."""

    at_s: float
    prompt: Prompt


class ConcurrentEngine(Protocol):
    """An engine that takes requests while it answers others."""

    def answer(self, prompt: Prompt) -> GeneratedAnswer:
        """Return the answer to one prompt; several threads may ask."""
        ...


class BatchEngine(Protocol):
    """An engine that answers one batch after the other."""

    def generate(self, batch: Sequence[Prompt]) -> Sequence[GeneratedAnswer]:
        """Return the answers to a batch."""
        ...


def poisson_arrivals(
    prompts: Sequence[Prompt], rate: float, count: int, seed: int
) -> list[TimedRequest]:
    """Return `count` requests at `rate` per second; the prompts take turns."""
    chance = random.Random(f"{seed}/{rate:g}")  # must be repeatable
    at_s = 0.0
    requests: list[TimedRequest] = []
    for number in range(count):
        at_s += chance.expovariate(rate)
        requests.append(TimedRequest(at_s, prompts[number % len(prompts)]))
    return requests


def ask_concurrently(
    engine: ConcurrentEngine, requests: Sequence[TimedRequest]
) -> list[dict[str, Any]]:
    """Send each request at its time; return a row for each, as `row_of_request`."""
    began = time.perf_counter()

    def ask(request: TimedRequest) -> dict[str, Any]:
        started_s = time.perf_counter() - began
        return row_of_request(request, started_s, engine.answer(request.prompt))

    with ThreadPoolExecutor(min(len(requests), _MOST_AT_ONCE)) as threads:
        asked: list[Any] = []
        for request in requests:
            _wait_until(began + request.at_s)
            asked.append(threads.submit(ask, request))
        return [one.result() for one in asked]


def ask_in_batches(
    engine: BatchEngine,
    requests: Sequence[TimedRequest],
    batch_size: int,
    agree: Callable[[int], int],
) -> list[dict[str, Any]]:
    """Answer what has come, at most `batch_size` requests at a time.

    All ranks of a replica must form the same batches: `agree` returns the number that
    one of them has. Returns a row for each request, as `row_of_request`.
    """
    began = time.perf_counter()
    rows: list[dict[str, Any]] = []
    waiting = list(requests)
    while waiting:
        _wait_until(began + waiting[0].at_s)
        now_s = time.perf_counter() - began
        come = sum(request.at_s <= now_s for request in waiting)
        count = agree(min(max(come, 1), batch_size))
        batch = waiting[:count]
        waiting = waiting[count:]
        started_s = time.perf_counter() - began
        answers = engine.generate([request.prompt for request in batch])
        rows += [
            row_of_request(request, started_s, answer)
            for request, answer in zip(batch, answers)  # noqa: B905
        ]
    return rows


def row_of_request(
    request: TimedRequest, started_s: float, answer: GeneratedAnswer
) -> dict[str, Any]:
    """Return the times of a request from when it came, in milliseconds.

    TTFT is that to the first token; TPOT is the mean time of each further one. Without
    the time of the first token, it is that of the last.
    """
    waited_s = max(0.0, started_s - request.at_s)
    first_s = answer.times[0] if answer.times else answer.finished_s
    further = answer.count - 1
    tpot_ms = None
    if further > 0 and answer.times:
        tpot_ms = (answer.finished_s - first_s) / further * 1000
    return {
        "prompt_id": request.prompt.prompt_id,
        "variant": request.prompt.variant,
        "arrived_s": request.at_s,
        "ttft_ms": (waited_s + first_s) * 1000,
        "tpot_ms": tpot_ms,
        "latency_ms": (waited_s + answer.finished_s) * 1000,
        "tokens": answer.count,
    }


def _wait_until(moment: float) -> None:
    pause_s = moment - time.perf_counter()
    if pause_s > 0:
        time.sleep(pause_s)
