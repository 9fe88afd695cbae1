# pyright: basic, reportMissingImports=false
"""Rotary position embedding: plain, linearly scaled, and scaled as Llama 3 does."""

import math
from typing import Any

import torch
from torch import Tensor


def frequencies(rope: dict[str, Any], head_size: int) -> Tensor:
    """Radians per position of each pair of channels, `[head_size / 2]`."""
    plain = 1.0 / (
        rope["rope_theta"]
        ** (torch.arange(0, head_size, 2, dtype=torch.float) / head_size)
    )
    if rope["rope_type"] == "linear":
        return plain / rope["factor"]
    if rope["rope_type"] == "llama3":
        return _llama3(plain, rope)
    return plain


def _llama3(plain: Tensor, rope: dict[str, Any]) -> Tensor:
    """Scale frequencies as Llama 3 does.

    Long waves are stretched by `factor`, short ones are kept, and those between are
    blended.
    """
    low = rope["low_freq_factor"]
    high = rope["high_freq_factor"]
    turns = rope["original_max_position_embeddings"] * plain / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - kept) * plain / rope["factor"] + kept * plain


class Rotation:
    """Cosines and signed sines of the first `length` positions.

    Both are `[length, head_size]`.
    """

    def __init__(
        self, rope: dict[str, Any], head_size: int, length: int, like: Tensor
    ) -> None:
        angles = torch.arange(length, dtype=torch.float)[:, None] * frequencies(
            rope, head_size
        )
        self._cosines = torch.cat((angles.cos(), angles.cos()), -1).to(like)
        self._sines = torch.cat((-angles.sin(), angles.sin()), -1).to(like)
        self._half = head_size // 2

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines for positions `[batch, tokens]`.

        They are `[batch, tokens, 1, head_size]`, to be broadcast over heads.
        """
        return self._cosines[positions].unsqueeze(2), self._sines[positions].unsqueeze(
            2
        )

    def turn(self, heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        """Rotate heads `[batch, tokens, heads, head_size]` by their positions."""
        return torch.addcmul(heads * cosines, heads.roll(self._half, -1), sines)
