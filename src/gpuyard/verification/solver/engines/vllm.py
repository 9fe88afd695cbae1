# pyright: basic, reportMissingImports=false
"""The engine `vllm`, in this process: all prompts in one batch, each with its own seed.

What else the order's engine holds is passed to vLLM's `LLM` (`dtype`, `max_model_len`,
`gpu_memory_utilization`, …). For a GPU without batch-invariant kernels set
`"batch_invariant": false`.
"""

import gc
import os
import sys
from typing import Any

from . import EngineError, request_seed, required, token_ids

# What an order says to us and not to vLLM, and what only we may say to vLLM.
_OURS = ("kind", "model", "url", "batch_invariant")
_RESERVED = ("max_num_seqs", "enable_prefix_caching")


class VllmSolverEngine:
    """One model."""

    def __init__(
        self, engine: dict[str, Any], settings: dict[str, Any], count: int
    ) -> None:
        # In a process of its own, vLLM's scheduler would form batches of other sizes.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        if engine.get("batch_invariant", True):
            # vLLM reads this at import; older versions ignore it.
            os.environ["VLLM_BATCH_INVARIANT"] = "1"
        try:
            import vllm
        except ImportError as error:
            raise EngineError(f"vllm is not installed here: {error}") from error
        self._settings = settings
        self._sampling = vllm.SamplingParams
        options = {"dtype": "auto", "seed": 0, **_options(engine)}
        # Without prefix caching, which changes shapes and so the last digits.
        self._llm: Any = vllm.LLM(
            model=required(engine, "model"),
            max_num_seqs=count,
            enable_prefix_caching=False,
            **options,
        )

    def answer(self, prompts: list[str], seed: int) -> list[str]:
        """The texts."""
        tokenizer = self._llm.get_tokenizer()
        asked = [
            {"prompt_token_ids": token_ids(tokenizer, prompt)} for prompt in prompts
        ]
        sampling = [self._sampling_of(request_seed(seed, prompt)) for prompt in prompts]
        return [
            one.outputs[0].text
            for one in self._llm.generate(asked, sampling, use_tqdm=False)
        ]

    def close(self) -> None:
        """Free the GPU."""
        self._llm = None
        gc.collect()
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _sampling_of(self, seed: int) -> Any:
        settings = self._settings
        return self._sampling(
            temperature=settings["temperature"],
            top_p=settings["top_p"],
            max_tokens=settings["max_tokens"],
            seed=seed,
        )


def _options(engine: dict[str, Any]) -> dict[str, Any]:
    """The options for vLLM in an order; EngineError for one that we set."""
    taken = [name for name in _RESERVED if name in engine]
    if taken:
        raise EngineError(
            f"engine.options.{taken[0]}: is set by gpuyard, so that answers can be"
            " repeated; leave it out"
        )
    return {name: value for name, value in engine.items() if name not in _OURS}


def load(
    engine: dict[str, Any], settings: dict[str, Any], count: int
) -> VllmSolverEngine:
    """Raises `EngineError` where vLLM is missing."""
    return VllmSolverEngine(engine, settings, count)
