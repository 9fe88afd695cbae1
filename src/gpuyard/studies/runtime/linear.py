# pyright: basic, reportMissingImports=false
"""Products with a matrix of weights, and norms of rows."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Linear:
    """The layer `x @ weight + bias`.

    The weight is stored as `[in, out]`: on CPUs this multiplies few rows up to twice as
    fast.
    """

    weight: Tensor
    bias: Tensor | None = None

    def __call__(self, rows: Tensor) -> Tensor:
        """`[n, in]` -> `[n, out]`."""
        return (
            rows @ self.weight
            if self.bias is None
            else torch.addmm(self.bias, rows, self.weight)
        )


@dataclass(frozen=True)
class Norm:
    """The root-mean-square norm of the last dimension.

    It is computed in the type of its weight, which may be wider than that of the rows.
    """

    weight: Tensor
    eps: float

    def __call__(self, rows: Tensor) -> Tensor:
        """`[…, size]` -> `[…, size]`, in the type of the rows."""
        wide = rows.to(self.weight.dtype)
        normed = functional.rms_norm(wide, self.weight.shape, self.weight, self.eps)
        return normed.to(rows.dtype)
