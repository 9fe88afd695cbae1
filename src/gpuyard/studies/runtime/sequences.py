# pyright: basic, reportMissingImports=false
"""Sequences that pass the model together: their tokens, their cache, their ends."""

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .decoder_shape import DecoderShape
from .generated_answer import GeneratedAnswer, TokenConfidence
from .prompts import Prompt
from .rope import Rotation


@dataclass(frozen=True)
class CacheLayout:
    """The size of the cache on one rank: its `layers` and `kv_heads`.

    `like` has the device and type of the cache.
    """

    shape: DecoderShape
    layers: int
    kv_heads: int
    like: Tensor


class Sequences:
    """Prompts padded on the left to the longest, with a cache for prompts and answers.

    Token ids are `[batch, length]`. The cache has `length + limit` places; the keys and
    values of each layer are `[batch, kv_heads, places, size]`.
    """

    def __init__(
        self,
        prompts: Sequence[Prompt],
        limit: int,
        eos_ids: frozenset[int],
        cache_layout: CacheLayout,
        began: float,
    ) -> None:
        shape = cache_layout.shape
        like = cache_layout.like
        self.answers = [GeneratedAnswer(prompt) for prompt in prompts]
        self.length = max(len(prompt.token_ids) for prompt in prompts)
        self.pads = [self.length - len(prompt.token_ids) for prompt in prompts]
        self.limit = limit
        self.step = 0
        self._eos_ids = eos_ids
        self._began = began
        padded = [
            [0] * pad + list(prompt.token_ids)
            for pad, prompt in zip(self.pads, prompts, strict=True)
        ]
        places = self.length + limit
        self.ids = torch.tensor(padded, device=like.device)
        self.rotation = Rotation(shape.rope, shape.rotated_size, places, like)
        size = (len(prompts), cache_layout.kv_heads, places)
        layers = range(cache_layout.layers)
        self.keys = [like.new_empty(*size, shape.head_size) for _ in layers]
        self.values = [like.new_empty(*size, shape.value_size) for _ in layers]
        self._pads = torch.tensor(self.pads, device=like.device)
        self.mask = self._mask(places, like) if any(self.pads) else None

    def _mask(self, places: int, like: Tensor) -> Tensor:
        """Return the mask `[batch, 1, 1, places]`: 0 for tokens, -inf for padding."""
        padded = torch.arange(places, device=like.device) < self._pads[:, None]
        return like.new_zeros(padded.shape).masked_fill_(padded, float("-inf"))[
            :, None, None
        ]

    @property
    def tokens(self) -> int:
        """The number of tokens per sequence in the next step: the prompt, later one."""
        return self.ids.shape[1]

    @property
    def start(self) -> int:
        """The place of the first of them in the cache."""
        return self.length + self.step - self.tokens

    @property
    def done(self) -> bool:
        """Whether nobody goes on."""
        return self.step == self.limit or all(answer.done for answer in self.answers)

    def rotations(self) -> tuple[Tensor, Tensor]:
        """Return cosines and sines of the next positions, not counting the padding."""
        places = torch.arange(
            self.start, self.start + self.tokens, device=self.ids.device
        )
        return self.rotation.at((places[None] - self._pads[:, None]).clamp_(min=0))

    def accept(
        self, tokens: Tensor, confidence: Sequence[TokenConfidence] | None = None
    ) -> None:
        """Go on by one token each, `[batch]`; who has ended takes no more."""
        self.ids = tokens[:, None]
        self.step += 1
        chosen = tokens.tolist()
        now = time.perf_counter() - self._began
        sure = confidence or [None] * len(chosen)
        for answer, token, how_sure in zip(self.answers, chosen, sure, strict=True):
            answer.add(token, now, self._eos_ids, how_sure)


def split(prompts: Sequence[Prompt], parts: int) -> list[Sequence[Prompt]]:
    """At most `parts` even runs of prompts."""
    parts = min(parts, len(prompts))
    edges = [len(prompts) * part // parts for part in range(parts + 1)]
    return [prompts[start:end] for start, end in itertools.pairwise(edges)]
