"""The proofs of memory and speed on the processor, and what they are made of."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuyard.verification.solver import memory, memory_c, product, proofs
from gpuyard.verification.solver.memory_numpy import NumpyMemory
from tests.support.components import require

NONCE = "00112233445566778899aabbccddeeff"
PAIR_GB = 2 * memory.ROW_BYTES / 2**30
ATTACKER = Path(__file__).parents[2] / "programs" / "memory_attacker.c"


def compiled(rows: int) -> memory_c.CompiledMemory:
    """A memory whose passes are in C."""
    library = memory_c.compiled()
    assert library, "no C compiler"
    return memory_c.CompiledMemory(library, rows)


@pytest.mark.parametrize("rows", [2, 6])
def test_c_and_numpy_prove_the_same(rows: int) -> None:
    digests = {memory.digest(NONCE, make(rows)) for make in (compiled, NumpyMemory)}
    assert len(digests) == 1
    assert digests.isdisjoint({memory.digest("ff", NumpyMemory(rows))})


def test_where_no_compiler_is_numpy_proves_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(proofs, "_compiled", {})
    monkeypatch.setenv("PATH", "")
    said = proofs.vram(NONCE, PAIR_GB)
    assert said["digest"] == memory.digest(NONCE, compiled_by_path(monkeypatch))
    assert said["gigabytes"] == PAIR_GB


def compiled_by_path(monkeypatch: pytest.MonkeyPatch) -> memory_c.CompiledMemory:
    """The same in C, with the compiler back in its place."""
    monkeypatch.undo()
    return compiled(2)


@pytest.mark.parametrize("prove", [proofs.vram, lambda nonce, _: speed_of(nonce)])
def test_a_nonce_that_is_none(prove: Callable[[str, float], Any]) -> None:
    with pytest.raises(ValueError, match="non-hexadecimal"):
        prove("xyz", PAIR_GB)


def test_a_processor_does_not_try_what_a_gpu_is_asked() -> None:
    for gigabytes in (13.6, float("nan"), float("inf")):
        with pytest.raises(RuntimeError, match="no GPU here, and"):
            proofs.vram(NONCE, gigabytes)
    with pytest.raises(RuntimeError, match="no GPU here, and"):
        proofs.speed(NONCE, 16384, 30)


def speed_of(nonce: str, steps: int = 2) -> str:
    """The digest of a small chain of products."""
    return proofs.speed(nonce, 64, steps)["digest"]


def test_a_product_depends_on_its_nonce_and_on_every_step() -> None:
    assert speed_of(NONCE) == speed_of(NONCE)
    assert len({speed_of(NONCE), speed_of(NONCE, 3), speed_of("ff")}) == 3


def test_a_product_is_what_plain_whole_numbers_give() -> None:
    chain = product.NumpyProduct(NONCE, 16)
    rows = chain._rows.tolist()
    columns = chain._matrix.astype(int).T.tolist()
    chain.step()
    for row, after in zip(rows, chain._rows.tolist(), strict=True):
        sums = [sum(map(int.__mul__, row, column)) for column in columns]
        assert after == [((one ^ one >> 9) & 127) - 64 for one in sums]
        assert all(-64 <= one <= 63 for one in row)


class Spoiled(NumpyMemory):
    """One bit is lost before the pass with this number."""

    def __init__(self, rows: int, number: int) -> None:
        super().__init__(rows)
        self.left = number

    def mix(self, start: int, shift: int) -> bytes:
        if self.left == 0:
            self._words[1, 77] ^= 1
        self.left -= 1
        return super().mix(start, shift)


@pytest.mark.parametrize("number", [0, memory.FEWEST_PASSES - 1])
def test_a_single_bit_that_is_lost_changes_the_digest(number: int) -> None:
    assert memory.digest(NONCE, Spoiled(2, number)) != memory.digest(
        NONCE, NumpyMemory(2)
    )


def test_after_the_passes_every_word_depends_on_every_row() -> None:
    """So that no part can be computed alone: one bit at the beginning, and hardly a
    word of any row stays as it was.
    """
    straight = NumpyMemory(4)
    memory.digest(NONCE, straight)
    spoiled = Spoiled(4, 0)
    memory.digest(NONCE, spoiled)
    same = int((straight._words == spoiled._words).sum())
    assert same < 4 * memory.WORDS / 100


def test_an_attacker_in_c_proves_the_same(tmp_path: Path) -> None:
    """`benchmarks/verification_proof.py` measures that it is hardly faster."""
    require("compiler", shutil.which("gcc") is not None)
    program = tmp_path / "attacker"
    words = ["gcc", "-O3", "-march=native", str(ATTACKER), "-o", str(program)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    done = subprocess.run(
        [program, NONCE, "6"], capture_output=True, text=True, check=False
    )
    assert done.stdout.split()[0] == memory.digest(NONCE, compiled(6)), done.stderr
