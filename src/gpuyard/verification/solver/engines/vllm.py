# pyright: basic, reportMissingImports=false
"""The engine `vllm`, in this process: all prompts in one batch, each with its own seed.

What else the order's engine holds is passed to vLLM's `LLM` (`dtype`, `max_model_len`,
`gpu_memory_utilization`, …). For a GPU without batch-invariant kernels set
`"batch_invariant": false`.
"""

import gc
import os
import sys
from typing import Any, Optional

from . import EngineError, request_seed, required, token_ids
from .fingerprints import TOP, UNKNOWN, PrintedAnswer, TokenPrint

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
        self._version = str(vllm.__version__)
        self._model = required(engine, "model")
        options = {"dtype": "auto", "seed": 0, **_options(engine)}
        # Without prefix caching, which changes shapes and so the last digits.
        self._llm: Any = vllm.LLM(
            model=self._model,
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

    def fingerprints(
        self, prompts: list[str], seed: int, tokens: Optional[list[list[int]]]
    ) -> list[PrintedAnswer]:
        """See `SolverEngine.fingerprints`. It cannot tell which token a seed gives."""
        tokenizer = self._llm.get_tokenizer()
        ends = _end_ids(self._model, tokenizer)
        asked = [token_ids(tokenizer, prompt) for prompt in prompts]
        if tokens is not None:
            return self._followed(asked, tokens, ends)
        sampling = [
            self._sampling_of(request_seed(seed, prompt), logprobs=TOP)
            for prompt in prompts
        ]
        said = [one.outputs[0] for one in self._generated(asked, sampling)]
        return [
            PrintedAnswer(
                self._text(list(one.token_ids), ends),
                [
                    _printed(token, place)
                    for token, place in zip(one.token_ids, one.logprobs)
                ],
            )
            for one in said
        ]

    def runtime(self) -> dict[str, str]:
        """The version of vLLM, and the model's number format."""
        config = self._llm.llm_engine.model_config
        dtype = str(config.dtype).replace("torch.", "")
        return {"engine": f"vllm {self._version}", "dtype": dtype}

    def _followed(
        self, asked: list[list[int]], given: list[list[int]], ends: set[int]
    ) -> list[PrintedAnswer]:
        """The fingerprints of given answers, which are read and not written.

        An answer with a token that the model does not have has no fingerprint.
        """
        known = len(self._llm.get_tokenizer())
        limit = int(self._settings["max_tokens"])
        found = [PrintedAnswer("", whole=False) for _ in asked]
        able = [
            place
            for place, row in enumerate(given)
            if row and max(row) < known and len(row) <= limit
        ]
        # The last token is the one that is written, so that all fits where it did.
        sampling = self._sampling(
            temperature=0, max_tokens=1, logprobs=TOP, prompt_logprobs=TOP
        )
        read = [asked[place] + given[place][:-1] for place in able]
        outputs = self._generated(read, [sampling] * len(able))
        for place, output in zip(able, outputs):
            row = given[place]
            before = output.prompt_logprobs[len(asked[place]) :]
            places = [*before, output.outputs[0].logprobs[0]]
            ended = [number for number, token in enumerate(row) if token in ends]
            found[place] = PrintedAnswer(
                self._text(row, ends),
                [_printed(UNKNOWN, one) for one in places],
                ended == [len(row) - 1] or (not ended and len(row) == limit),
            )
        return found

    def _generated(self, rows: list[list[int]], sampling: list[Any]) -> Any:
        asked = [{"prompt_token_ids": row} for row in rows]
        return self._llm.generate(asked, sampling, use_tqdm=False) if asked else []

    def _text(self, tokens: list[int], ends: set[int]) -> str:
        """The text of an answer, without the token that ends it."""
        said = tokens[:-1] if tokens and tokens[-1] in ends else tokens
        return self._llm.get_tokenizer().decode(said, skip_special_tokens=True)

    def close(self) -> None:
        """Free the GPU."""
        self._llm = None
        gc.collect()
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _sampling_of(self, seed: int, **more: Any) -> Any:
        settings = self._settings
        return self._sampling(
            temperature=settings["temperature"],
            top_p=settings["top_p"],
            max_tokens=settings["max_tokens"],
            seed=seed,
            **more,
        )


def _printed(token: int, logprobs: dict[int, Any]) -> TokenPrint:
    """The fingerprint of a place, of which vLLM says more than the likeliest."""
    likeliest = sorted(logprobs.items(), key=lambda one: -one[1].logprob)[:TOP]
    ids = [token_id for token_id, _ in likeliest]
    return TokenPrint(token, ids, [one.logprob for _, one in likeliest])


def _end_ids(model: str, tokenizer: Any) -> set[int]:
    """The tokens that end an answer: the tokenizer's, and those of the model."""
    ends = {tokenizer.eos_token_id}
    try:
        from transformers import GenerationConfig

        said = GenerationConfig.from_pretrained(model).eos_token_id
        ends.update(said if isinstance(said, (list, tuple)) else [said])
    except (ImportError, OSError):
        pass
    return ends - {None}


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
