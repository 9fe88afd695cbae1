"""Sequences that repeat one number: a language model learns them in seconds."""

import torch


class Numbers(torch.utils.data.Dataset):
    """`count` sequences of 32 equal tokens below 64."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.rows = torch.randint(0, 64, (count, 1), generator=generator).repeat(1, 32)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}
