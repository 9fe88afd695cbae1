# pyright: basic, reportMissingImports=false, reportIndexIssue=false
"""The passes of the memory proof as Triton kernels.

Each pass is one kernel, which reads and writes each word once.

`memory` is an array of rows of signed 64-bit words on the GPU.

Triton compiles a kernel anew for whole numbers of another size or with another greatest
power of two, and for addresses that are aligned otherwise. That would happen within a
proof, so no argument differs in these between a small memory and a large one, between
nonces, or between passes.
"""

from typing import Any

import triton
import triton.language as tl

_BLOCK = 4096  # words; a row is a multiple of it
_WARPS = 16


def fill(memory: Any, base: int, step: int, factor: int) -> None:
    """Each word becomes the mix of `place * step + base`."""
    blocks = memory.numel() // _BLOCK
    _fill[(blocks,)](memory, base, step, factor, _BLOCK, num_warps=_WARPS)


def mix(memory: Any, order: Any, sums: Any, shift: int, factor: int) -> None:
    """Mix each row of the first half of `order` with its partner of the second half,
    whose words are taken `shift` further on. `sums` gets the sum of each row.
    """
    rows, words = memory.shape
    pairs = rows // 2
    _mix[(pairs,)](
        memory,
        order,
        sums,
        pairs,
        shift,
        factor,
        words,
        _BLOCK,
        num_warps=_WARPS,
    )


@triton.jit
def _mixed(words, factor):
    # The mask makes the signed shift an unsigned one.
    return (words ^ ((words >> 31) & 0x1FFFFFFFF)) * factor


@triton.jit(do_not_specialize=["base"])
def _fill(memory, base, step, factor, block: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * block
    places = first + tl.arange(0, block)
    tl.store(memory + places, _mixed(places * step + base, factor))


@triton.jit(do_not_specialize=["pairs"])
def _mix(
    memory,
    order,
    sums,
    pairs,
    shift,
    factor,
    words_a_row: tl.constexpr,
    block: tl.constexpr,
):
    number = tl.program_id(0)
    one = tl.load(order + number)
    other = tl.load(order + pairs + number)
    one_sum = tl.zeros((block,), tl.int64)
    other_sum = tl.zeros((block,), tl.int64)
    for first in range(0, words_a_row, block):
        places = first + tl.arange(0, block)
        ones = memory + one * words_a_row + places
        others = memory + other * words_a_row + (places + shift) % words_a_row
        partners = tl.load(others)
        left = _mixed(tl.load(ones) + partners, factor)
        right = _mixed(partners + left, factor)
        tl.store(ones, left)
        tl.store(others, right)
        one_sum += left
        other_sum += right
    tl.store(sums + one, tl.sum(one_sum))
    tl.store(sums + other, tl.sum(other_sum))


def seven_bits(sums: Any, rows: Any) -> None:
    """Seven bits of each sum become a number of `rows` (see `product`)."""
    count = rows.numel()
    blocks = -(-count // _BLOCK)
    _seven_bits[(blocks,)](sums, rows, count, _BLOCK, num_warps=_WARPS)


@triton.jit(do_not_specialize=["count"])
def _seven_bits(sums, rows, count, block: tl.constexpr):
    places = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    inside = places < count
    words = tl.load(sums + places, mask=inside, other=0)
    bits = ((words ^ (words >> 9)) & 127) - 64
    tl.store(rows + places, bits.to(tl.int8), mask=inside)
