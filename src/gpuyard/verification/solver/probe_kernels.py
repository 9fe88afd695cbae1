# pyright: basic, reportMissingImports=false, reportIndexIssue=false
"""The steps of the memory proof as Triton kernels, which move the memory no more often
than they must.

Each row is a row of `memory`, an array of signed 64-bit words on the GPU. PyTorch alone
takes several passes for each of these steps (`probe_gpu.py`), and gives the same words.

Triton compiles a kernel anew for whole numbers of another size and for addresses that
are aligned otherwise. That would happen within a proof, so no argument differs in these
between a small memory and a large one, or between nonces.
"""

import torch
import triton
import triton.language as tl

_BLOCK = 4096  # words; a row is a multiple of it
_WARPS = 16


def fill(memory: torch.Tensor, base: int, step: int, factor: int) -> None:
    """Each word becomes the mix of `place * step + base`."""
    blocks = memory.numel() // _BLOCK
    _fill[(blocks,)](memory, base, step, factor, _BLOCK, num_warps=_WARPS)


def pair(
    memory: torch.Tensor,
    ones: torch.Tensor,
    others: torch.Tensor,
    shift: int,
    factor: int,
) -> None:
    """Mix each row of `ones` with its partner in `others`, shifted by `shift` words;
    then the partner with the new row.
    """
    _pair[(ones.numel(),)](
        memory,
        ones,
        others,
        shift,
        factor,
        memory.shape[1],
        _BLOCK,
        num_warps=_WARPS,
    )


def sums(memory: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The weighted sum of each row."""
    rows, words = memory.shape
    found = torch.empty(rows, dtype=torch.int64, device=memory.device)
    _sum[(rows,)](memory, weights, found, words, _BLOCK, num_warps=_WARPS)
    return found


@triton.jit
def _mixed(words, factor):
    # The mask makes the signed shift an unsigned one.
    return (words ^ ((words >> 31) & 0x1FFFFFFFF)) * factor


@triton.jit(do_not_specialize=["base"])
def _fill(memory, base, step, factor, block: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * block
    places = first + tl.arange(0, block)
    tl.store(memory + places, _mixed(places * step + base, factor))


@triton.jit(do_not_specialize=["ones", "others"])
def _pair(
    memory, ones, others, shift, factor, words_a_row: tl.constexpr, block: tl.constexpr
):
    number = tl.program_id(0)
    one = memory + tl.load(ones + number) * words_a_row
    other = memory + tl.load(others + number) * words_a_row
    _add_shifted(one, other, shift, factor, words_a_row, block)
    # All words of `one` are new before any of them is read.
    tl.debug_barrier()
    _add_shifted(other, one, shift, factor, words_a_row, block)


@triton.jit
def _add_shifted(
    row, beside, shift, factor, words_a_row: tl.constexpr, block: tl.constexpr
):
    for first in range(0, words_a_row, block):
        places = first + tl.arange(0, block)
        shifted = (places + words_a_row - shift) % words_a_row
        words = tl.load(row + places) + tl.load(beside + shifted)
        tl.store(row + places, _mixed(words, factor))


@triton.jit
def _sum(memory, weights, found, words_a_row: tl.constexpr, block: tl.constexpr):
    number = tl.program_id(0).to(tl.int64)
    row = memory + number * words_a_row
    total = tl.zeros((block,), tl.int64)
    for first in range(0, words_a_row, block):
        places = first + tl.arange(0, block)
        total += tl.load(row + places) * tl.load(weights + places)
    tl.store(found + number, tl.sum(total))
