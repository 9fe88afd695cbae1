"""The model, in a Python that has PyTorch."""

import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(900)


def run(python: str, folder: Path, program: str) -> str:
    command = [
        python,
        "-W",
        "ignore",
        "-c",
        f"import torch\nfrom model import GPT, GPTConfig\n{program}",
    ]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_gpt2_size_has_124_million_parameters(
    fast_torch_python: str, nanogpt: Path
) -> None:
    program = """
from options import DEFAULTS, SHAPES
with torch.device("meta"):
    print(GPT(GPTConfig(50257, DEFAULTS["gpt2"]["block_size"], **SHAPES["gpt2"])).parameter_count())
    print(GPT(GPTConfig()).parameter_count())
"""
    # GPT-2 small's own number, with biases and 1024 positions.
    assert run(fast_torch_python, nanogpt, program).split() == ["124439808"] * 2


def test_it_knows_nothing_at_first_and_never_the_future(
    fast_torch_python: str, nanogpt: Path
) -> None:
    program = """
import math
torch.manual_seed(0)
model = GPT(GPTConfig(vocab_size=50, block_size=8, layers=2, heads=2, width=16)).eval()
tokens = torch.randint(50, (4, 8))
changed = tokens.clone()
changed[:, 5:] = (changed[:, 5:] + 1) % 50
logits, loss = model(tokens, tokens)
assert abs(loss.item() - math.log(50)) < 0.5, loss
others, none = model(changed)
assert none is None
assert torch.equal(logits[:, :5], others[:, :5])
assert not torch.equal(logits[:, 5:], others[:, 5:])
assert model.head.weight is model.tokens.weight
"""
    run(fast_torch_python, nanogpt, program)


def test_it_continues_a_text_beyond_its_block(
    fast_torch_python: str, nanogpt: Path
) -> None:
    program = """
model = GPT(GPTConfig(vocab_size=5, block_size=8, layers=1, heads=1, width=4)).eval()
start = torch.tensor([[1, 2]])
longer = model.generate(start, 20)
assert longer.shape == (1, 22) and longer[0, :2].tolist() == [1, 2] and longer.max() < 5
surest = model.generate(start, 20, top_k=1)
assert torch.equal(surest, model.generate(start, 20, top_k=1))
"""
    run(fast_torch_python, nanogpt, program)


def test_bad_shapes_are_refused(fast_torch_python: str, nanogpt: Path) -> None:
    program = """
for make in (lambda: GPTConfig(width=10, heads=3), lambda: GPT(GPTConfig(5, 4, 1, 1, 4))(torch.zeros(1, 5).long())):
    try:
        make()
    except ValueError as error:
        print(error)
"""
    assert run(fast_torch_python, nanogpt, program).splitlines() == [
        "width must be a multiple of heads, and 10 is not one of 3",
        "5 tokens are more than the block of 4",
    ]


def test_batches_are_blocks_and_the_tokens_after_them(
    fast_torch_python: str, nanogpt: Path
) -> None:
    program = """
from batches import Batches
batches = Batches(torch.arange(10), block_size=9, batch_size=3, seed=1)
inputs, targets = batches.draw()
assert inputs.tolist() == [list(range(9))] * 3 and targets.tolist() == [list(range(1, 10))] * 3
batches = Batches(torch.arange(1000), block_size=4, batch_size=2, seed=1)
state = batches.state()
first = batches.draw()[0]
assert not torch.equal(first, batches.draw()[0])
batches.restore(state)
assert torch.equal(first, batches.draw()[0])
"""
    run(fast_torch_python, nanogpt, program)
