"""What is read from an endpoint's answers and headers."""

from types import SimpleNamespace
from typing import Any

import pytest

from gpuyard.domain.errors import InvalidInputError
from gpuyard.studies.completions import (
    NoCompletionError,
    OpenAICompletionClient,
    retry_after,
)
from gpuyard.studies.study import BaselineSection

SETTINGS = BaselineSection(
    base_url="http://127.0.0.1:1/v1", model="meta-llama/Llama-3.1-8B", api_key_env="KEY"
)


def answer(text: str | None, **more: Any) -> Any:
    choice = SimpleNamespace(
        message=SimpleNamespace(content=text), finish_reason="stop"
    )
    usage = SimpleNamespace(completion_tokens=3, prompt_tokens=5)
    return SimpleNamespace(choices=[choice], usage=usage, model="m", **more)


def test_an_answer_is_made_plain() -> None:
    found = OpenAICompletionClient.normalize_response(answer("Yes."), 12.34567)
    assert (found.text, found.latency_ms, found.tokens, found.prompt_tokens) == (
        "Yes.",
        12.346,
        3,
        5,
    )
    assert (found.model, found.finish_reason) == ("m", "stop")


def test_half_a_character_does_not_spoil_the_table() -> None:
    assert OpenAICompletionClient.normalize_response(answer("a\ud83d"), 1).text == "a?"


@pytest.mark.parametrize("text", [None, ""])
def test_no_text_is_no_answer(text: str | None) -> None:
    with pytest.raises(NoCompletionError, match="without text"):
        OpenAICompletionClient.normalize_response(answer(text), 1)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7),
        ({"retry-after": "-1"}, 0),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}, 40),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:01 GMT"}, 0),
        ({"retry-after": "in a while"}, None),
        ({"retry-after": "nan"}, None),
    ],
)
def test_how_long_an_endpoint_asks_to_wait(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert retry_after(headers, now=60.0) == seconds


@pytest.mark.parametrize(
    "environment", [{}, {"KEY": ""}, {"KEY": "a\u2026b"}, {"KEY": "a\nb"}]
)
def test_without_a_key_nothing_is_asked(environment: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError, match=r"baseline\.api_key_env: .*KEY"):
        OpenAICompletionClient(SETTINGS, environment)
    OpenAICompletionClient(SETTINGS.model_copy(update={"api_key_env": ""}), environment)
