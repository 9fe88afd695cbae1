"""A vllm that answers what it was asked: the ids of the prompt, each plus one. It takes
no option that vllm has not.

It writes what it was told into the file FAKE_VLLM; FAKE_VLLM_METRICS says whose times
it tells: v1, v0 or none.
"""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

__version__ = "0.0.fake"


@dataclass
class SamplingParams:
    """The fields of vllm's that are used."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    max_tokens: int | None = 16
    ignore_eos: bool = False
    stop_token_ids: list[int] = field(default_factory=list)
    detokenize: bool = True
    logprobs: int | None = None


class LLM:
    """The engine."""

    def __init__(
        self,
        model: str,
        *,
        dtype: str,
        seed: int,
        tensor_parallel_size: int,
        pipeline_parallel_size: int,
        max_num_seqs: int,
        disable_log_stats: bool,
        distributed_executor_backend: str | None,
        enable_prefix_caching: bool,
    ) -> None:
        self._told: dict[str, Any] = {
            name: value for name, value in locals().items() if name != "self"
        }
        self._told |= {
            "launcher": sorted(
                {"RANK", "WORLD_SIZE", "MASTER_PORT"} & os.environ.keys()
            ),
            "sampling": [],
        }

    def generate(
        self,
        prompts: list[dict[str, Any]],
        params: list[SamplingParams],
        *,
        use_tqdm: bool,
    ) -> list[Any]:
        """Answers in the order of the prompts."""
        self._told["sampling"] += [asdict(one) for one in params]
        Path(os.environ["FAKE_VLLM"]).write_text(json.dumps(self._told))
        return [
            _answer(prompt["prompt_token_ids"], one)
            for prompt, one in zip(prompts, params, strict=True)
        ]


def _answer(ids: list[int], params: SamplingParams) -> Any:
    said: list[int] = []
    for token in ids[: params.max_tokens]:
        said.append(token + 1)
        if token + 1 in params.stop_token_ids and not params.ignore_eos:
            break
    stopped = bool(said) and said[-1] in params.stop_token_ids and not params.ignore_eos
    times = {
        "v1": SimpleNamespace(
            arrival_time=5e8,
            first_token_latency=0.25,
            first_token_ts=100.0,
            last_token_ts=100.5,
        ),
        "v0": SimpleNamespace(
            arrival_time=1000.0, first_token_time=1000.25, finished_time=1000.75
        ),
        "none": None,
    }[os.environ["FAKE_VLLM_METRICS"]]
    logprobs = [
        {
            token: SimpleNamespace(logprob=-0.25, rank=1),
            token + 1: SimpleNamespace(logprob=-1.75, rank=2),
        }
        for token in said
    ]
    text = SimpleNamespace(
        token_ids=tuple(said),
        text="",
        finish_reason="stop" if stopped else "length",
        logprobs=logprobs if params.logprobs else None,
    )
    return SimpleNamespace(outputs=[text], metrics=times)
