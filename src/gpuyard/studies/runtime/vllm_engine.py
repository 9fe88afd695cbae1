# pyright: basic, reportMissingImports=false
"""The engine `vllm`: one process drives vLLM, which starts its own workers."""

import hashlib
import os
import time
from collections.abc import Sequence
from typing import Any

from .decoder_shape import read_eos_ids
from .errors import RunError
from .experiment import Experiment
from .generated_answer import GeneratedAnswer, TokenConfidence
from .prompts import Prompt

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
# What a launcher says about its processes; vllm's workers are others, and would believe
# it.
LAUNCHER = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)


class OfflineVllmEngine:
    """vLLM's offline class `LLM`.

    It counts neither bytes nor communication; the memory is that of its workers.
    """

    name = "vllm"
    version = ""
    bytes_read = bytes_share = 0

    def __init__(self, experiment: Experiment) -> None:
        self._experiment = experiment

    def load(self) -> None:
        """Start vLLM.

        Raises `RunError` when it is not installed or does not support the layout.
        """
        experiment = self._experiment
        if experiment.dp_size > 1:
            raise RunError(
                f"the engine vllm runs one replica, but dp_size is {experiment.dp_size}"
            )
        try:
            import vllm
        except ImportError as error:
            raise RunError(f"the engine vllm is not installed here: {error}") from error
        for name in LAUNCHER:
            os.environ.pop(name, None)
        self._vllm = vllm
        self.version = vllm.__version__
        self._eos_ids = sorted(read_eos_ids(experiment.model_path))
        self._llm = vllm.LLM(
            model=str(experiment.model_path),
            dtype=DTYPES[experiment.precision],
            seed=experiment.seed,
            tensor_parallel_size=experiment.tp_size,
            pipeline_parallel_size=experiment.pp_size,
            max_num_seqs=experiment.batch_size,
            disable_log_stats=False,
            enable_prefix_caching=False,
            distributed_executor_backend=_executor(experiment),
            **experiment.engine_options,
        )

    def warm_up(self) -> None:
        """Generate two tokens."""
        self._llm.generate(
            [{"prompt_token_ids": [0, 0]}],
            [self._vllm.SamplingParams(max_tokens=2)],
            use_tqdm=False,
        )

    def generate(self, batch: Sequence[Prompt]) -> list[GeneratedAnswer]:
        """Return the answers to a batch."""
        began = time.perf_counter()
        asked = [{"prompt_token_ids": list(prompt.token_ids)} for prompt in batch]
        said = self._llm.generate(
            asked, [self._sampling(prompt) for prompt in batch], use_tqdm=False
        )
        seconds = time.perf_counter() - began
        return [
            _answer(prompt, output, seconds)
            for prompt, output in zip(batch, said, strict=True)
        ]

    def communication_s(self) -> float | None:
        """Return None, because vLLM's workers do not report this."""
        return None

    def _sampling(self, prompt: Prompt) -> Any:
        experiment = self._experiment
        stops = {} if experiment.ignore_eos else {"stop_token_ids": self._eos_ids}
        return self._vllm.SamplingParams(
            temperature=experiment.temperature,
            top_p=experiment.top_p,
            top_k=experiment.top_k or -1,
            max_tokens=experiment.max_new_tokens,
            ignore_eos=experiment.ignore_eos,
            detokenize=False,
            seed=seed_of(experiment.seed, prompt.prompt_id),
            logprobs=2 if experiment.temperature == 0 else None,
            **stops,
        )


def _executor(experiment: Experiment) -> str | None:
    """Return how vLLM runs its workers: by Ray on several hosts, else as processes."""
    if experiment.world_size == 1:
        return None
    return "ray" if experiment.num_nodes > 1 else "mp"


def seed_of(seed: int, prompt_id: str) -> int:
    """Return the seed of a prompt, which does not depend on the rest of the batch."""
    return int.from_bytes(
        hashlib.blake2b(f"{seed}/{prompt_id}".encode(), digest_size=4).digest(), "big"
    )


def _answer(prompt: Prompt, output: Any, seconds: float) -> GeneratedAnswer:
    """Convert vLLM's output.

    vLLM reports the times of the first and the last token; the others are spaced evenly
    between them. Without these times, only the batch's time is known.
    """
    text = output.outputs[0]
    answer = GeneratedAnswer(
        prompt, list(text.token_ids), [], seconds, text.finish_reason or "length"
    )
    answer.confidence = _confidence(text)
    first, last = _span(getattr(output, "metrics", None))
    count = len(answer.token_ids)
    if first is None or last is None or not count:
        return answer
    step = (last - first) / max(count - 1, 1)
    answer.times = [first + step * number for number in range(count)]
    answer.finished_s = answer.times[-1]
    return answer


def _confidence(text: Any) -> list[TokenConfidence]:
    """Return how sure vLLM was of each token; nothing unless it tells that of all.

    vLLM gives a dictionary for each token: log-probabilities by the token's id.
    """
    found: list[TokenConfidence] = []
    told: Sequence[Any] = getattr(text, "logprobs", None) or []
    for token, known in zip(text.token_ids, told, strict=False):
        logprobs = {int(key): float(value.logprob) for key, value in known.items()}
        own = logprobs.pop(token, None)
        if own is None or not logprobs:
            return []
        runner_up = max(logprobs, key=lambda other: logprobs[other])
        found.append(TokenConfidence(own, runner_up, logprobs[runner_up]))
    return found


def _span(metrics: Any) -> tuple[float | None, float | None]:
    """Return the seconds from a request's arrival to its first and its last token."""
    if getattr(metrics, "first_token_latency", 0):
        first = metrics.first_token_latency
        return first, first + metrics.last_token_ts - metrics.first_token_ts
    if getattr(metrics, "first_token_time", None) and getattr(
        metrics, "finished_time", None
    ):
        return (
            metrics.first_token_time - metrics.arrival_time,
            metrics.finished_time - metrics.arrival_time,
        )
    return None, None
