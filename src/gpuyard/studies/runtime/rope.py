# pyright: basic, reportMissingImports=false
"""Rotary position embedding: plain, or scaled linearly, as Llama 3 does, or by yarn."""

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
    if rope["rope_type"] == "yarn":
        return _yarn(plain, rope, head_size)
    return plain


def magnitude(rope: dict[str, Any]) -> float:
    """The factor of cosines and sines: 1, except where yarn lengthens the context."""
    if rope["rope_type"] != "yarn":
        return 1.0
    stated = rope.get("attention_factor")
    if stated is not None:
        return float(stated)
    factor = rope["factor"]
    share = rope.get("mscale")
    share_everywhere = rope.get("mscale_all_dim")
    if share and share_everywhere:
        return _yarn_magnitude(factor, share) / _yarn_magnitude(
            factor, share_everywhere
        )
    return _yarn_magnitude(factor, 1.0)


def _yarn_magnitude(factor: float, share: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * share * math.log(factor) + 1.0


def _yarn(plain: Tensor, rope: dict[str, Any], head_size: int) -> Tensor:
    """Scale frequencies as yarn does.

    Channels that turn fewer than `beta_slow` times in the original context are
    stretched by `factor`, those that turn more than `beta_fast` times are kept, and
    those between are blended.
    """
    length = rope["original_max_position_embeddings"]

    def channel(turns: float) -> float:
        waves = math.log(length / (turns * 2 * math.pi))
        return head_size * waves / (2 * math.log(rope["rope_theta"]))

    first = channel(rope.get("beta_fast") or 32)
    last = channel(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        first = math.floor(first)
        last = math.ceil(last)
    first = max(first, 0)
    last = min(last, head_size - 1)
    if first == last:
        # A ramp of no width would divide by nothing.
        last += 0.001
    numbers = torch.arange(head_size // 2, dtype=torch.float)
    stretched = ((numbers - first) / (last - first)).clamp(0, 1)
    return stretched * plain / rope["factor"] + (1 - stretched) * plain


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
        cosines = angles.cos() * magnitude(rope)
        sines = angles.sin() * magnitude(rope)
        self._cosines = torch.cat((cosines, cosines), -1).to(like)
        self._sines = torch.cat((-sines, sines), -1).to(like)
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
