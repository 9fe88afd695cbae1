"""Batches: random blocks of a text, in an order that a checkpoint keeps."""

import torch
from torch import Tensor


class Batches:
    """Blocks of `block_size` tokens that start anywhere in `tokens` (a vector of ids,
    longer than a block).
    """

    def __init__(
        self, tokens: Tensor, block_size: int, batch_size: int, seed: int
    ) -> None:
        self._tokens = tokens
        self._shape = batch_size, block_size
        self._offsets = torch.arange(block_size + 1, device=tokens.device)
        # Of its own, so that nothing else that draws numbers changes which blocks come.
        self._generator = torch.Generator().manual_seed(seed)

    def draw(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets, both (batch_size, block_size); a target is the token
        after its input.
        """
        batch_size, block_size = self._shape
        starts = torch.randint(
            len(self._tokens) - block_size, (batch_size, 1), generator=self._generator
        )
        blocks = self._tokens[starts.to(self._tokens.device) + self._offsets]
        return blocks[:, :-1], blocks[:, 1:]

    def state(self) -> Tensor:
        """Where the order stands; `restore` goes on from there."""
        return self._generator.get_state()

    def restore(self, state: Tensor) -> None:
        self._generator.set_state(state)
