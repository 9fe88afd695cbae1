# pyright: basic, reportMissingImports=false
"""The engine `vllm`, in this process: all prompts in one batch, each with a seed of its own.

`options` of the order's engine go to vLLM's `LLM` as they are (`dtype`, `gpu_memory_utilization`, …). Where a GPU has
no kernels whose results do not depend on the batch, `"batch_invariant": false` does without them.
"""

import gc
import os
import sys
from typing import Any

from . import EngineError, request_seed, required
from .tokens import token_ids


class VllmEngine:
    """One model."""

    def __init__(self, engine: dict[str, Any], settings: dict[str, Any], count: int) -> None:
        # In its own process vLLM's scheduler would take requests as they arrive, in batches of other sizes.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        if engine.get("batch_invariant", True):
            # A version that has it reads it when it is imported; others do not know it.
            os.environ["VLLM_BATCH_INVARIANT"] = "1"
        try:
            import vllm
        except ImportError as error:
            raise EngineError(f"vllm is not installed here: {error}") from error
        self._settings, self._sampling = settings, vllm.SamplingParams
        options = {"dtype": "auto", "seed": 0, **engine.get("options", {})}
        # What was computed for one prompt is not used for another: that changes shapes, and with them last digits.
        self._llm: Any = vllm.LLM(
            model=required(engine, "model"), max_num_seqs=count, enable_prefix_caching=False, **options
        )

    def answer(self, prompts: list[str], seed: int) -> list[str]:
        """The texts."""
        tokenizer = self._llm.get_tokenizer()
        asked = [{"prompt_token_ids": token_ids(tokenizer, prompt)} for prompt in prompts]
        sampling = [self._sampling_of(request_seed(seed, prompt)) for prompt in prompts]
        return [one.outputs[0].text for one in self._llm.generate(asked, sampling, use_tqdm=False)]

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
            temperature=settings["temperature"], top_p=settings["top_p"], max_tokens=settings["max_tokens"], seed=seed
        )


def load(engine: dict[str, Any], settings: dict[str, Any], count: int) -> VllmEngine:
    """Raises `EngineError` where vLLM is missing."""
    return VllmEngine(engine, settings, count)
