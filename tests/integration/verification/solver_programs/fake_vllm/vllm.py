"""A vllm that answers with a text that follows from what it was asked. It takes no
option that vllm has not.

It writes what it was told into the file FAKE_VLLM. A prompt's ids are its bytes, and it
has no form for chats.
"""

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

__version__ = "0.0.fake"
# As the real one: read once, when it is imported.
_INVARIANT = os.environ.get("VLLM_BATCH_INVARIANT")


@dataclass
class SamplingParams:
    """The fields of vllm's that are used."""

    temperature: float = 1.0
    top_p: float = 1.0
    seed: int | None = None
    max_tokens: int | None = 16
    logprobs: int | None = None
    prompt_logprobs: int | None = None


class _Tokenizer:
    chat_template = os.environ.get("FAKE_VLLM_CHAT")
    eos_token_id = 256

    def __len__(self) -> int:
        return 257

    def decode(self, tokens: list[int], *, skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return bytes(tokens).decode()

    def apply_chat_template(
        self, chat: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        assert (tokenize, add_generation_prompt) == (False, True)
        return "".join(f"<{message['role']}>{message['content']}" for message in chat)

    def __call__(
        self, text: str, *, add_special_tokens: bool = True
    ) -> dict[str, list[int]]:
        return {"input_ids": [0] * add_special_tokens + list(text.encode())}


class LLM:
    """The engine."""

    def __init__(
        self,
        model: str,
        *,
        dtype: str = "auto",
        seed: int = 0,
        max_num_seqs: int = 256,
        enable_prefix_caching: bool = True,
        gpu_memory_utilization: float = 0.9,
        max_model_len: int | None = None,
    ) -> None:
        self._told: dict[str, Any] = {
            name: value for name, value in locals().items() if name != "self"
        }
        config = SimpleNamespace(dtype="torch.bfloat16" if dtype == "auto" else dtype)
        self.llm_engine = SimpleNamespace(model_config=config)
        self._told["environment"] = {
            "VLLM_BATCH_INVARIANT": _INVARIANT,
            "VLLM_ENABLE_V1_MULTIPROCESSING": os.environ.get(
                "VLLM_ENABLE_V1_MULTIPROCESSING"
            ),
        }

    def get_tokenizer(self) -> _Tokenizer:
        """The model's."""
        return _Tokenizer()

    def generate(
        self,
        prompts: list[dict[str, Any]],
        params: list[SamplingParams],
        *,
        use_tqdm: bool,
    ) -> list[Any]:
        """Answers in the order of the prompts."""
        self._told |= {
            "sampling": [
                {name: said for name, said in asdict(one).items() if said is not None}
                for one in params
            ],
            "prompts": [one["prompt_token_ids"] for one in prompts],
        }
        Path(os.environ["FAKE_VLLM"]).write_text(json.dumps(self._told))
        # As its workers do.
        os.write(1, b"Processed prompts: 100%")
        return [
            _answer(prompt["prompt_token_ids"], one)
            for prompt, one in zip(prompts, params, strict=True)
        ]


def _answer(ids: list[int], params: SamplingParams) -> Any:
    said = (ids, params.temperature, params.top_p, params.seed)
    text = hashlib.sha256(repr(said).encode()).hexdigest()[: params.max_tokens]
    tokens = list(text.encode())
    one = SimpleNamespace(
        text=text,
        token_ids=tokens,
        finish_reason="length",
        logprobs=[
            _likeliest([*ids, *tokens[:place]], token)
            for place, token in enumerate(tokens)
        ],
    )
    prompt_logprobs = [
        _likeliest(ids[:place], token) if place else None
        for place, token in enumerate(ids)
    ]
    return SimpleNamespace(outputs=[one], prompt_logprobs=prompt_logprobs)


def _likeliest(before: list[int], token: int) -> dict[int, Any]:
    """Five tokens that follow from those before, and the one that was taken."""
    chance = Random(repr(before))
    ids = chance.sample(range(256), 5)
    logprobs = {one: -1.0 - 2 * rank for rank, one in enumerate(ids)}
    return {
        one: SimpleNamespace(logprob=logprob)
        for one, logprob in {token: -20.0, **logprobs}.items()
    }
