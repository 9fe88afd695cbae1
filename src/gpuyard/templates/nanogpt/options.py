"""The command line of `train.py`: two sizes, and what may be changed about them."""

import argparse
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

SHAPES = {
    "baby": {"layers": 4, "heads": 4, "width": 128},
    "gpt2": {"layers": 12, "heads": 12, "width": 768},
}

DEFAULTS: dict[str, dict[str, Any]] = {
    # 0.8 million parameters: half a minute on one CPU core.
    "baby": {
        "tokenizer": "char",
        "steps": 500,
        "batch_size": 12,
        "accumulate": 1,
        "block_size": 64,
        "dropout": 0.0,
        "lr": 2e-3,
        "min_lr": 2e-4,
        "warmup": 20,
        "eval_every": 100,
        "save_every": 50,
    },
    # GPT-2 small for a 16 GB T4: 4 batches make a step, since one of 8 x 1024 tokens
    # takes about 10 GB in half precision (reckoned: 2 for weights and optimiser, 4.4
    # kept for the gradients, 3.3 for those of the logits).
    "gpt2": {
        "tokenizer": "bpe",
        "steps": 3000,
        "batch_size": 8,
        "accumulate": 4,
        "block_size": 1024,
        "dropout": 0.1,
        "lr": 6e-4,
        "min_lr": 6e-5,
        "warmup": 100,
        "eval_every": 250,
        "save_every": 1000,
    },
}


class Options(argparse.Namespace):
    """What the command line asked for."""

    size: str
    data: str
    tokenizer: str
    out: Path
    resume: Path | None
    device: str
    seed: int
    steps: int
    batch_size: int
    accumulate: int
    block_size: int
    dropout: float
    lr: float
    min_lr: float
    warmup: int
    log_every: int
    eval_every: int
    save_every: int
    keep: int

    def learning_rate(self, step: int) -> float:
        """The rate for the step after `step` steps: up in a line over `warmup`, then
        half a cosine down to `min_lr`.
        """
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return (
            self.min_lr + (self.lr - self.min_lr) * (1 + math.cos(math.pi * done)) / 2
        )


class _Parser(argparse.ArgumentParser):
    """An argument parser whose complaint is one line, without the usage of all options
    above it.
    """

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


def parse(arguments: Sequence[str] | None = None) -> Options:
    """The options; one line on stderr and exit code 2 where they cannot be."""
    size = _Parser(prog="train.py", add_help=False, allow_abbrev=False)
    size.add_argument("--size", default="baby")
    chosen, _ = size.parse_known_args(arguments)
    parser = _parser()
    parser.set_defaults(**DEFAULTS.get(chosen.size, {}))
    options = parser.parse_args(arguments, Options())
    if options.min_lr > options.lr:
        parser.error(
            f"argument --min-lr: must be at most --lr ({options.lr:g}), not"
            f" {options.min_lr:g}"
        )
    return options


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="train.py",
        description="Train a GPT.",
        allow_abbrev=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add(
        "--size",
        choices=sorted(SHAPES),
        default="baby",
        help="the model and the defaults of all that follows",
    )
    add(
        "--data",
        default="shakespeare",
        help="shakespeare, stdlib (Python's own source) or the path of a text file",
    )
    add("--tokenizer", choices=["char", "bpe"], help="characters, or byte pairs")
    add(
        "--out",
        type=Path,
        default=Path("out"),
        help="folder of the checkpoints and of TensorBoard's logs",
    )
    resume = os.environ.get("GPUYARD_RESUME_FROM") or None
    add(
        "--resume",
        type=Path,
        default=resume,
        help="checkpoint to go on from, or a folder: then its newest",
    )
    add(
        "--device",
        choices=["auto", "cpu", "cuda"],
        default="auto",
        help="auto: a GPU if there is one",
    )
    add("--seed", type=_whole(0), default=1337, help="of weights and batches")
    add("--steps", type=_whole(1), help="steps in all, with those before --resume")
    add("--batch-size", type=_whole(1), help="blocks in a batch")
    add("--accumulate", type=_whole(1), help="batches whose gradients make one step")
    add("--block-size", type=_whole(2), help="tokens that the model sees at once")
    add(
        "--dropout",
        type=_number(float, lambda x: 0 <= x < 1, "a number from 0 up to 1"),
        help="share of activations left out",
    )
    add(
        "--lr",
        type=_number(float, lambda x: 0 < x < math.inf, "a number above 0"),
        help="highest learning rate",
    )
    add(
        "--min-lr",
        type=_number(float, lambda x: 0 <= x < math.inf, "a number of 0 or more"),
        help="learning rate at the end",
    )
    add("--warmup", type=_whole(0), help="steps in which the learning rate rises")
    add("--log-every", type=_whole(1), default=10, help="steps between two lines")
    add("--eval-every", type=_whole(1), help="steps between two evaluations")
    add("--save-every", type=_whole(1), help="steps between two checkpoints")
    add(
        "--keep",
        type=_whole(1),
        default=3,
        help="checkpoints to keep; older ones are deleted",
    )
    return parser


def _whole(least: int) -> Callable[[str], float]:
    """A reader of whole numbers, of 64 bits since PyTorch's are."""
    return _number(
        int, lambda n: least <= n < 2**63, f"a whole number from {least} to 2**63 - 1"
    )


def _number(
    kind: type[float], fits: Callable[[float], bool], words: str
) -> Callable[[str], float]:
    """A reader of numbers that fit; `words` say which do."""

    def read(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not fits(value):
            raise argparse.ArgumentTypeError(f"must be {words}, not {text!r}")
        return value

    return read
