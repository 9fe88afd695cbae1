# pyright: basic, reportMissingImports=false
"""The engine `transformers`, in this process.

A prompt's answer follows from the model, the seed and the prompt: each prompt has its
own random numbers. The rest of the batch can only change the last digits of its logits,
and hardly does, since all shapes are fixed (rows are padded on the left to a multiple
of 128). Settings of the order's engine: `model`, `dtype` (the model's own), `device`
and `batch_size` (all prompts at once).
"""

import gc
import inspect
import os
from typing import Any, Optional

from . import EngineError, request_seed, required, token_ids
from .fingerprints import TOP, PrintedAnswer, TokenPrint

_WIDTH = 128
# Less likely tokens than these are never drawn: a nucleus of 0.8 has fewer.
_CANDIDATES = 1024
# Given tokens are followed for so many answers at once: logits of all their places are
# in memory together.
_FOLLOWED_AT_ONCE = 4


class TransformersSolverEngine:
    """One causal language model."""

    def __init__(self, engine: dict[str, Any], settings: dict[str, Any]) -> None:
        # cuBLAS gives the same result twice only with a workspace of fixed size; it is
        # read before CUDA starts.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        try:
            import torch
            import transformers
        except ImportError as error:
            raise EngineError(
                f"transformers and PyTorch are not installed here: {error}"
            ) from error
        self._torch = torch
        self._version = f"transformers {transformers.__version__}"
        self._settings = settings
        self._batch_size = int(engine.get("batch_size") or 0)
        self._device = engine.get("device") or (
            "cuda" if torch.cuda.is_available() else "cpu"
        )
        self._new_cache = transformers.DynamicCache
        _be_repeatable(torch)
        path = required(engine, "model")
        try:
            self._tokenizer = transformers.AutoTokenizer.from_pretrained(path)
            model = transformers.AutoModelForCausalLM.from_pretrained(
                path, torch_dtype=engine.get("dtype", "auto")
            )
        except (OSError, ValueError) as error:
            raise EngineError(
                f"engine.model: {path} cannot be loaded: {error}"
            ) from error
        self._model: Any = model.to(self._device).eval()
        self._ends = _end_ids(self._model, self._tokenizer)
        # The logits of the whole prompt would be by far the largest tensor.
        last_only = (
            "logits_to_keep" in inspect.signature(self._model.forward).parameters
        )
        self._options: dict[str, Any] = {"logits_to_keep": 1} if last_only else {}

    def answer(self, prompts: list[str], seed: int) -> list[str]:
        """The texts. The last batch is filled up, so that all are of one size."""
        return [self._text(row) for row in self._drawn(prompts, seed, None)]

    def fingerprints(
        self, prompts: list[str], seed: int, tokens: Optional[list[list[int]]]
    ) -> list[PrintedAnswer]:
        """See `SolverEngine.fingerprints`."""
        if tokens is not None:
            return self._followed(prompts, seed, tokens)
        prints: list[list[TokenPrint]] = []
        rows = self._drawn(prompts, seed, prints)
        return [PrintedAnswer(self._text(row), one) for row, one in zip(rows, prints)]

    def runtime(self) -> dict[str, str]:
        """The versions of the packages, and the model's number format."""
        dtype = str(self._model.dtype).removeprefix("torch.")
        engine = f"{self._version}, torch {self._torch.__version__}"
        return {"engine": engine, "dtype": dtype}

    def close(self) -> None:
        """Free the GPU."""
        self._model = None
        gc.collect()
        if self._torch.cuda.is_available():
            self._torch.cuda.empty_cache()

    def _drawn(
        self, prompts: list[str], seed: int, prints: Optional[list[list[TokenPrint]]]
    ) -> list[list[int]]:
        """The tokens of each answer; its fingerprints are added to `prints`."""
        size = self._batch_size or len(prompts)
        said: list[list[int]] = []
        for start in range(0, len(prompts), size):
            some = prompts[start : start + size]
            filled = some + some[:1] * (size - len(some))
            made: list[list[TokenPrint]] = [[] for _ in filled]
            with self._torch.inference_mode():
                watched = None if prints is None else made
                said += self._batch(filled, seed, watched)[: len(some)]
            if prints is not None:
                prints += made[: len(some)]
        return said

    def _batch(
        self, prompts: list[str], seed: int, prints: Optional[list[list[TokenPrint]]]
    ) -> list[list[int]]:
        torch = self._torch
        limit = int(self._settings["max_tokens"])
        draws = self._draws_of(prompts, seed)
        tokens, mask = self._padded(
            [token_ids(self._tokenizer, prompt) for prompt in prompts]
        )
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        cache = self._new_cache()
        said: list[list[int]] = [[] for _ in prompts]
        live = set(range(len(prompts)))
        for step in range(limit):
            logits = self._model(
                input_ids=tokens.to(self._device),
                attention_mask=mask.to(self._device),
                position_ids=positions.to(self._device),
                past_key_values=cache,
                use_cache=True,
                **self._options,
            ).logits[:, -1]
            chosen = self._choose(logits, draws[:, step])
            printed = None if prints is None else self._printed(logits, chosen)
            for row in sorted(live):
                token = int(chosen[row])
                said[row].append(token)
                if prints is not None and printed is not None:
                    prints[row].append(printed[row])
                if token in self._ends:
                    live.discard(row)
            if not live:
                break
            tokens = chosen[:, None]
            positions = positions[:, -1:] + 1
            mask = torch.cat([mask, torch.ones_like(tokens)], 1)
        return said

    def _text(self, tokens: list[int]) -> str:
        """The text of an answer, without the token that ends it."""
        said = tokens[:-1] if tokens and tokens[-1] in self._ends else tokens
        return self._tokenizer.decode(said, skip_special_tokens=True)

    def _printed(self, logits: Any, chosen: Any) -> list[TokenPrint]:
        """The fingerprint of a place in each row, by its logits."""
        values, ids = logits.float().log_softmax(-1).topk(TOP)
        rows = zip(chosen.tolist(), ids.tolist(), values.tolist())
        return [TokenPrint(*row) for row in rows]

    def _followed(
        self, prompts: list[str], seed: int, given: list[list[int]]
    ) -> list[PrintedAnswer]:
        """The fingerprints of given answers, by one pass for each few of them.

        An answer with a token that the model does not have has no fingerprint.
        """
        known = self._model.get_input_embeddings().num_embeddings
        found = [PrintedAnswer("", whole=False) for _ in prompts]
        able = [
            place
            for place, row in enumerate(given)
            if row and max(row) < known and len(row) <= self._settings["max_tokens"]
        ]
        for start in range(0, len(able), _FOLLOWED_AT_ONCE):
            some = able[start : start + _FOLLOWED_AT_ONCE]
            with self._torch.inference_mode():
                prints = self._follow(
                    [prompts[place] for place in some],
                    seed,
                    [given[place] for place in some],
                )
            for place, one in zip(some, prints):
                text = self._text(given[place])
                found[place] = PrintedAnswer(text, one, self._is_whole(given[place]))
        return found

    def _is_whole(self, tokens: list[int]) -> bool:
        ends = [place for place, token in enumerate(tokens) if token in self._ends]
        last = len(tokens) - 1
        return ends == [last] or (
            not ends and len(tokens) == int(self._settings["max_tokens"])
        )

    def _follow(
        self, prompts: list[str], seed: int, given: list[list[int]]
    ) -> list[list[TokenPrint]]:
        torch = self._torch
        draws = self._draws_of(prompts, seed)
        asked = [token_ids(self._tokenizer, prompt) for prompt in prompts]
        before, seen = self._padded(asked)
        longest = max(map(len, given))
        after = torch.zeros((len(given), longest - 1), dtype=torch.long)
        follows = torch.zeros_like(after)
        for row, tokens in enumerate(given):
            after[row, : len(tokens) - 1] = torch.tensor(tokens[:-1], dtype=torch.long)
            follows[row, : len(tokens) - 1] = 1
        mask = torch.cat([seen, follows], 1)
        options = {"logits_to_keep": longest} if self._options else {}
        logits = self._model(
            input_ids=torch.cat([before, after], 1).to(self._device),
            attention_mask=mask.to(self._device),
            position_ids=(mask.cumsum(1) - 1).clamp(min=0).to(self._device),
            use_cache=False,
            **options,
        ).logits[:, -longest:]
        found: list[list[TokenPrint]] = [[] for _ in given]
        for step in range(longest):
            drawn = self._choose(logits[:, step], draws[:, step])
            for row, one in enumerate(self._printed(logits[:, step], drawn)):
                if step < len(given[row]):
                    found[row].append(one)
        return found

    def _draws_of(self, prompts: list[str], seed: int) -> Any:
        """Numbers in [0, 1): a row for each prompt, of one for each token."""
        limit = int(self._settings["max_tokens"])
        return self._torch.stack(
            [self._draws(request_seed(seed, prompt), limit) for prompt in prompts]
        )

    def _draws(self, seed: int, count: int) -> Any:
        """Numbers in [0, 1), one for each token of an answer."""
        generator = self._torch.Generator().manual_seed(seed)
        return self._torch.rand(count, generator=generator, dtype=self._torch.float64)

    def _padded(self, rows: list[list[int]]) -> Any:
        """(tokens, mask), filled on the left to the next multiple of the width."""
        torch = self._torch
        width = -(-max(map(len, rows)) // _WIDTH) * _WIDTH
        filler = self._tokenizer.pad_token_id
        filler = filler if filler is not None else min(self._ends, default=0)
        tokens = torch.full((len(rows), width), filler, dtype=torch.long)
        mask = torch.zeros_like(tokens)
        for row, ids in enumerate(rows):
            tokens[row, width - len(ids) :] = torch.tensor(ids)
            mask[row, width - len(ids) :] = 1
        return tokens, mask

    def _choose(self, logits: Any, draws: Any) -> Any:
        """One token a row, from the smallest set of the likeliest that holds `top_p`.

        On the CPU in double precision, where sums are the same twice; a tie goes to the
        lower token.
        """
        torch = self._torch
        temperature = float(self._settings["temperature"])
        logits = logits.float() / (temperature or 1.0)
        total = logits.logsumexp(-1, keepdim=True)
        values, ids = logits.topk(min(_CANDIDATES, logits.shape[-1]))
        shares = (values - total).double().exp().cpu()
        ids = ids.cpu()
        ids, order = ids.sort(dim=-1)
        shares, order = shares.gather(-1, order).sort(
            dim=-1, descending=True, stable=True
        )
        ids = ids.gather(-1, order)
        if temperature == 0:
            return ids[:, 0]
        sums = shares.cumsum(-1)
        kept = (sums - shares < float(self._settings["top_p"])).sum(-1, keepdim=True)
        aim = draws[:, None] * sums.gather(-1, kept - 1)
        place = torch.searchsorted(sums, aim, right=True).minimum(kept - 1)
        return ids.gather(-1, place)[:, 0]


def _be_repeatable(torch: Any) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = False


def _end_ids(model: Any, tokenizer: Any) -> set[int]:
    """The tokens that end an answer."""
    said = model.generation_config.eos_token_id
    if said is None:
        said = tokenizer.eos_token_id
    if said is None:
        return set()
    return set(said) if isinstance(said, (list, tuple)) else {int(said)}


def load(
    engine: dict[str, Any], settings: dict[str, Any], count: int
) -> TransformersSolverEngine:
    """Raises `EngineError` where the packages or the model are missing."""
    return TransformersSolverEngine(engine, settings)
